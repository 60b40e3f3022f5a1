//! What was seen of a case: its recording, how its process ended, and what it wrote. A guest has made most of it.

use crate::fail_nth::GuestRuns;
use crate::record::{End, Line, Probe, ProbeEnd, ReadError, Reader, Recorded, SplatLine};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::BufRead;
use vmm::events::{Nanos, What};

/// So many hits are looked at: those of a case that is judged by single hits.
const MOST_HITS: usize = 1 << 20;
/// So many of them with what they have read.
const MOST_WITH_FIELDS: usize = 1 << 16;
/// So many reports of the kernel are kept.
const MOST_SPLATS: usize = 256;

/// All that was seen.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) ended: ProcessEnd,
    /// Standard error of the process: of the command, and what `vmm` said.
    pub(crate) said: String,
    pub(crate) stdout: String,
    pub(crate) console: String,
    pub(crate) recording: RecordedRun,
}

/// How the process of a case has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ProcessEnd {
    Code(u8),
    Signal(i32),
    /// It was ended because it took longer than it may, and did not end itself.
    #[default]
    Overdue,
}

/// What a recording tells.
#[derive(Debug, Default)]
pub(crate) struct RecordedRun {
    /// How the guest ended; `None` where the recording ends before that.
    pub(crate) end: Option<End>,
    /// What each probe came to, by its number.
    pub(crate) probes: BTreeMap<u32, ProbeEnd>,
    /// Hits in the order of their times.
    pub(crate) hits: Vec<SeenHit>,
    /// Whether there were more of them, or more with fields, than are kept.
    pub(crate) is_cut: bool,
    pub(crate) splats: Vec<SplatLine>,
    /// The runs in which calls were to fail, if there were such.
    pub(crate) nth: Option<GuestRuns>,
}

/// A hit.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenHit {
    /// When it was, by the clock of the recording.
    pub(crate) nanos: u64,
    /// The number of its probe.
    pub(crate) probe: u32,
    /// How long the call took that has returned.
    pub(crate) duration_ns: Option<u64>,
    /// What it has read, where that is looked at.
    pub(crate) fields: Vec<(String, SeenValue)>,
}

/// A value that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenValue {
    /// As people see it; a string without its quotation marks.
    pub(crate) text: String,
    pub(crate) number: Option<i128>,
    /// Whether it could not be read.
    pub(crate) is_missing: bool,
}

impl RecordedRun {
    /// Reads a recording. Of hits for which `has_fields` is true by the numbers of their probes, what they have read is kept.
    ///
    /// # Errors
    /// [`ReadError`] where it is damaged, or none.
    pub(crate) fn read(input: impl BufRead, has_fields: impl Fn(u32) -> bool) -> Result<Self, ReadError> {
        let mut reader = Reader::open(input)?;
        let (mut run, mut with_fields) = (Self::default(), 0);
        while let Some(line) = reader.next()? {
            match line {
                Line::Hit(_) if run.hits.len() == MOST_HITS => run.is_cut = true,
                Line::Hit(hit) => {
                    let id = hit.event.probe.0;
                    let duration_ns = match hit.event.what {
                        What::Return { duration: Nanos(duration), .. } => Some(duration),
                        _ => None,
                    };
                    let mut seen =
                        SeenHit { nanos: hit.event.nanos, probe: id, duration_ns, fields: Vec::new() };
                    if has_fields(id)
                        && let Some(probe) = reader.probe(id)
                    {
                        with_fields += 1;
                        run.is_cut |= with_fields > MOST_WITH_FIELDS;
                        if with_fields <= MOST_WITH_FIELDS {
                            seen.fields = fields(probe, &hit.fields);
                        }
                    }
                    run.hits.push(seen);
                }
                Line::Probe(end) => {
                    run.probes.insert(end.id, end);
                }
                Line::Splat(splat) if run.splats.len() < MOST_SPLATS => run.splats.push(*splat),
                _ => {}
            }
        }
        // Of two CPUs, the later hit may be written first.
        run.hits.sort_by_key(|hit| hit.nanos);
        run.end = reader.end().cloned();
        Ok(run)
    }

    /// Reports of the kernel that fail a case, each once.
    pub(crate) fn failing_splats(&self) -> impl Iterator<Item = &SplatLine> {
        self.splats.iter().filter(|splat| splat.allowed.is_none() && splat.repeats == 0)
    }
}

/// What a hit of `probe` has read.
fn fields(probe: &Probe, values: &serde_json::Map<String, Value>) -> Vec<(String, SeenValue)> {
    let seen = |field: &crate::record::Field| {
        let value = values.get(&field.name);
        (field.name.clone(), SeenValue::of(value, &Recorded { shape: &field.shape, value }))
    };
    probe.fields.iter().map(seen).collect()
}

impl SeenValue {
    fn of(value: Option<&Value>, shown: &Recorded<'_>) -> Self {
        let text = match value {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Object(object)) => match object.get("text") {
                Some(Value::String(text)) => text.clone(),
                _ => shown.to_string(),
            },
            _ => shown.to_string(),
        };
        let number = match value {
            Some(Value::Number(number)) => {
                number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
            }
            Some(Value::String(text)) => written_number(text),
            Some(Value::Null) => Some(0),
            _ => None,
        };
        let is_missing = match value {
            None => true,
            Some(Value::Object(object)) => object.contains_key("missing") || object.contains_key("fault"),
            Some(_) => false,
        };
        Self { text, number, is_missing }
    }
}

/// The number that `0x1f` and `0o17` are, and `-11 (EAGAIN)`.
fn written_number(text: &str) -> Option<i128> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).ok().map(i128::from);
    }
    if let Some(digits) = text.strip_prefix("0o") {
        return u64::from_str_radix(digits, 8).ok().map(i128::from);
    }
    text.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;

    #[test]
    fn a_recording_tells_hits_with_their_fields_and_what_probes_came_to() {
        let run = RecordedRun::read(example("json").as_bytes(), |id| id == 0).unwrap();
        assert_eq!(run.hits.len(), 2);
        assert_eq!((run.hits[0].probe, run.hits[0].duration_ns), (0, None));
        let value = |text: &str, number| SeenValue { text: text.to_owned(), number, is_missing: false };
        assert_eq!(run.hits[0].fields[0], ("dfd".to_owned(), value("-100", Some(-100))));
        assert_eq!(run.hits[0].fields[1], ("filename".to_owned(), value("/etc/passwd", None)));
        assert_eq!((run.hits[1].duration_ns, run.hits[1].fields.len()), (Some(12345), 0));
        assert_eq!(run.probes[&3].hits, 5);
        assert_eq!(run.end.unwrap().end, "stopped");
        assert_eq!(run.splats.len(), 1);
    }

    #[test]
    fn the_order_of_hits_is_that_of_their_times() {
        let text = example("json");
        let mut lines: Vec<&str> = text.lines().collect();
        let is_hit =
            |line: &&str| line.starts_with(r#"{"type":"hit""#) || line.starts_with(r#"{"type":"return""#);
        let hits: Vec<usize> = (0..lines.len()).filter(|n| is_hit(&lines[*n])).collect();
        lines.swap(hits[0], hits[1]);
        let probes = |text: &str| -> Vec<u32> {
            let run = RecordedRun::read(text.as_bytes(), |_| false).unwrap();
            run.hits.iter().map(|hit| hit.probe).collect()
        };
        assert_eq!(probes(&lines.join("\n")), probes(text));
    }

    #[test]
    fn a_value_is_seen_as_text_and_as_number() {
        use probe_engine::capture::shape::Shape;
        let seen = |json: &str| {
            let value: Value = serde_json::from_str(json).unwrap();
            let seen = SeenValue::of(Some(&value), &Recorded { shape: &Shape::Signed, value: Some(&value) });
            (seen.text, seen.number, seen.is_missing)
        };
        assert_eq!(seen("7"), ("7".to_owned(), Some(7), false));
        assert_eq!(seen("\"0x1f\""), ("0x1f".to_owned(), Some(31), false));
        assert_eq!(seen("\"O_RDONLY\""), ("O_RDONLY".to_owned(), None, false));
        assert_eq!(seen("{\"text\":\"a\",\"cut\":true}"), ("a".to_owned(), None, false));
        assert!(seen("{\"missing\":true}").2 && seen("{\"fault\":\"0x1\"}").2);
    }
}
