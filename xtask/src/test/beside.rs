//! What runs beside the rest: Bochs and each emulated host keep one processor busy.

use super::guests::Guests;
use super::kvm::Kvm;
use super::{say, vmx};
use anyhow::{Context as _, ensure};
use guest_kernels::DEFAULT_KERNEL;
use rustix::process::{Pid, Signal, kill_process};
use std::env;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tempfile::NamedTempFile;

/// The modules of the library's tests on real kernels that are run beside the others.
const BESIDE: [&str; 5] = ["detours::", "detoured_returns::", "regions::", "groups::", "returned_reads::"];

/// Words for the test program that choose the others.
pub(super) fn others() -> Vec<&'static str> {
    BESIDE.iter().flat_map(|module| ["--skip", module]).collect()
}

/// Runs what [`Beside`] has started.
pub(super) fn run(start: Instant, vmm: &Path) -> anyhow::Result<()> {
    vmx::run(vmm, &[&DEFAULT_KERNEL])?;
    Guests { start, vmm, kvm: Kvm::Emulated, kernel: &DEFAULT_KERNEL }.session(&BESIDE)
}

/// The tests on VMX and then those of [`BESIDE`], in a process of their own. They are stopped when this is dropped, for then something else has failed.
pub(super) struct Beside {
    tests: Child,
    printed: NamedTempFile,
}

impl Beside {
    pub(super) fn start(start: Instant) -> anyhow::Result<Self> {
        say(start, "beside what follows: Bochs, and what detours do in the emulated host");
        let printed = NamedTempFile::new().context("no temporary file")?;
        let output = printed.reopen()?;
        let mut tests = Command::new(env::current_exe().context("no name of this program")?);
        tests.args(["test", "--beside"]).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let tests = tests.spawn().with_context(|| format!("cannot run {tests:?}"))?;
        Ok(Self { tests, printed })
    }

    /// Waits for them and shows what they printed.
    pub(super) fn end(mut self, start: Instant) -> anyhow::Result<()> {
        say(start, "waiting for what runs beside");
        let status = self.tests.wait().context("cannot wait for what runs beside")?;
        print!("{}", String::from_utf8_lossy(&fs::read(&self.printed)?));
        ensure!(status.success(), "what ran beside: failed");
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if matches!(self.tests.try_wait(), Ok(None)) {
            // It may end at this moment, by itself.
            let _ = kill_process(Pid::from_child(&self.tests), Signal::TERM);
            let _ = self.tests.wait();
        }
    }
}
