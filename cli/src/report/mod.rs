//! `vmm report`: a recording in the forms in which people and other programs want it.

mod detections;
mod harmless;
mod html;
mod json;
mod ocsf;
mod otlp;
mod perfetto;
mod pprof;
mod stacked;
mod stacks;
mod text;

pub(crate) use html::{STYLE, hash};

use self::otlp::{Delivery, WhenFull};
use crate::args::{Endpoint, Report, ReportFormat};
use crate::ending_signals::only_the_second_ends;
use crate::exit_codes;
use crate::file::{self, NewFile};
use crate::listing::list;
use crate::mistake::{self, Written};
use crate::record::{Filter, ReadError, Reader};
use crate::say::{note, say};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

/// How much of a recording is read at a time, in bytes.
const CHUNK: usize = 1 << 20;

/// Why a report is not written, or not to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReportError {
    /// What was read before it is written.
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the report cannot be written")]
    Write(#[from] io::Error),
    /// There is nothing to show.
    #[error("it has no {0}")]
    Nothing(&'static str),
}

pub(crate) fn main(args: &Report) -> Result<ExitCode> {
    let name = args.recording.display();
    if args.to.is_some() {
        if args.format != ReportFormat::Otlp {
            bail!("--to goes with --format otlp");
        }
        only_the_second_ends()?;
    }
    let input = input(&args.recording).with_context(|| format!("cannot read {name}"))?;
    let mut recording = Reader::open(BufReader::with_capacity(CHUNK, &input))
        .with_context(|| format!("cannot show {name}"))?;
    let written = args.filter.as_deref().map(|text| Written { text, name: "--filter", line: 1 });
    if let Some(written) = &written {
        recording.filter(Filter::parse(written.text).map_err(|error| mistake::in_text(written, &error))?);
    }
    let is_binary = matches!(args.format, ReportFormat::Perfetto | ReportFormat::Pprof);
    if is_binary && args.output.is_none() && io::stdout().is_terminal() {
        bail!("this format is no text for a terminal: name a file with --output");
    }
    // Whoever reads what is written may have gone before its end.
    let (mut failed, mut is_written) = (None, false);
    let mut write = |out: &mut dyn Write| match write(args.format, &mut recording, out) {
        Ok(()) => {
            is_written = true;
            Ok(())
        }
        Err(ReportError::Write(error)) => Err(error),
        Err(error) => {
            failed = Some(error);
            Ok(())
        }
    };
    let mut code = ExitCode::SUCCESS;
    match (&args.to, &args.output) {
        (Some(endpoint), _) => {
            // A file waits for a slow receiver; at a pipe's other end is a guest.
            let is_file = input.metadata().is_ok_and(|input| input.is_file());
            let when_full = if is_file { WhenFull::Wait } else { WhenFull::Lose };
            let (read, delivery) = otlp::send(&mut recording, endpoint, when_full);
            (failed, is_written) = (read.err(), true);
            code = told(&delivery, endpoint);
        }
        (None, None) => list(write)?,
        (None, Some(path)) => {
            let new = NewFile::begin(path, &input)?;
            let mut out = BufWriter::new(new.file());
            let written = write(&mut out).and_then(|()| out.flush());
            drop(out);
            // Nothing to show is no report, and neither is what a mistaken filter leaves.
            let written = written.and_then(|()| match failed {
                Some(ReportError::Nothing(_)) => Ok(()),
                _ if recording.filter_failure().is_some() => Ok(()),
                _ => new.finish(),
            });
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    if let Some(written) = &written {
        if let Some(error) = recording.filter_failure() {
            return Err(mistake::in_text(written, error));
        }
        if recording.probes().next().is_none() {
            bail!("{name} has no hits from which {} could choose", written.name);
        }
    }
    match failed {
        Some(error @ ReportError::Read(_)) => {
            return Err(error).with_context(|| format!("{name} is shown up to what is damaged"));
        }
        Some(error) => return Err(error).with_context(|| format!("cannot show {name}")),
        None if is_written && recording.is_cut() => {
            say(format_args!("{name} is cut: it ends before the run did"))
        }
        None => {}
    }
    if let Some(path) = &args.output {
        file::note_written("the report", path);
    }
    Ok(code)
}

/// Says what has come of the events that were sent to `endpoint`, and what the program ends with.
fn told(delivery: &Delivery, endpoint: &Endpoint) -> ExitCode {
    let Delivery { delivered, lost, why } = delivery;
    if *lost == 0 {
        note(format_args!("{delivered} events were delivered to {endpoint}"));
        return ExitCode::SUCCESS;
    }
    let why = why.as_deref().unwrap_or("it takes them too slowly");
    say(format_args!("{lost} of {} events were not delivered to {endpoint}: {why}", delivered + lost));
    ExitCode::from(exit_codes::INFRASTRUCTURE)
}

/// Writes what is left of `recording`, whatever it is, in all forms.
#[cfg(test)]
pub(crate) fn write_all(recording: &[u8]) {
    use clap::ValueEnum;
    for format in ReportFormat::value_variants() {
        if let Ok(mut recording) = Reader::open(recording) {
            let _ = write(*format, &mut recording, &mut io::sink());
        }
    }
}

/// Opens the recording.
fn input(path: &Path) -> io::Result<File> {
    match path == Path::new("-") {
        true => Ok(io::stdin().as_fd().try_clone_to_owned()?.into()),
        false => File::open(path),
    }
}

/// Writes `recording` as `format`, as far as it can be read.
fn write(
    format: ReportFormat,
    recording: &mut Reader<impl BufRead>,
    out: &mut dyn Write,
) -> Result<(), ReportError> {
    match format {
        ReportFormat::Text => text::write(recording, out),
        ReportFormat::Json => json::write(recording, out),
        ReportFormat::Folded => stacks::write_folded(recording, out),
        ReportFormat::Svg => stacks::write_svg(recording, out),
        ReportFormat::Pprof => pprof::write(recording, out),
        ReportFormat::Perfetto => perfetto::write(recording, out),
        ReportFormat::Ocsf => ocsf::write(recording, out),
        ReportFormat::Otlp => otlp::write(recording, out),
        ReportFormat::Html => html::write(recording, out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;
    use clap::ValueEnum;
    use std::fs;

    /// What a recording is as `format`, and whether all of it was read.
    fn report(recording: &str, format: ReportFormat) -> (Vec<u8>, bool) {
        let mut recording = Reader::open(recording.as_bytes()).unwrap();
        let mut out = Vec::new();
        match write(format, &mut recording, &mut out) {
            Ok(()) | Err(ReportError::Nothing(_)) => {}
            Err(error) => panic!("{error}"),
        }
        (out, !recording.is_cut())
    }

    #[test]
    fn a_report_takes_the_place_of_no_recording_and_comes_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let (recording, report) = (folder.path().join("hits.json"), folder.path().join("report"));
        fs::write(&recording, example("json")).unwrap();
        let write = |format, output: &Path| {
            let output = Some(output.to_owned());
            main(&Report { recording: recording.clone(), format, filter: None, output, to: None })
        };
        let error = write(ReportFormat::Text, &recording).unwrap_err();
        assert!(error.to_string().ends_with("is the recording itself: name another file with --output"));
        assert_eq!(fs::read_to_string(&recording).unwrap(), example("json"));
        write(ReportFormat::Text, &report).unwrap();
        assert!(fs::read_to_string(&report).unwrap().starts_with('['));
        let first = example("json").split_inclusive('\n').next().unwrap();
        fs::write(&recording, first).unwrap();
        write(ReportFormat::Svg, &report).unwrap_err();
        assert!(fs::read_to_string(&report).unwrap().starts_with('['));
    }

    #[test]
    fn what_a_recording_repeats_has_an_end_in_every_form() {
        // Each field shows the same value.
        let field = "{\"name\":\"filename\",\"type\":\"string\",\"shape\":\"Text\"}";
        let fields = vec![field; 1000].join(",");
        let value = format!("\"filename\":\"{}\"", "x".repeat(1 << 20));
        let recording =
            example("json").replace(field, &fields).replace("\"filename\":\"/etc/passwd\"", &value);
        for format in [ReportFormat::Text, ReportFormat::Perfetto, ReportFormat::Html] {
            let (shown, is_whole) = report(&recording, format);
            assert!(is_whole && shown.len() < 400_000, "{}", shown.len());
        }
        let (text, _) = report(&recording, ReportFormat::Text);
        assert!(String::from_utf8(text).unwrap().contains("xxx...)\n"));
    }

    #[test]
    fn columns_and_counts_have_ends() {
        let name = format!(
            "\"probe\":\"{}\",\"kind\":\"k\",\"module\":null,\"address\":\"0xffffffff9b442060\"",
            "a".repeat(70_000)
        );
        let most = u64::MAX;
        let recording = example("json")
            .replace("\"probe\":\"do_sys_openat2\",\"kind\":\"k\",\"module\":null,\"address\":\"0xffffffff9b442060\"", &name)
            .replace("\"hits\":5,\"outside\":30", &format!("\"hits\":{most},\"outside\":{most}"))
            .replace("\"shown\":true", "\"shown\":false");
        for format in ReportFormat::value_variants() {
            assert!(report(&recording, *format).1);
        }
        let (text, _) = report(&recording, ReportFormat::Text);
        assert!(text.split(|byte| *byte == b'\n').all(|line| line.len() < 5000));
    }

    /// A recording that has something for each format.
    fn all() -> String {
        let finding = example("jsonl finding").lines().nth(1).unwrap();
        example("json").replace("{\"type\":\"end\"", &format!("{finding}\n{{\"type\":\"end\""))
    }

    #[test]
    fn a_recording_that_was_cut_anywhere_is_shown_to_its_last_whole_line() {
        let whole = all();
        for format in ReportFormat::value_variants() {
            let mut lines = 0;
            let mut expected = Vec::new();
            // What ends within the first line is no recording.
            for cut in whole.find('\n').unwrap() + 1..=whole.len() {
                let is_line = whole[..cut].ends_with('\n');
                let (shown, is_whole) = report(&whole[..cut], *format);
                if is_line {
                    (lines, expected) = (lines + 1, shown.clone());
                }
                assert!(shown == expected, "cut at {cut}, after {lines} lines");
                assert_eq!(is_whole, cut == whole.len(), "cut at {cut}");
            }
            assert_eq!(lines, whole.lines().count());
            assert!(!expected.is_empty());
        }
    }
    #[test]
    fn names_of_any_length_are_shown() {
        let long = all().replace("vfs_read%return", &"x".repeat(100_000));
        let prefix =
            format!("{{\"type\":\"prefix\",\"prefix\":\"{}\",\"ran\":1,\"armed\":1}}\n", "x".repeat(100_000));
        for format in ReportFormat::value_variants() {
            let (shown, is_whole) = report(&(long.clone() + &prefix), *format);
            assert!(is_whole && !shown.is_empty());
        }
    }
}
