//! Hits that are counted instead of being shown one by one.

use crate::json::json;
use crate::record::HistogramEnd;
use crate::say::harmless;
use probe_engine::capture::Values;
use probe_engine::capture::filter::Circumstances;
use probe_engine::capture::names::Names;
use probe_engine::capture::tally::{Group, Line, Tally};
use probe_engine::probe::table::ProbeId;
use probe_engine::request::ProbeRequest;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vmm::events::Event;

/// The histograms of a run. Whoever writes hits counts, and others may look at any time.
#[derive(Clone, Default)]
pub(crate) struct RunHistograms(Arc<Mutex<Counted>>);

#[derive(Default)]
struct Counted {
    /// By their numbers.
    all: BTreeMap<usize, NamedTally>,
    /// The number of the histogram in which hits of a probe are counted.
    of_probes: HashMap<ProbeId, usize>,
}

#[derive(Clone)]
struct NamedTally {
    name: String,
    tally: Tally,
}

/// One line of a histogram as JSON.
#[derive(Serialize)]
struct JsonEntry<'a> {
    r#type: &'static str,
    histogram: &'a str,
    #[serde(flatten)]
    line: Line<'a>,
    text: String,
}

/// A histogram while the guest runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LiveHistogram {
    #[serde(flatten)]
    pub(crate) whole: HistogramEnd,
    /// Its first lines, or all of them.
    pub(crate) lines: Vec<LiveLine>,
}

impl LiveHistogram {
    /// Writes it as the kernel's `hist` file has it.
    pub(crate) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        let HistogramEnd { histogram, definition, hits, entries, dropped } = &self.whole;
        begin_text(out, &harmless(histogram), &harmless(definition))?;
        self.lines.iter().try_for_each(|line| writeln!(out, "{}", harmless(&line.text)))?;
        end_text(out, *hits, *entries, *dropped)
    }
}

/// Hits with one key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LiveLine {
    /// As [`Line`] has it.
    #[serde(flatten)]
    pub(crate) line: Map<String, Value>,
    /// As the kernel's `hist` file has it.
    pub(crate) text: String,
}

impl RunHistograms {
    /// Those of the probes with the numbers from 0 on.
    pub(crate) fn of(probes: &[ProbeRequest]) -> Self {
        let histograms = Self::default();
        let mut counted = histograms.lock();
        (0..).map(ProbeId).zip(probes).for_each(|(id, asked)| counted.register(id, asked));
        drop(counted);
        histograms
    }

    /// Hits of probes that were added are counted as well. Their histograms are numbered from 0.
    pub(crate) fn add_probes(&self, added: &[(ProbeId, ProbeRequest)]) {
        let mut counted = self.lock();
        let first = counted.all.last_key_value().map_or(0, |(number, _)| number + 1);
        for (id, asked) in added {
            let mut asked = asked.clone();
            if let Some(counted) = &mut asked.counted {
                counted.number += first;
            }
            counted.register(*id, &asked);
        }
    }

    /// Counts a hit.
    pub(super) fn add(&self, event: &Event, probe: &ProbeRequest) {
        let Counted { all, of_probes } = &mut *self.lock();
        let tally = of_probes.get(&event.probe).and_then(|number| all.get_mut(number));
        let Some((NamedTally { tally, .. }, plan)) = tally.zip(probe.plan.histogram()) else { return };
        let at = Circumstances { cpu: event.vcpu, task: event.task.as_ref(), ip: event.rip.0 };
        tally.add(plan, &probe.plan.capture.fields, Values::of(&event.captured), &at);
    }

    /// Counts hits that have been counted in the guest.
    pub(super) fn add_groups(&self, groups: &[(ProbeId, Group)]) {
        self.lock().add_groups(groups);
    }

    /// How they are at this moment, with what has been counted in the guest: those of this name, or all, and `most` lines of each.
    pub(crate) fn live(
        &self,
        groups: &[(ProbeId, Group)],
        name: Option<&str>,
        most: usize,
        names: Names<'_>,
    ) -> Vec<LiveHistogram> {
        let mut counted = {
            let counted = self.lock();
            let all = counted.all.iter().filter(|(_, own)| name.is_none_or(|name| own.name == name));
            let all = all.map(|(number, own)| (*number, own.clone())).collect();
            Counted { all, of_probes: counted.of_probes.clone() }
        };
        counted.add_groups(groups);
        counted.all.values().map(|own| own.live(most, names)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        let Self(counted) = self;
        counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write_text(&self, out: &mut impl Write, names: Names<'_>) -> io::Result<()> {
        for NamedTally { name, tally } in self.lock().all.values() {
            begin_text(out, name, &tally.plan().said)?;
            tally.lines(names).try_for_each(|line| writeln!(out, "{line}"))?;
            end_text(out, tally.hits(), tally.len(), tally.dropped())?;
        }
        Ok(())
    }

    pub(super) fn write_json(&self, out: &mut impl Write, names: Names<'_>) -> io::Result<()> {
        for NamedTally { name, tally } in self.lock().all.values() {
            for line in tally.lines(names) {
                let text = line.to_string();
                json(out, &JsonEntry { r#type: "entry", histogram: name, line, text })?;
            }
            json(out, &whole(name, tally))?;
        }
        Ok(())
    }
}

impl Counted {
    fn register(&mut self, id: ProbeId, probe: &ProbeRequest) {
        if let (Some(counted), Some(plan)) = (&probe.counted, probe.plan.histogram()) {
            let new = || NamedTally { name: counted.name.clone(), tally: Tally::new(plan.clone()) };
            self.all.entry(counted.number).or_insert_with(new);
            self.of_probes.insert(id, counted.number);
        }
    }

    fn add_groups(&mut self, groups: &[(ProbeId, Group)]) {
        for (probe, group) in groups {
            if let Some(own) = self.of_probes.get(probe).and_then(|number| self.all.get_mut(number)) {
                own.tally.add_group(group.clone());
            }
        }
    }
}

impl NamedTally {
    fn live(&self, most: usize, names: Names<'_>) -> LiveHistogram {
        let live = |line: Line<'_>| {
            let text = line.to_string();
            let Ok(Value::Object(line)) = serde_json::to_value(line) else { return None };
            Some(LiveLine { line, text })
        };
        let lines = self.tally.lines(names).take(most).filter_map(live).collect();
        LiveHistogram { whole: whole(&self.name, &self.tally), lines }
    }
}

/// What is said of a whole histogram.
fn whole(name: &str, tally: &Tally) -> HistogramEnd {
    HistogramEnd {
        histogram: name.to_owned(),
        definition: tally.plan().said.clone(),
        hits: tally.hits(),
        entries: tally.len(),
        dropped: tally.dropped(),
    }
}

/// What comes before a histogram's entries: as the kernel's `hist` file has it, below its name.
pub(crate) fn begin_text(out: &mut impl Write, name: &str, definition: &str) -> io::Result<()> {
    write!(out, "# {name}\n# event histogram\n#\n# trigger info: {definition} [active]\n#\n\n")
}

/// What comes behind them.
pub(crate) fn end_text(out: &mut impl Write, hits: u64, entries: usize, dropped: u64) -> io::Result<()> {
    write!(out, "\nTotals:\n    Hits: {hits}\n    Entries: {entries}\n    Dropped: {dropped}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Format;
    use crate::output::testing::written_as;
    use probe_engine::addr::Gva;
    use probe_engine::capture::filter::Operand;
    use probe_engine::capture::hist::{self, Form, Key};
    use probe_engine::capture::shape::Shape;
    use probe_engine::probe::place::Place;
    use probe_engine::probe::plan::{Action, ProbePlan, Trigger};
    use probe_engine::request::Counted;
    use vmm::events::Captured;
    use vmm::events::What;

    /// Two probes that are counted together, by the CPU, and one that is not counted.
    fn probes() -> Vec<ProbeRequest> {
        let key = Key { name: "cpu".to_owned(), operand: Operand::Cpu, form: Form::Number(Shape::Unsigned) };
        let plan = hist::Histogram {
            said: "hist:keys=cpu".to_owned(),
            keys: vec![key],
            values: Vec::new(),
            sort: Vec::new(),
            size: 128,
        };
        let counted = Counted { number: 3, name: "reads".to_owned() };
        let place =
            |symbol: &str| Place::Module { module: "m".to_owned(), symbol: symbol.to_owned(), offset: 0 };
        let asked = |symbol, counted: Option<Counted>| {
            let plain = ProbeRequest::plain(place(symbol), Trigger::Pass);
            match counted {
                None => plain,
                Some(_) => {
                    let action = Action::Histogram(plan.clone());
                    ProbeRequest { counted, plan: ProbePlan { action, ..plain.plan }, ..plain }
                }
            }
        };
        vec![asked("a", Some(counted.clone())), asked("b", Some(counted)), asked("c", None)]
    }

    fn written(format: Format) -> String {
        let event = |probe, vcpu| Event {
            stack: None,
            nanos: 0,
            guest_nanos: None,
            vcpu,
            probe: ProbeId(probe),
            rip: Gva(0x10),
            what: What::Hit { args: [0; 6] },
            task: None,
            captured: Captured::NONE,
        };
        written_as(format, probes(), &[event(0, 1), event(1, 1), event(1, 0), event(2, 0)])
    }

    #[test]
    fn hits_of_one_histogram_are_counted_together_and_not_shown() {
        let text = written(Format::Text);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].contains("m:c rip=0x10"), "{text}");
        assert_eq!(
            lines[1..6],
            ["# reads", "# event histogram", "#", "# trigger info: hist:keys=cpu [active]", "#"]
        );
        assert_eq!(
            lines[7..9],
            ["{ cpu:          0 } hitcount:          1", "{ cpu:          1 } hitcount:          2"]
        );
        assert_eq!(lines[10..], ["Totals:", "    Hits: 3", "    Entries: 2", "    Dropped: 0", ""]);
    }

    #[test]
    fn histograms_are_json_objects() {
        let text = written(Format::Json);
        let objects: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let entry = |cpu, hits| {
            serde_json::json!({
                "type": "entry", "histogram": "reads", "keys": { "cpu": cpu }, "hitcount": hits, "values": {},
                "text": format!("{{ cpu: {cpu:>10} }} hitcount: {hits:>10}")
            })
        };
        assert_eq!(objects[1..3], [entry(0, 1), entry(1, 2)]);
        let whole = serde_json::json!({
            "type": "histogram", "histogram": "reads", "definition": "hist:keys=cpu", "hits": 3, "entries": 2,
            "dropped": 0
        });
        assert_eq!(objects[3], whole);
        assert_eq!(objects.len(), 4);
    }
}
