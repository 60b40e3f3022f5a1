//! `vmm run --fail-nth`: each call of a function that a command makes fails once, one in each run.
//!
//! All runs are in one guest, by a process of its own that begins with a given call. Where the guest dies of a failure, or its
//! kernel reports something, another one goes on with the next call.

mod guest_runs;
mod steps;

pub(crate) use guest_runs::GuestRuns;
pub(crate) use steps::NthSteps;

use crate::args::Run;
use crate::exit_codes;
use crate::say::{is_quiet, note, say};
use crate::work::THIS_PROGRAM;
use anyhow::{Context, Result};
use guest_runs::{FailedCall, Finding};
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// So often a guest is begun again of which nothing is known.
const RETRIES: u32 = 2;

/// What all guests came to.
#[derive(Default)]
struct Total {
    guests: u32,
    failed: u64,
    findings: Vec<Finding>,
    /// The recording of the first guest with a finding.
    recording: Option<PathBuf>,
}

/// Runs guests until all calls have failed that the command makes.
pub(crate) fn main(run: &Run, definition: &str) -> Result<ExitCode> {
    let folder = tempfile::tempdir().context("cannot create a folder for recordings")?;
    let (mut total, mut from, mut retries) = (Total::default(), 1, 0);
    let code = loop {
        let recording = folder.path().join(format!("from-{from}-{retries}"));
        let code = guest(from, &recording)?;
        let Some(runs) = read(&recording)?.filter(|_| code != exit_codes::INFRASTRUCTURE) else {
            if code == exit_codes::INFRASTRUCTURE && retries < RETRIES {
                retries += 1;
                continue;
            }
            break code;
        };
        total.guests += 1;
        total.add(&runs, recording);
        match (runs.first_finding(), runs.failed.last()) {
            (Some(nth), _) => from = nth + 1,
            // It is none of a call that has failed.
            (None, _) if !runs.findings.is_empty() => break exit_codes::DIED,
            _ if runs.is_whole() => break 0,
            // It ended for another reason, which was said.
            (None, _) if code != 0 => break code,
            (None, Some(last)) => from = last.nth + 1,
            (None, None) => break exit_codes::INFRASTRUCTURE,
        }
    };
    if let (Some(output), Some(recording)) = (&run.records.output, &total.recording) {
        fs::copy(recording, output).with_context(|| format!("cannot write {}", output.display()))?;
    }
    if total.guests > 0 {
        total.say(definition);
    }
    Ok(ExitCode::from(match code {
        0 if !total.findings.is_empty() => exit_codes::DIED,
        0 if total.failed == 0 => exit_codes::UNARMED,
        code => code,
    }))
}

/// Runs one guest, from the call of that number on, by this same program and with the same words. Gives its exit code.
fn guest(from: u64, recording: &Path) -> Result<u8> {
    let mut words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let verb = words.iter().position(|word| word == "run").context("this is not `vmm run`")?;
    let mut own =
        vec![OsString::from(format!("--fail-from={from}")), "--fail-record".into(), recording.into()];
    if !is_quiet() {
        // What all guests came to is told at last.
        own.push("--quiet".into());
    }
    words.splice(verb + 1..verb + 1, own);
    let mut command = Command::new(THIS_PROGRAM);
    command.arg0("vmm").args(words);
    let status = command.status().context("cannot start this program once more")?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit_codes::INFRASTRUCTURE))
}

/// What the recording at `path` says, if it is one.
fn read(path: &Path) -> Result<Option<GuestRuns>> {
    let Ok(file) = File::open(path) else { return Ok(None) };
    if file.metadata().is_ok_and(|file| file.len() == 0) {
        return Ok(None);
    }
    Ok(Some(GuestRuns::read(BufReader::new(file)).context("a recording cannot be read")?))
}

impl Total {
    fn add(&mut self, runs: &GuestRuns, recording: PathBuf) {
        // What came after a finding is tried again.
        let until = runs.first_finding().unwrap_or(u64::MAX);
        if self.guests == 1
            && let Some(plain) = runs.plain
        {
            note(plain);
        }
        // The last run may have been there to see that there are no more calls.
        for call in runs.failed.iter().filter(|call| call.nth <= until && call.line.injected) {
            note(call);
            self.failed += 1;
        }
        let is_own = |finding: &&Finding| finding.nth.is_none_or(|nth| nth == until);
        let own: Vec<Finding> = runs.findings.iter().filter(is_own).cloned().collect();
        if self.findings.is_empty() {
            self.recording = Some(recording);
        }
        own.iter().for_each(say);
        self.findings.extend(own);
    }

    fn say(&self, definition: &str) {
        let Self { guests, failed, findings, .. } = self;
        let found = match &findings[..] {
            [] => "no failure was more than the command's".to_owned(),
            findings => format!("{} findings", findings.len()),
        };
        let guests = if *guests == 1 { "one guest".to_owned() } else { format!("{guests} guests") };
        say(format_args!(
            "{definition}: {failed} calls failed, one in each run, and none was missed; {found}; {guests}"
        ));
    }
}

impl fmt::Display for FailedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.callers {
            Some(callers) => write!(f, "call {} failed: {callers}; {}", self.nth, self.line.end()),
            None => fmt::Display::fmt(&self.line, f),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nth, callers, what } = self;
        match (nth, callers) {
            (Some(nth), Some(callers)) => write!(f, "after call {nth} had failed ({callers}): {what}"),
            _ => write!(f, "before any call had failed: {what}"),
        }
    }
}
