//! Runs a case in a process of its own, by this same program: cases cannot harm each other, nor whoever judges them.

use super::case_run::{CaseRun, Readiness};
use super::judge::{Judged, judge};
use super::judgement::Judgement;
use super::observed::{Observed, ProcessEnd, RecordedRun};
use crate::fail_nth::GuestRuns;
use crate::file;
use crate::splats::AllowEntry;
use crate::work::THIS_PROGRAM;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Where and how all cases of a run are run.
pub(crate) struct Bench {
    /// The file's folder, where their commands begin.
    pub(crate) here: PathBuf,
    /// Where each has a folder for what it leaves.
    pub(crate) results: PathBuf,
    pub(crate) is_emulated: bool,
    pub(crate) kvm_device: PathBuf,
    /// Whether no more is to be run.
    pub(crate) is_over: Arc<AtomicBool>,
}

/// What a process ends its guest after its time takes, and what it takes to begin: only one that hangs takes longer.
const GRACE: Duration = Duration::from_secs(180);
/// How often is looked whether a process has ended.
const TICK: Duration = Duration::from_millis(20);
/// So much of a text is judged, in bytes.
const MOST_TEXT: u64 = 16 << 20;

impl Bench {
    /// Runs it and judges it.
    pub(crate) fn judged(&self, run: &CaseRun<'_>) -> Judged {
        match &run.ready {
            Readiness::Lacking(reason) => Judgement::Skipped(reason.clone()).into(),
            Readiness::NoKernel(reason) => Judgement::Infrastructure(reason.clone()).into(),
            Readiness::Ready(counts) => match self.observed(run, counts) {
                Ok(observed) => judge(run.case, counts, &observed),
                Err(error) => Judgement::Infrastructure(format!("{error:#}")).into(),
            },
        }
    }

    /// The same, and once more up to `retries` times where it could not be run. Says how often it was run.
    pub(crate) fn judged_at_last(&self, run: &CaseRun<'_>, retries: u32) -> (Judged, u32) {
        let mut attempts = 1;
        loop {
            let judged = self.judged(run);
            let is_lost = matches!(judged.judgement, Judgement::Infrastructure(_));
            let can_repeat =
                matches!(run.ready, Readiness::Ready(_)) && !self.is_over.load(Ordering::Relaxed);
            if !is_lost || !can_repeat || attempts > retries {
                return (judged, attempts);
            }
            attempts += 1;
        }
    }

    fn observed(&self, run: &CaseRun<'_>, counts: &[u32]) -> Result<Observed> {
        if self.is_over.load(Ordering::Relaxed) {
            bail!("it was not begun: the run was to end");
        }
        let folder = self.results.join(run.folder());
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let at = |name: &str| folder.join(name);
        let (recording, console) = (at("recording.json"), at("console"));
        let (stdout, stderr) = (at("stdout"), at("stderr"));
        // An earlier run may have left these.
        for old in [&recording, &console] {
            let _ = fs::remove_file(old);
        }
        let limit = run.limit(self.is_emulated);
        let mut command = Command::new(THIS_PROGRAM);
        command.arg0("vmm").arg("run").arg("--output").arg(&recording).arg("--console").arg(&console);
        command.arg(format!("--timeout={limit}"));
        command.arg(format!("--host={}", if self.is_emulated { "emulated" } else { "kvm" }));
        command.arg("--kvm-device").arg(&self.kvm_device);
        command.current_dir(&self.here).stdin(Stdio::null());
        command.stdout(file::create(&stdout)?).stderr(file::create(&stderr)?);
        if !run.suite.splats.allow.is_empty() {
            let allowed = at("allowed-splats.toml");
            let entries: Vec<String> =
                run.suite.splats.allow.iter().map(AllowEntry::to_toml).collect::<Result<_>>()?;
            fs::write(&allowed, entries.concat())
                .with_context(|| format!("cannot write {}", allowed.display()))?;
            command.arg("--allow-splats").arg(allowed);
        }
        command.args(run.words());
        let child = command.spawn().context("cannot start this program once more")?;
        let ended = self.end_of(child, Duration::from_secs(limit).saturating_add(GRACE))?;
        // A process that was not to run its guest has none.
        let console = if console.exists() { text(&console)? } else { String::new() };
        let (stdout, said) = (text(&stdout)?, text(&stderr)?);
        Ok(Observed { ended, said, console, stdout, recording: recorded(run, counts, &recording)? })
    }

    /// Waits for a process, no longer than `limit`.
    fn end_of(&self, mut child: Child, limit: Duration) -> Result<ProcessEnd> {
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().context("cannot wait for a process")? {
                return Ok(of_status(status));
            }
            let is_over = self.is_over.load(Ordering::Relaxed);
            if is_over || begun.elapsed() > limit {
                child.kill().context("cannot end a process")?;
                let status = child.wait().context("cannot wait for a process")?;
                return Ok(if is_over { of_status(status) } else { ProcessEnd::Overdue });
            }
            thread::sleep(TICK);
        }
    }
}

fn of_status(status: ExitStatus) -> ProcessEnd {
    match (status.code().map(u8::try_from), status.signal()) {
        (Some(Ok(code)), _) => ProcessEnd::Code(code),
        (_, signal) => ProcessEnd::Signal(signal.unwrap_or_default()),
    }
}

/// What was recorded. A process that has not begun to record leaves nothing, which is judged by its end.
fn recorded(run: &CaseRun<'_>, counts: &[u32], path: &Path) -> Result<RecordedRun> {
    let Ok(file) = File::open(path) else { return Ok(RecordedRun::default()) };
    if file.metadata().is_ok_and(|file| file.len() == 0) {
        return Ok(RecordedRun::default());
    }
    let has_values = |id: u32| {
        let mut begin = 0u32;
        run.case.probes.iter().zip(counts).any(|(probe, count)| {
            let end = begin.saturating_add(*count);
            let is_its = (begin..end).contains(&id);
            begin = end;
            is_its && probe.has_values()
        })
    };
    let damaged = "its recording cannot be read";
    let recorded = RecordedRun::read(BufReader::new(file), has_values).context(damaged)?;
    let runs = || -> Result<_> { Ok(GuestRuns::read(BufReader::new(File::open(path)?))?) };
    let nth = run.case.fail_nth.as_ref().map(|_| runs()).transpose().context(damaged)?;
    Ok(RecordedRun { nth, ..recorded })
}

/// What a process has written, as far as it is judged.
fn text(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    file.take(MOST_TEXT)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
