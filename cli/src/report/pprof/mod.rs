//! A recording as a profile for pprof: its stacks with what they stand for, and with the task and the CPU as labels.

mod schema;

use super::ReportError;
use super::stacked::{Stacked, each_stack};
use crate::record::{Address, Frame, Header, Reader};
use flate2::Compression;
use flate2::write::GzEncoder;
use probe_engine::guest_text::is_special;
use prost::Message;
use schema::{Function, Label, Line, Location, Profile, Sample, ValueType};
use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, BufRead, Write};

/// So many different texts, functions and places are kept each. Those that come later are the first one.
const MOST: usize = 1 << 20;

pub(super) fn write(recording: &mut Reader<impl BufRead>, out: &mut dyn Write) -> Result<(), ReportError> {
    let mut profile = Writer::begin(out, recording.header())?;
    let read = each_stack(recording, &mut |stack| Ok(profile.stack(stack)?));
    let duration = recording.end().map_or(0, |end| end.ran_ns);
    profile.finish(duration)?;
    read
}

/// Writes a profile, one piece behind the other.
struct Writer<'a> {
    out: GzEncoder<&'a mut dyn Write>,
    /// Of the samples, in nanoseconds.
    period: Option<u64>,
    texts: Numbers<String>,
    /// By name and file.
    functions: Numbers<(i64, i64)>,
    /// By address and the number of the text that tells two of one address apart.
    locations: Numbers<(Address, i64)>,
}

/// What was told, by its numbers.
struct Numbers<K>(HashMap<K, u64>);

impl<K: Eq + Hash> Numbers<K> {
    /// The number of `key`, and whether it is new. `first` is that of the first one.
    fn of(&mut self, key: K, first: u64) -> (u64, bool) {
        if let Some(number) = self.0.get(&key) {
            return (*number, false);
        }
        if self.0.len() >= MOST {
            return (first, false);
        }
        let number = first + self.0.len() as u64;
        self.0.insert(key, number);
        (number, true)
    }
}

impl<'a> Writer<'a> {
    fn begin(out: &'a mut dyn Write, header: &Header) -> io::Result<Self> {
        let mut writer = Self {
            out: GzEncoder::new(out, Compression::default()),
            period: header.period_ns,
            texts: Numbers(HashMap::new()),
            functions: Numbers(HashMap::new()),
            locations: Numbers(HashMap::new()),
        };
        let mut head = Profile { time_nanos: signed(header.wall_ns), ..Profile::default() };
        writer.text("", &mut head);
        let mut value = |r#type, unit| {
            let (r#type, unit) = (writer.text(r#type, &mut head), writer.text(unit, &mut head));
            head.sample_type.push(ValueType { r#type, unit });
            ValueType { r#type, unit }
        };
        match header.period_ns {
            Some(period) => {
                value("samples", "count");
                let time = value("cpu", "nanoseconds");
                (head.period_type, head.period) = (Some(time), signed(period));
            }
            None => {
                value("hits", "count");
            }
        }
        writer.out.write_all(&head.encode_to_vec())?;
        Ok(writer)
    }

    /// The number of a text, which is told with `new` where it was not told yet.
    fn text(&mut self, text: &str, new: &mut Profile) -> i64 {
        let harmless: String = text.chars().map(|c| if is_special(c) { '?' } else { c }).collect();
        let (number, is_new) = self.texts.of(harmless.clone(), 0);
        if is_new {
            new.string_table.push(harmless);
        }
        signed(number)
    }

    fn function(&mut self, (name, file): (&str, &str), new: &mut Profile) -> u64 {
        let (name, filename) = (self.text(name, new), self.text(file, new));
        let (id, is_new) = self.functions.of((name, filename), 1);
        if is_new {
            new.function.push(Function { id, name, filename });
        }
        id
    }

    fn frame(&mut self, frame: &Frame, new: &mut Profile) -> u64 {
        let name = self.text(frame.name.as_deref().unwrap_or_default(), new);
        let (id, is_new) = self.locations.of((frame.address, name), 1);
        if is_new {
            let mut line = Vec::new();
            for inlined in &frame.inlined {
                let function_id = self.function((&inlined.name, &inlined.file), new);
                line.push(Line { function_id, line: inlined.line.unwrap_or(0).into() });
            }
            let function_id =
                self.function((&frame.function(), frame.file.as_deref().unwrap_or_default()), new);
            line.push(Line { function_id, line: frame.line.unwrap_or(0).into() });
            new.location.push(Location { id, address: frame.address.0, line });
        }
        id
    }

    /// A place of which nothing but the name is known.
    fn named(&mut self, (address, name): (Address, &str), new: &mut Profile) -> u64 {
        let key = (address, self.text(name, new));
        let (id, is_new) = self.locations.of(key, 1);
        if is_new {
            let function_id = self.function((name, ""), new);
            new.location.push(Location { id, address: address.0, line: vec![Line { function_id, line: 0 }] });
        }
        id
    }

    fn stack(&mut self, stack: &Stacked<'_>) -> io::Result<()> {
        let mut new = Profile::default();
        let mut location_id = Vec::new();
        if let Some(probe) = stack.probe {
            location_id.push(self.named((Address(0), probe), &mut new));
        }
        for frame in stack.frames {
            location_id.push(self.frame(frame, &mut new));
        }
        for frame in &*stack.user {
            location_id.push(self.named((frame.address, &frame.function()), &mut new));
        }
        let mut value = vec![signed(stack.count)];
        value.extend(self.period.map(|period| signed(stack.count.saturating_mul(period))));
        let mut label =
            vec![Label { key: self.text("cpu", &mut new), num: stack.vcpu.into(), ..Label::default() }];
        if let Some(task) = stack.task {
            let (key, comm) =
                (self.text("task", &mut new), self.text(&String::from_utf8_lossy(task.comm()), &mut new));
            label.push(Label { key, str: comm, ..Label::default() });
            label.push(Label { key: self.text("pid", &mut new), num: task.pid.into(), ..Label::default() });
        }
        new.sample.push(Sample { location_id, value, label });
        self.out.write_all(&new.encode_to_vec())
    }

    fn finish(mut self, duration: u64) -> io::Result<()> {
        let end = Profile { duration_nanos: signed(duration), ..Profile::default() };
        self.out.write_all(&end.encode_to_vec())?;
        self.out.finish()?.flush()
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;
    use flate2::read::GzDecoder;
    use std::io::Read;

    fn profile(recording: &str) -> Profile {
        let mut out = Vec::new();
        write(&mut Reader::open(recording.as_bytes()).unwrap(), &mut out).unwrap();
        let mut bytes = Vec::new();
        GzDecoder::new(&*out).read_to_end(&mut bytes).unwrap();
        Profile::decode(&*bytes).unwrap()
    }

    /// The functions of each stack, the innermost first, and its values.
    fn stacks(profile: &Profile) -> Vec<(Vec<&str>, Vec<i64>)> {
        let text = |number: i64| profile.string_table[usize::try_from(number).unwrap()].as_str();
        let function =
            |id: u64| text(profile.function.iter().find(|function| function.id == id).unwrap().name);
        let place = |id: &u64| {
            let location = profile.location.iter().find(|location| location.id == *id).unwrap();
            location.line.iter().map(|line| function(line.function_id)).collect::<Vec<_>>()
        };
        let of =
            |sample: &Sample| (sample.location_id.iter().flat_map(place).collect(), sample.value.clone());
        profile.sample.iter().map(of).collect()
    }

    #[test]
    fn samples_have_their_periods_and_their_time() {
        let profile = profile(example("jsonl"));
        let (user, period) = ("0x7f321cd08ca9", 10_101_010);
        let expected = [
            (vec!["do_sys_openat2", "do_syscall_64", user], vec![1, period]),
            (vec!["getdents64"], vec![2, 2 * period]),
        ];
        assert_eq!(stacks(&profile), expected);
        assert_eq!((profile.period, profile.duration_nanos), (period, 1_959_595_940));
        assert_eq!(profile.string_table[0], "");
    }

    #[test]
    fn hits_are_counted_and_one_without_a_stack_is_its_probe() {
        let profile = profile(example("json"));
        let functions = vec!["do_sys_openat2", "__x64_sys_openat", "do_syscall_64", "0x7f321cd08ca9"];
        assert_eq!(stacks(&profile), [(functions, vec![1]), (vec!["vfs_read%return"], vec![1])]);
    }
}
