//! A recording as `vmm run` has shown it: hits, histograms, counts, and the table. One of `vmm coverage` as that has shown it.

use super::ReportError;
use super::harmless::Harmless;
use crate::output::{FunctionText, PrefixTable, Text, Top, begin_histogram, counts, end_histogram, table};
use crate::record::{Line, ProbeEnd, Reader, Recorded};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};

pub(super) fn write(recording: &mut Reader<impl BufRead>, out: &mut dyn Write) -> Result<(), ReportError> {
    let mut out = Harmless::new(out);
    let (mut text, mut ends) = (Text::default(), BTreeMap::<u32, ProbeEnd>::new());
    let mut prefixes = PrefixTable::default();
    let (mut top, mut sampled) = (Top::default(), None);
    // The histogram whose entries are being written.
    let mut histogram: Option<String> = None;
    let written = loop {
        let line = match recording.next() {
            Ok(Some(line)) => line,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        };
        match line {
            Line::Hit(hit) => {
                let Some(probe) = recording.probe(hit.event.probe.0) else { continue };
                let fields = probe.fields.iter().map(|field| {
                    let value = hit.fields.get(&field.name);
                    (field.name.as_str(), Recorded { shape: &field.shape, value })
                });
                text.hit(&mut out, (&hit.event, probe), fields, hit.stack.as_ref())?;
            }
            Line::Sample(sample) => top.add(&sample),
            Line::Sampled(all) => sampled = Some(all),
            Line::Hold(hold) => write!(out, "{hold}")?,
            Line::Finding(finding) => write!(out, "{finding}")?,
            Line::Guard(guard) => writeln!(out, "{guard}")?,
            Line::ScanFinding(finding) => writeln!(out, "{finding}")?,
            Line::ScanCheck(check) if check.is_silent() => {}
            Line::ScanCheck(check) => writeln!(out, "{check}")?,
            Line::Dropped(file) => writeln!(out, "{file}")?,
            Line::DroppedEnd(end) => writeln!(out, "{end}")?,
            Line::Runs(runs) => {
                if let Some(failed) = runs.failed() {
                    writeln!(out, "{failed}")?;
                }
            }
            Line::Gate(gate) => writeln!(out, "{gate}")?,
            Line::Order(order) => writeln!(out, "{order}")?,
            Line::Nth(run) => writeln!(out, "{run}")?,
            Line::Injection(end) => writeln!(out, "{end}")?,
            Line::Function(function) => writeln!(out, "{}", FunctionText(&function))?,
            Line::Entry(entry) => {
                text.finish(&mut out)?;
                if histogram.as_ref() != Some(&entry.histogram) {
                    let definition = recording.histogram(&entry.histogram).unwrap_or_default();
                    begin_histogram(&mut out, &entry.histogram, definition)?;
                    histogram = Some(entry.histogram);
                }
                writeln!(out, "{}", entry.text)?;
            }
            Line::Histogram(end) => {
                text.finish(&mut out)?;
                if histogram.take().as_ref() != Some(&end.histogram) {
                    begin_histogram(&mut out, &end.histogram, &end.definition)?;
                }
                end_histogram(&mut out, end.hits, end.entries, end.dropped)?;
            }
            Line::Probe(end) => {
                // So there are no more of them than of probes.
                if recording.probe(end.id).is_some() {
                    ends.insert(end.id, end);
                }
            }
            Line::Prefix(prefix) => prefixes.push(prefix),
            Line::Splat(splat) => {
                text.finish(&mut out)?;
                writeln!(out, "{splat}")?;
            }
            Line::Registered | Line::End | Line::Unknown => {}
        }
    };
    text.finish(&mut out)?;
    let is_count = |end: &&ProbeEnd| recording.probe(end.id).is_some_and(|probe| probe.is_only_counted());
    let (counted, mut others): (Vec<_>, Vec<_>) = ends.values().partition(is_count);
    let is_of_rule = |id| recording.probe(id).is_some_and(|probe| probe.rule.is_some());
    others.retain(|end| !end.is_quiet() || !is_of_rule(end.id));
    out.write_all(counts(&counted).as_bytes())?;
    if !top.is_empty() {
        write!(out, "{top}")?;
    }
    if let Some(sampled) = sampled {
        write!(out, "{sampled}")?;
    }
    if !others.is_empty() {
        out.write_all(table(&others).as_bytes())?;
    }
    if !prefixes.is_empty() {
        write!(out, "{prefixes}")?;
    }
    out.flush()?;
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;

    #[test]
    fn the_example_of_the_docs_is_shown_as_they_say() {
        let mut recording = Reader::open(example("json").as_bytes()).unwrap();
        let mut out = Vec::new();
        write(&mut recording, &mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), example("text"));
    }
}
