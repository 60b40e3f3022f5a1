//! `vmm race`: a command in both orders of two places, a guest for each.

mod forced;
mod told;
mod verdict;

use crate::args::{Race, RaceOrder, word};
use crate::ending_signals::ending_signals;
use crate::exit_codes::USAGE;
use crate::listing::list;
use crate::run;
use crate::work::THIS_PROGRAM;
use anyhow::{Context, Result, bail};
use forced::{ForcedOrder, ForcedRuns};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use verdict::RaceVerdict;

/// How often is looked whether a process has ended.
const TICK: Duration = Duration::from_millis(20);

pub(crate) fn main(race: Race) -> Result<ExitCode> {
    if !race.has_command() {
        bail!("what is to be run in both orders? write it behind --, as in: vmm race --between A,B -- CMD");
    }
    match (race.order, &race.output) {
        (Some(order), Some(folder)) => {
            let path = folder.join(word(&order));
            run::main(&race.forcing(order, path))
        }
        _ => both(&race),
    }
}

/// Runs a guest for each order, and says what came of them.
fn both(race: &Race) -> Result<ExitCode> {
    let (is_over, signal) = ending_signals()?;
    let passing = tempfile::tempdir().context("cannot create a folder for what is recorded")?;
    let folder = race.output.as_deref().unwrap_or(passing.path());
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut orders = Vec::new();
    for order in [RaceOrder::Ab, RaceOrder::Ba] {
        let code = forced(race, order, folder, &is_over)?;
        if let signal @ 1.. = signal.load(Ordering::Relaxed) {
            return Ok(ExitCode::from(128u8.wrapping_add(signal as u8)));
        }
        // Why was said, and the other order comes no further.
        if code == USAGE {
            return Ok(ExitCode::from(USAGE));
        }
        let forced =
            ForcedOrder::of(&race.between, order, ForcedRuns::read(&folder.join(word(&order)), code)?);
        list(|out| told::order(out, &forced))?;
        orders.push(forced);
    }
    let verdict = RaceVerdict::of(&orders);
    list(|out| writeln!(out, "{verdict}"))?;
    Ok(ExitCode::from(verdict.code))
}

/// Runs the guest of one order by this same program, with the same words, and gives its exit code.
fn forced(race: &Race, order: RaceOrder, folder: &Path, is_over: &AtomicBool) -> Result<u8> {
    // An earlier run may have left one.
    let _ = fs::remove_file(folder.join(word(&order)));
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    let (before, after) = words.split_at(words.iter().position(|word| word == "race").map_or(0, |at| at + 1));
    let mut command = Command::new(THIS_PROGRAM);
    // Of what a run says, errors are left: all else is told here.
    command.arg0("vmm").args(before).arg("--quiet").arg("--order").arg(word(&order));
    if race.output.is_none() {
        command.arg("--output").arg(folder);
    }
    // Standard output is for what came of the orders.
    let stderr = io::stderr().as_fd().try_clone_to_owned().context("cannot share standard error")?;
    command.args(after).stdin(Stdio::null()).stdout(stderr);
    let mut child = command.spawn().context("cannot start this program once more")?;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for a process")? {
            let signal = status.signal().map(|signal| 128u8.wrapping_add(signal as u8));
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(code.or(signal).unwrap_or(u8::MAX));
        }
        if is_over.load(Ordering::Relaxed) {
            child.kill().context("cannot end a process")?;
        }
        thread::sleep(TICK);
    }
}
