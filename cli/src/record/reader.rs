//! Reads a recording line by line, in memory that does not grow with its hits.
//!
//! Whoever has written it may be hostile: nothing in it panics, and what is kept of it has bounds.

use super::header::FORMAT;
use super::{
    DroppedEnd, DroppedLine, End, Entry, Filter, FindingLine, Function, GateEnd, GuardLine, Header,
    Histogram, HistogramEnd, Hit, HitLine, HoldLine, InjectionEnd, NthLine, OrderLine, Prefix, Probe,
    ProbeEnd, RunsLine, SampleLine, SampledLine, ScanCheckLine, ScanFindingLine, SplatLine,
};
use probe_engine::lang;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

/// The longest line that is read, in bytes. A hit holds 16 KiB of what was read in the guest, and 256 frames.
const LONGEST: usize = 4 << 20;
/// How many bytes of lines of probes are read: all functions of a kernel have less than half of that.
const MOST_OF_PROBES: usize = 128 << 20;
/// How many fields a probe has at most: a definition has no room for more.
const MOST_FIELDS: usize = 1024;

/// Why a recording is not read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The file or the pipe.
    #[error("it cannot be read")]
    Io(#[from] io::Error),
    #[error("it is no recording of vmm: {0}")]
    Foreign(&'static str),
    #[error("it has format {0}, and this vmm reads format {FORMAT}: use the vmm that has written it")]
    Format(u64),
    #[error("its line {0} is damaged")]
    Damaged(u64, #[source] serde_json::Error),
    #[error("its line {0} lacks what its type has")]
    Incomplete(u64),
    #[error("its line {0} is no text in UTF-8")]
    NoText(u64),
    #[error("its line {0} is longer than {LONGEST} bytes")]
    Long(u64),
    #[error("its line {0} has a probe of more than {MOST_FIELDS} fields")]
    Fields(u64),
    #[error("its probes take more than {MOST_OF_PROBES} bytes")]
    Probes,
}

/// A line behind the first one.
#[derive(Debug)]
pub(crate) enum Line {
    /// A probe was registered: from now on the [reader](Reader::probe) knows it.
    Registered,
    Hit(Box<Hit>),
    Sample(Box<SampleLine>),
    Sampled(SampledLine),
    Entry(Entry),
    Histogram(HistogramEnd),
    Probe(ProbeEnd),
    Function(Function),
    Prefix(Prefix),
    Splat(Box<SplatLine>),
    Hold(Box<HoldLine>),
    Gate(GateEnd),
    Finding(Box<FindingLine>),
    Guard(GuardLine),
    ScanFinding(ScanFindingLine),
    ScanCheck(ScanCheckLine),
    Dropped(DroppedLine),
    DroppedEnd(DroppedEnd),
    Injection(InjectionEnd),
    Nth(NthLine),
    Runs(RunsLine),
    Order(OrderLine),
    End,
    /// Of a type that is not known.
    Unknown,
}

/// Reads a recording.
pub(crate) struct Reader<R> {
    input: R,
    header: Header,
    probes: BTreeMap<u32, Probe>,
    probe_bytes: usize,
    /// What the histograms of these probes count, by their names.
    histograms: BTreeMap<String, String>,
    /// The line that was read last, with its number.
    line: String,
    number: u64,
    end: Option<End>,
    filter: Option<Filter>,
}

/// By what a line is told from others.
#[derive(Deserialize)]
struct Type<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
}

/// What a header of any version has.
#[derive(Deserialize)]
struct AnyHeader {
    r#type: String,
    format: u64,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line.
    ///
    /// # Errors
    /// [`ReadError`], of which the text goes on behind the name of the file.
    pub(crate) fn open(mut input: R) -> Result<Self, ReadError> {
        let mut line = Vec::new();
        if !read_line(&mut input, &mut line).map_err(|error| error.at(1))? {
            return Err(ReadError::Foreign(match line.is_empty() {
                true => "it is empty",
                false => "it ends within its first line",
            }));
        }
        const NO_HEADER: ReadError = ReadError::Foreign("its first line is no header");
        let line = String::from_utf8(line).map_err(|_| NO_HEADER)?;
        let header: AnyHeader = serde_json::from_str(&line).map_err(|_| NO_HEADER)?;
        if header.r#type != "header" {
            return Err(NO_HEADER);
        }
        if header.format != u64::from(FORMAT) {
            return Err(ReadError::Format(header.format));
        }
        let header = serde_json::from_str(&line).map_err(|error| ReadError::Damaged(1, error))?;
        Ok(Self {
            input,
            header,
            probes: BTreeMap::new(),
            probe_bytes: 0,
            histograms: BTreeMap::new(),
            line,
            number: 1,
            end: None,
            filter: None,
        })
    }

    /// The first line.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// A probe that has been registered so far.
    pub(crate) fn probe(&self, id: u32) -> Option<&Probe> {
        self.probes.get(&id)
    }

    /// From now on passes over hits that do not meet `filter`.
    pub(crate) fn filter(&mut self, filter: Filter) {
        self.filter = Some(filter);
    }

    /// Why the filter applies to no probe at all, if there was one.
    pub(crate) fn filter_failure(&self) -> Option<&lang::Error> {
        self.filter.as_ref().and_then(Filter::failure)
    }

    /// All probes that have been registered so far, by their numbers.
    pub(crate) fn probes(&self) -> impl Iterator<Item = &Probe> {
        self.probes.values()
    }

    /// What the histogram with this name counts, in the language of definitions.
    pub(crate) fn histogram(&self, name: &str) -> Option<&str> {
        self.histograms.get(name).map(String::as_str)
    }

    /// The line that was read last as it was written, without its end.
    pub(crate) fn text(&self) -> &str {
        self.line.trim_ascii_end()
    }

    /// The last line, once it was read.
    pub(crate) fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Whether the recording ends before the run did, as far as it was read.
    pub(crate) fn is_cut(&self) -> bool {
        self.end.is_none()
    }

    /// The next line; `None` behind the last whole one.
    ///
    /// # Errors
    /// [`ReadError`] for a line that is damaged: what was read before it is sound.
    pub(crate) fn next(&mut self) -> Result<Option<Line>, ReadError> {
        loop {
            self.number += 1;
            let number = self.number;
            let mut line = std::mem::take(&mut self.line).into_bytes();
            if !read_line(&mut self.input, &mut line).map_err(|error| error.at(number))? {
                return Ok(None);
            }
            self.line = String::from_utf8(line).map_err(|_| ReadError::NoText(number))?;
            if let Some(line) = self.parse()? {
                return Ok(Some(line));
            }
        }
    }

    /// What the line is; `None` for a hit that is not wanted.
    fn parse(&mut self) -> Result<Option<Line>, ReadError> {
        let (number, line) = (self.number, &*self.line);
        let damaged = |error| ReadError::Damaged(number, error);
        let Type { r#type } = serde_json::from_str(line).map_err(damaged)?;
        Ok(Some(match &*r#type {
            "hit" | "return" | "access" => {
                let line: HitLine<'_, Map<String, Value>> = serde_json::from_str(line).map_err(damaged)?;
                let hit = line.hit().ok_or(ReadError::Incomplete(number))?;
                if let Some(filter) = &self.filter
                    && !self.probes.get(&hit.event.probe.0).is_some_and(|probe| filter.passes(&hit, probe))
                {
                    return Ok(None);
                }
                Line::Hit(Box::new(hit))
            }
            "sample" => {
                let sample: SampleLine = serde_json::from_str(line).map_err(damaged)?;
                Line::Sample(Box::new(sample.bounded()))
            }
            "sampled" => Line::Sampled(serde_json::from_str(line).map_err(damaged)?),
            "registered" => {
                self.probe_bytes = count_probe(self.probe_bytes, line)?;
                let probe: Probe = serde_json::from_str(line).map_err(damaged)?;
                if probe.fields.len() > MOST_FIELDS {
                    return Err(ReadError::Fields(number));
                }
                if let Some(Histogram { name, definition }) = &probe.histogram
                    && !self.histograms.contains_key(name)
                {
                    self.histograms.insert(name.clone(), definition.clone());
                }
                if let Some(filter) = &mut self.filter {
                    filter.register(&probe);
                }
                self.probes.insert(probe.id, probe);
                Line::Registered
            }
            "entry" => Line::Entry(serde_json::from_str(line).map_err(damaged)?),
            "histogram" => Line::Histogram(serde_json::from_str(line).map_err(damaged)?),
            "probe" => {
                self.probe_bytes = count_probe(self.probe_bytes, line)?;
                Line::Probe(serde_json::from_str(line).map_err(damaged)?)
            }
            "function" => Line::Function(serde_json::from_str(line).map_err(damaged)?),
            "prefix" => Line::Prefix(serde_json::from_str(line).map_err(damaged)?),
            "splat" => Line::Splat(serde_json::from_str(line).map_err(damaged)?),
            "hold" => {
                let hold: HoldLine = serde_json::from_str(line).map_err(damaged)?;
                Line::Hold(Box::new(hold.bounded()))
            }
            "finding" => {
                let finding: FindingLine = serde_json::from_str(line).map_err(damaged)?;
                Line::Finding(Box::new(finding.bounded()))
            }
            "guard" => Line::Guard(serde_json::from_str(line).map_err(damaged)?),
            "scan_finding" => Line::ScanFinding(serde_json::from_str(line).map_err(damaged)?),
            "scan_check" => Line::ScanCheck(serde_json::from_str(line).map_err(damaged)?),
            "dropped" => Line::Dropped(serde_json::from_str(line).map_err(damaged)?),
            "dropped_end" => Line::DroppedEnd(serde_json::from_str(line).map_err(damaged)?),
            "gate" => Line::Gate(serde_json::from_str(line).map_err(damaged)?),
            "order" => Line::Order(serde_json::from_str(line).map_err(damaged)?),
            "fail_nth" => Line::Nth(serde_json::from_str(line).map_err(damaged)?),
            "injection" => Line::Injection(serde_json::from_str(line).map_err(damaged)?),
            "runs" => Line::Runs(serde_json::from_str(line).map_err(damaged)?),
            "end" => {
                self.end = Some(serde_json::from_str(line).map_err(damaged)?);
                Line::End
            }
            _ => Line::Unknown,
        }))
    }
}

/// How many bytes of lines of probes there are with this one.
fn count_probe(bytes: usize, line: &str) -> Result<usize, ReadError> {
    Some(bytes + line.len()).filter(|bytes| *bytes <= MOST_OF_PROBES).ok_or(ReadError::Probes)
}

/// Why there is no line.
enum NoLine {
    Io(io::Error),
    Long,
}

impl NoLine {
    fn at(self, number: u64) -> ReadError {
        match self {
            Self::Io(error) => ReadError::Io(error),
            Self::Long => ReadError::Long(number),
        }
    }
}

/// Reads a line with its end, and says whether it has one.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<bool, NoLine> {
    line.clear();
    input.take(LONGEST as u64 + 1).read_until(b'\n', line).map_err(NoLine::Io)?;
    match line.last() {
        Some(b'\n') => Ok(true),
        _ if line.len() > LONGEST => Err(NoLine::Long),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;
    use proptest::prelude::*;

    /// Reads all of `recording`: the types of its lines, whether it is cut, and why no more was read.
    fn read(recording: &[u8]) -> (usize, bool, Option<String>) {
        let mut reader = match Reader::open(recording) {
            Ok(reader) => reader,
            Err(error) => return (0, true, Some(error.to_string())),
        };
        let mut lines = 1;
        loop {
            match reader.next() {
                Ok(Some(_)) => lines += 1,
                Ok(None) => return (lines, reader.is_cut(), None),
                Err(error) => return (lines, reader.is_cut(), Some(error.to_string())),
            }
        }
    }

    #[test]
    fn the_example_of_the_docs_is_read() {
        assert_eq!(read(example("json").as_bytes()), (example("json").lines().count(), false, None));
        let mut reader = Reader::open(example("json").as_bytes()).unwrap();
        let header = serde_json::to_string(reader.header()).unwrap();
        let (mut hits, mut written) = (Vec::new(), vec![header]);
        while let Some(line) = reader.next().unwrap() {
            match line {
                Line::Hit(hit) => {
                    let probe = reader.probe(hit.event.probe.0).unwrap();
                    let line = HitLine::of(&hit.event, probe, Some(&hit.fields), hit.stack.as_ref());
                    written.push(serde_json::to_string(&line).unwrap());
                    hits.push(hit);
                }
                Line::Sample(sample) => written.push(serde_json::to_string(&sample).unwrap()),
                Line::Sampled(sampled) => written.push(serde_json::to_string(&sampled).unwrap()),
                Line::Registered => {
                    written.push(serde_json::to_string(reader.probes().last().unwrap()).unwrap());
                }
                Line::Histogram(end) => written.push(serde_json::to_string(&end).unwrap()),
                Line::Probe(end) => written.push(serde_json::to_string(&end).unwrap()),
                // Only who has counted the hits writes it.
                Line::Entry(_) => written.push(reader.text().to_owned()),
                Line::Function(function) => written.push(serde_json::to_string(&function).unwrap()),
                Line::Prefix(prefix) => written.push(serde_json::to_string(&prefix).unwrap()),
                Line::Splat(splat) => written.push(serde_json::to_string(&splat).unwrap()),
                Line::Hold(hold) => written.push(serde_json::to_string(&hold).unwrap()),
                Line::Finding(finding) => written.push(serde_json::to_string(&finding).unwrap()),
                Line::Guard(guard) => written.push(serde_json::to_string(&guard).unwrap()),
                Line::ScanFinding(finding) => written.push(serde_json::to_string(&finding).unwrap()),
                Line::ScanCheck(check) => written.push(serde_json::to_string(&check).unwrap()),
                Line::Dropped(file) => written.push(serde_json::to_string(&file).unwrap()),
                Line::DroppedEnd(end) => written.push(serde_json::to_string(&end).unwrap()),
                Line::Gate(gate) => written.push(serde_json::to_string(&gate).unwrap()),
                Line::Order(order) => written.push(serde_json::to_string(&order).unwrap()),
                Line::Nth(run) => written.push(serde_json::to_string(&run).unwrap()),
                Line::Injection(end) => written.push(serde_json::to_string(&end).unwrap()),
                Line::Runs(runs) => written.push(serde_json::to_string(&runs).unwrap()),
                Line::Unknown => panic!("{}", reader.text()),
                Line::End => written.push(serde_json::to_string(reader.end.as_ref().unwrap()).unwrap()),
            }
        }
        assert_eq!(hits[0].event.task.unwrap().comm(), b"head");
        assert_eq!(hits[0].stack.as_ref().unwrap().frames.len(), 3);
        // What is read is all that is there.
        for (line, written) in example("json").lines().zip(&written) {
            let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(value(line), value(written));
        }
    }

    #[test]
    fn a_probe_of_a_rule_is_written_as_it_is_read() {
        let mut reader = Reader::open(example("jsonl rule").as_bytes()).unwrap();
        assert!(matches!(reader.next(), Ok(Some(Line::Registered))));
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let written = serde_json::to_string(reader.probe(0).unwrap()).unwrap();
        assert_eq!(value(reader.text()), value(&written));
        assert!(matches!(reader.next(), Ok(Some(Line::Hit(_)))));
        assert!(matches!(reader.next(), Ok(Some(Line::End))));
    }

    #[test]
    fn what_is_no_recording_of_this_format_is_refused() {
        let said = |recording: &str| read(recording.as_bytes()).2.unwrap();
        assert_eq!(said(""), "it is no recording of vmm: it is empty");
        assert_eq!(said("{\"type\":\"hea"), "it is no recording of vmm: it ends within its first line");
        for foreign in ["\x7fELF\n", "[1]\n", "{}\n", "{\"type\":\"hit\",\"format\":1}\n"] {
            assert_eq!(said(foreign), "it is no recording of vmm: its first line is no header");
        }
        let other = example("json").replacen("\"format\":1", "\"format\":2", 1);
        assert_eq!(
            said(&other),
            "it has format 2, and this vmm reads format 1: use the vmm that has written it"
        );
        let long = format!("{}\n{}\n", example("json").lines().next().unwrap(), "x".repeat(LONGEST + 1));
        assert_eq!(
            read(long.as_bytes()),
            (1, true, Some(format!("its line 2 is longer than {LONGEST} bytes")))
        );
    }

    #[test]
    fn what_is_no_text_is_refused_also_where_nobody_reads_it() {
        let mut recording = example("json").as_bytes().to_vec();
        let hit = example("json").find("\"time_ns\":2469881356").unwrap();
        recording.splice(hit..hit, *b"\"junk\":\"\x9b31m\xff\",");
        assert_eq!(read(&recording).2.unwrap(), "its line 6 is no text in UTF-8");
        let junk = recording[hit..hit + 15].to_vec();
        recording.drain(hit..hit + 15);
        recording.splice(1..1, junk);
        assert_eq!(read(&recording).2.unwrap(), "it is no recording of vmm: its first line is no header");
    }

    #[test]
    fn a_recording_that_was_cut_anywhere_is_read_to_its_last_whole_line() {
        let header = example("json").find('\n').unwrap();
        for cut in 0..example("json").len() {
            let (lines, is_cut, error) = read(&example("json").as_bytes()[..cut]);
            assert_eq!(lines, example("json")[..cut].matches('\n').count(), "cut at {cut}");
            assert!(is_cut);
            assert_eq!(error.is_some(), cut <= header, "cut at {cut}: {error:?}");
        }
    }

    #[test]
    fn of_a_long_name_the_start_is_kept_and_no_probe_has_fields_without_end() {
        let with = |from: &str, to: &str| example("json").replace(from, to);
        let long = with("\"place\":\"vfs_open\"", &format!("\"place\":\"{}\"", "ü".repeat(LONGEST / 4)));
        let mut reader = Reader::open(long.as_bytes()).unwrap();
        while reader.next().unwrap().is_some() {}
        assert_eq!(reader.probe(3).unwrap().place.len(), 4096);
        assert_eq!(
            reader.histogram("writes"),
            Some("hist:keys=comm:values=hitcount:sort=hitcount:size=2048")
        );
        let field = "{\"name\":\"a\",\"type\":\"s64\",\"shape\":\"Text\"}";
        let fields = |count| with("\"fields\":[]", &format!("\"fields\":[{}]", vec![field; count].join(",")));
        assert_eq!(read(fields(MOST_FIELDS).as_bytes()).2, None);
        let refused = read(fields(MOST_FIELDS + 1).as_bytes()).2.unwrap();
        assert_eq!(refused, "its line 4 has a probe of more than 1024 fields");
    }

    #[test]
    fn an_entry_has_its_keys_by_their_names() {
        let hostile = example("json").replace("{\"comm\":\"head\"}", "null");
        let line = 1 + hostile.lines().position(|line| line.contains("\"type\":\"entry\"")).unwrap();
        assert_eq!(read(hostile.as_bytes()).2.unwrap(), format!("its line {line} is damaged"));
    }

    #[test]
    fn a_type_that_is_not_known_is_no_damage() {
        let more = example("json").replacen(
            "{\"type\":\"hit\"",
            "{\"type\":\"new\",\"x\":[]}\n{\"type\":\"hit\"",
            1,
        );
        assert_eq!(read(more.as_bytes()), (example("json").lines().count() + 1, false, None));
    }

    proptest! {
        #[test]
        fn nothing_in_a_recording_panics_its_reader(
            flips in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let mut recording = example("json").as_bytes().to_vec();
            for (at, byte) in flips {
                *at.get_mut(&mut recording[..]) = byte;
            }
            let (lines, ..) = read(&recording);
            prop_assert!(lines <= example("json").lines().count() + 8);
            crate::report::write_all(&recording);
        }
    }
}
