//! Bochs: a machine with VMX that executes one instruction after the other, the same ones every time.
//!
//! A run is a list of commands. They and all they need are on a disc; the machine boots Debian's kernel from it with
//! `vmm` as the first process, which runs the commands one by one and powers the machine off. All that is printed
//! comes out of the serial port, which Bochs writes to a file.
//!
//! Time inside is not ours: the machine executes some 66 million instructions a second, and its kernel takes them
//! for a tenth of that time. So limits that count are on the outside.

mod disc;
mod machine;
mod serial;

pub(crate) use disc::file;

use anyhow::{Context as _, bail};
use guest_kernels::initramfs::ExtraFile;
use machine::Machine;
use serde::Serialize;
use serial::{Event, Serial};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A command that runs inside. The agent of the emulated host reads this form.
#[derive(Serialize)]
pub(crate) struct Entry {
    /// Names it in what is shown.
    pub(crate) name: &'static str,
    /// The program, `vmm` being the product, and its arguments.
    argv: Vec<String>,
    /// What is added to its environment.
    env: BTreeMap<&'static str, &'static str>,
    /// In seconds as the machine's kernel counts them.
    timeout: u64,
}

impl Entry {
    /// The command made of these words.
    pub(crate) fn new(name: &'static str, argv: &[&str]) -> Self {
        /// Half an hour outside: what hangs is noticed there first.
        const TIMEOUT: u64 = 200;
        let argv = argv.iter().map(|&word| word.to_owned()).collect();
        Self { name, argv, env: BTreeMap::new(), timeout: TIMEOUT }
    }

    /// Adds a variable to its environment.
    pub(crate) fn env(mut self, name: &'static str, value: &'static str) -> Self {
        self.env.insert(name, value);
        self
    }
}

/// What became of a command.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Its name.
    pub(crate) name: String,
    /// Its exit code, or what else ended it.
    pub(crate) exit: String,
    /// What it printed, the guest's console included.
    pub(crate) output: Vec<String>,
}

/// What goes on the disc.
pub(crate) struct Contents<'a> {
    /// The product.
    pub(crate) vmm: &'a Path,
    /// Files that the commands use.
    pub(crate) files: Vec<ExtraFile>,
    /// The commands.
    pub(crate) entries: Vec<Entry>,
}

/// Runs all commands in one boot of the machine; shows how far it is, in lines that begin with `vmx:`.
///
/// # Errors
/// When the machine cannot be made, does not boot, hangs, or ends before all commands have.
pub(crate) fn run(contents: Contents<'_>) -> anyhow::Result<Vec<Outcome>> {
    let progress = Progress { start: Instant::now() };
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    let expected = contents.entries.len();
    let directory =
        tempfile::Builder::new().prefix("vmm-bochs-").tempdir().context("no temporary directory")?;
    disc::build(directory.path(), contents).context("cannot build the disc for Bochs")?;
    progress.say("booting the machine");
    let mut machine = Machine::start(directory.path())?;
    let mut serial = Serial::default();
    let outcomes = follow(&mut machine, &mut serial, &progress, &interrupted);
    let outcomes = outcomes.with_context(|| format!("the last lines were:\n{}", serial.last_lines()))?;
    if outcomes.len() != expected {
        bail!("{} of {expected} commands were run inside Bochs:\n{}", outcomes.len(), serial.last_lines());
    }
    Ok(outcomes)
}

/// Reads what the machine prints until it has ended.
fn follow(
    machine: &mut Machine,
    serial: &mut Serial,
    progress: &Progress,
    interrupted: &AtomicBool,
) -> anyhow::Result<Vec<Outcome>> {
    /// Nothing takes this long but a machine that hangs.
    const PATIENCE: Duration = Duration::from_secs(30 * 60);
    /// Silence that deserves a word.
    const SILENCE: Duration = Duration::from_secs(30);
    const POLL: Duration = Duration::from_millis(100);
    let mut outcomes = Vec::new();
    let mut spoke = Instant::now();
    loop {
        // Before the output is read: what it printed last must not be lost.
        let ended = machine.has_ended()?;
        for event in serial.feed(&machine.read_serial()?) {
            spoke = Instant::now();
            match event {
                Event::Begin(name) => progress.say(&format!("{name}: begins")),
                Event::End(outcome) => {
                    progress.say(&format!("{}: exit {}", outcome.name, outcome.exit));
                    outcomes.push(outcome);
                }
                Event::Done => return Ok(outcomes),
            }
        }
        if ended {
            bail!("Bochs ended before its commands had:\n{}", machine.complaints());
        }
        if interrupted.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        if progress.start.elapsed() > PATIENCE {
            bail!("not done after {} s", PATIENCE.as_secs());
        }
        if spoke.elapsed() > SILENCE {
            spoke = Instant::now();
            progress.say(&format!("still at it: {}", serial.last_line()));
        }
        thread::sleep(POLL);
    }
}

/// Lines that say how far it is, with the seconds since the start.
struct Progress {
    start: Instant,
}

impl Progress {
    fn say(&self, line: &str) {
        println!("vmx: [{:5.1} s] {line}", self.start.elapsed().as_secs_f32());
    }
}
