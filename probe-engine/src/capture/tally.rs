//! Hits counted by keys: what a [`Histogram`] comes to.

use super::Field;
use super::filter::{Circumstances, Is, Operand};
use super::hist::{By, Histogram, KeyValue, ShownKey, Sort};
use super::names::Names;
use super::value::Values;
use crate::linux::task::COMM;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;

/// Hits counted by keys. It keeps as many different keys as its plan says; hits with others are counted as dropped.
#[derive(Clone)]
pub struct Tally {
    plan: Histogram,
    entries: HashMap<Vec<KeyValue>, TallyEntry>,
    hits: u64,
    dropped: u64,
}

/// What hits with one key came to.
#[derive(Clone)]
struct TallyEntry {
    hits: u64,
    sums: Vec<i128>,
    /// The name of the thread at the first of them.
    comm: [u8; COMM],
}

/// Hits with one key that have been counted where they were taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub(crate) key: Vec<KeyValue>,
    pub(crate) hits: u64,
    pub(crate) sums: Vec<i128>,
    /// The name of the thread at the first of them.
    pub(crate) comm: [u8; COMM],
    /// When that was, by the guest's time-stamp counter.
    pub(crate) first: u64,
}

impl Group {
    /// How many hits they are.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// When the first of them was, by the guest's time-stamp counter.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }
}

impl Tally {
    /// Of no hits yet.
    #[must_use]
    pub fn new(plan: Histogram) -> Self {
        Self { plan, entries: HashMap::new(), hits: 0, dropped: 0 }
    }

    /// What is counted.
    #[must_use]
    pub fn plan(&self) -> &Histogram {
        &self.plan
    }

    /// How many hits were counted, without those that were [dropped](Self::dropped).
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// How many hits were not counted, because there were too many different keys.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How many different keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Counts one hit with `values`, which are those of `fields`. `plan` says where its keys are: one histogram may
    /// count hits of several probes, of which each reads other fields.
    pub fn add(&mut self, plan: &Histogram, fields: &[Field], values: Values<'_>, at: &Circumstances<'_>) {
        let is = |operand: Operand| operand.at(|n| fields.get(usize::from(n)), values, at);
        let number = |operand| match is(operand) {
            Some(Is::Number(number)) => number,
            Some(Is::Text(_)) | None => 0,
        };
        self.add_group(Group {
            key: plan.keys.iter().map(|key| key.form.group(is(key.operand))).collect(),
            hits: 1,
            sums: plan.values.iter().map(|value| number(value.operand)).collect(),
            comm: at.task.map_or([0; COMM], |task| task.comm),
            first: 0,
        });
    }

    /// Counts hits that have been counted together. Groups come in the order of their [first](Group::first) hits.
    pub fn add_group(&mut self, Group { key, hits, sums, comm, .. }: Group) {
        let has_room = self.entries.len() < self.plan.size as usize;
        if !has_room && !self.entries.contains_key(&key) {
            self.dropped = self.dropped.saturating_add(hits);
            return;
        }
        self.hits = self.hits.saturating_add(hits);
        let values = sums.len();
        let new = || TallyEntry { hits: 0, sums: vec![0; values], comm };
        let entry = self.entries.entry(key).or_insert_with(new);
        entry.hits = entry.hits.saturating_add(hits);
        for (sum, number) in entry.sums.iter_mut().zip(sums) {
            *sum = sum.saturating_add(number);
        }
    }

    /// What was counted, in the order that was asked for.
    pub fn lines<'a>(&'a self, names: Names<'a>) -> impl Iterator<Item = Line<'a>> {
        let mut sorted: Vec<_> = self.entries.iter().collect();
        // Where the order that was asked for leaves one open, it is that of the keys.
        sorted.sort_unstable_by(|a, b| self.order(*a, *b).then_with(|| a.0.cmp(b.0)));
        sorted.into_iter().map(move |(key, entry)| Line { plan: &self.plan, key, entry, names })
    }

    fn order(&self, a: (&Vec<KeyValue>, &TallyEntry), b: (&Vec<KeyValue>, &TallyEntry)) -> Ordering {
        let by = |sort: &Sort| {
            let order = match sort.by {
                By::Hits => a.1.hits.cmp(&b.1.hits),
                By::Key(n) => a.0.get(usize::from(n)).cmp(&b.0.get(usize::from(n))),
                By::Value(n) => a.1.sums.get(usize::from(n)).cmp(&b.1.sums.get(usize::from(n))),
            };
            if sort.descending { order.reverse() } else { order }
        };
        self.plan.sort.iter().map(by).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    }

    /// All of it, as the kernel's `hist` file has it (`hist_trigger_show`).
    pub fn text<'a>(&'a self, names: Names<'a>) -> impl fmt::Display + 'a {
        fmt::from_fn(move |f| {
            write!(f, "# event histogram\n#\n# trigger info: {} [active]\n#\n\n", self.plan.said)?;
            self.lines(names).try_for_each(|line| writeln!(f, "{line}"))?;
            writeln!(f, "\nTotals:\n    Hits: {}", self.hits)?;
            writeln!(f, "    Entries: {}\n    Dropped: {}", self.entries.len(), self.dropped)
        })
    }
}

/// The hits with one key: a line as the kernel writes it, and a JSON object with `keys`, `hitcount` and `values`.
pub struct Line<'a> {
    plan: &'a Histogram,
    key: &'a [KeyValue],
    entry: &'a TallyEntry,
    names: Names<'a>,
}

impl Line<'_> {
    fn keys(&self) -> impl Iterator<Item = ShownKey<'_>> {
        let comm = self.entry.comm.split(|byte| *byte == 0).next().unwrap_or_default();
        let shown = move |(key, part)| ShownKey { key, part, comm, names: self.names };
        self.plan.keys.iter().zip(self.key).map(shown)
    }

    fn values(&self) -> impl Iterator<Item = (&str, i128)> {
        self.plan.values.iter().map(|value| value.name.as_str()).zip(self.entry.sums.iter().copied())
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{ ")?;
        for (n, key) in self.keys().enumerate() {
            write!(f, "{}{key}", if n == 0 { "" } else { ", " })?;
        }
        write!(f, " }} hitcount: {:>10}", self.entry.hits)?;
        self.values().try_for_each(|(name, sum)| write!(f, "  {name}: {sum:>10}"))
    }
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("keys", &Keys(self))?;
        map.serialize_entry("hitcount", &self.entry.hits)?;
        map.serialize_entry("values", &Sums(self))?;
        map.end()
    }
}

struct Keys<'a>(&'a Line<'a>);

impl Serialize for Keys<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.keys().map(|key| (key.key.name.as_str(), key)))
    }
}

struct Sums<'a>(&'a Line<'a>);

impl Serialize for Sums<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.values())
    }
}

#[cfg(test)]
mod tests {
    use super::super::fetch::{Base, Fetch};
    use super::super::hist::{Form, Key, Summed};
    use super::super::shape::Shape;
    use super::super::{names, value};
    use super::*;
    use crate::linux::task::{Context, Task};

    fn plan(keys: &[(&str, Operand, Form)], sort: &[(By, bool)], size: u32) -> Histogram {
        let key = |(name, operand, form): &(&str, Operand, Form)| Key {
            name: (*name).to_owned(),
            operand: *operand,
            form: form.clone(),
        };
        Histogram {
            said: "hist:keys=common_pid.execname,count.log2:vals=hitcount,count:sort=hitcount:size=128"
                .to_owned(),
            keys: keys.iter().map(key).collect(),
            values: vec![Summed { name: "count".to_owned(), operand: Operand::Field(0) }],
            sort: sort.iter().map(|(by, descending)| Sort { by: *by, descending: *descending }).collect(),
            size,
        }
    }

    fn count() -> Vec<Field> {
        let fetch = Fetch::word(Base::Argument(2), 8);
        vec![Field { name: "count".to_owned(), fetch, shape: Shape::Signed }]
    }

    /// Counts a hit of the thread with this number, with this count; `None` could not be read.
    fn hit(tally: &mut Tally, pid: u32, count: Option<i64>) {
        let task = Task {
            at: crate::addr::Gva(0),
            pid,
            tgid: pid,
            ns_pid: None,
            uid: None,
            context: Context::Task,
            comm: *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0",
        };
        let mut record = Vec::new();
        match count {
            Some(count) => value::put_bytes(&mut record, &count.to_le_bytes()),
            None => value::put_missing(&mut record),
        }
        let plan = tally.plan().clone();
        let at = Circumstances { cpu: 1, task: Some(&task), ip: 0 };
        tally.add(&plan, &self::count(), Values::of(&record), &at);
    }

    #[test]
    fn hits_are_counted_by_their_keys() {
        let keys = [("common_pid", Operand::Pid, Form::Process), ("count", Operand::Field(0), Form::Log2)];
        let mut tally = Tally::new(plan(&keys, &[(By::Hits, false)], 128));
        for (pid, count) in [(7, 100), (7, 128), (8, 1), (7, 129), (7, 65)] {
            hit(&mut tally, pid, Some(count));
        }
        hit(&mut tally, 8, None);
        assert_eq!((tally.hits(), tally.len(), tally.dropped()), (6, 4, 0));
        let text = "\
# event histogram
#
# trigger info: hist:keys=common_pid.execname,count.log2:vals=hitcount,count:sort=hitcount:size=128 [active]
#

{ common_pid: cat             [         7], count: ~ 2^8  } hitcount:          1  count:        129
{ common_pid: cat             [         8], count:  (missing) } hitcount:          1  count:          0
{ common_pid: cat             [         8], count: ~ 2^0  } hitcount:          1  count:          1
{ common_pid: cat             [         7], count: ~ 2^7  } hitcount:          3  count:        293

Totals:
    Hits: 6
    Entries: 4
    Dropped: 0
";
        assert_eq!(tally.text(&names::none).to_string(), text);
        let last = tally.lines(&names::none).last().unwrap();
        let expected = serde_json::json!({
            "keys": { "common_pid": { "comm": "cat", "pid": 7 }, "count": { "from": 65, "to": 128 } },
            "hitcount": 3,
            "values": { "count": 293 },
        });
        let json = serde_json::to_string(&last).unwrap();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&json).unwrap(), expected);
    }

    #[test]
    fn lines_come_in_the_order_that_was_asked_for() {
        let order = |sort: &[(By, bool)]| -> Vec<String> {
            let keys = [("common_pid", Operand::Pid, Form::Number(Shape::Unsigned))];
            let mut tally = Tally::new(plan(&keys, sort, 128));
            for (pid, count) in [(3, -5), (1, 9), (1, 9), (2, 30), (2, -2)] {
                hit(&mut tally, pid, Some(count));
            }
            let line = |line: Line<'_>| line.to_string().split_whitespace().nth(2).unwrap().to_owned();
            tally.lines(&names::none).map(line).collect()
        };
        assert_eq!(order(&[(By::Hits, false)]), ["3", "1", "2"]);
        assert_eq!(order(&[(By::Hits, true), (By::Key(0), true)]), ["2", "1", "3"]);
        assert_eq!(order(&[(By::Value(0), false)]), ["3", "1", "2"]);
        assert_eq!(order(&[(By::Value(0), true)]), ["2", "1", "3"]);
        assert_eq!(order(&[(By::Key(0), false)]), ["1", "2", "3"]);
    }

    #[test]
    fn what_there_is_no_room_for_is_dropped() {
        let keys = [("common_pid", Operand::Pid, Form::Hex)];
        let mut tally = Tally::new(plan(&keys, &[], 128));
        for pid in (0..200).chain(0..10) {
            hit(&mut tally, pid, Some(i64::MAX));
        }
        assert_eq!((tally.hits(), tally.len(), tally.dropped()), (138, 128, 72));
        assert!(tally.text(&names::none).to_string().ends_with("Entries: 128\n    Dropped: 72\n"));
    }

    #[test]
    fn nothing_of_a_damaged_record_is_counted_but_the_hit() {
        let keys = [("count", Operand::Field(0), Form::Number(Shape::Signed))];
        let mut tally = Tally::new(plan(&keys, &[], 128));
        let plan = tally.plan().clone();
        let at = Circumstances { cpu: 0, task: None, ip: 0 };
        for record in [&[][..], &[1], &[1, 9, 0, 1], &[99]] {
            tally.add(&plan, &count(), Values::of(record), &at);
        }
        tally.add(&plan, &[], Values::of(&[]), &at);
        assert_eq!((tally.hits(), tally.len()), (5, 1));
    }
}
