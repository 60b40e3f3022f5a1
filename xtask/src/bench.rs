//! `cargo xtask bench`: what things cost, in instructions, which Bochs executes one by one and counts, and as ratios of
//! times on this machine.

mod boots;
mod calls;
mod files;
mod goals;
mod guarded;
mod runs;

use crate::bochs::{self, Contents, Entry, Outcome};
use crate::setup;
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

/// The rows whose ratio says how far a hit is from the least that an exit can cost: that of the path that sessions use, and one
/// with nothing around it.
const EXIT: &str = "empty port exit";
const BARE: &str = "bare exit";
const HITS: [&str; 2] = ["trap hit, empty handler", "trap hit, empty post handler"];
/// What that ratio should be at most. It is shown, and fails nothing.
const GOAL: f64 = 1.15;
/// Where the figures are kept, in the workspace.
const RESULTS: &str = "target/bench.json";

/// Which rows.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only those of a command on the host's files, beside QEMU with virtiofsd
    #[arg(long, group = "only")]
    files: bool,
    /// Only those of boots, beside plain QEMU
    #[arg(long, group = "only")]
    boots: bool,
    /// Only those of a guarded guest, beside one without a guard
    #[arg(long, group = "only")]
    guard: bool,
    /// Only those of exits, counted in Bochs
    #[arg(long, group = "only")]
    exits: bool,
    /// Only those of samples, counted in Bochs
    #[arg(long, group = "only")]
    samples: bool,
    /// Only those of a system call in a Debian guest, probed in one way after the other: counted in Bochs
    #[arg(long, group = "only")]
    calls: bool,
}

/// Runs the benchmark and shows its rows.
///
/// # Errors
/// When it cannot be run, or takes more instructions than the goals allow.
pub(crate) fn run(options: &Options, vmm: &Path) -> anyhow::Result<()> {
    if options.files {
        return write(&files::rows(vmm)?);
    }
    if options.boots {
        return write(&boots::rows(vmm)?);
    }
    if options.guard {
        return write(&guarded::rows(vmm)?);
    }
    if options.calls {
        let entries = calls::entries().into();
        let outcomes = bochs::run(Contents { vmm, files: calls::files()?, entries })?;
        return write(&calls::rows(&outcomes)?);
    }
    let program = setup::build("tests", "bench")?;
    if options.exits || options.samples {
        let files = vec![bochs::file("bin/bench", 0o755, &program)?];
        let words: &[&str] = if options.samples { &["--samples"] } else { &[] };
        let entries = vec![Entry::new("bench", &[&["/bin/bench", "--json"], words].concat())];
        let outcomes = bochs::run(Contents { vmm, files, entries })?;
        let outcome = of(&outcomes, "bench")?;
        if options.samples {
            show(outcome);
            return Ok(());
        }
        return write(&exits(outcome)?);
    }
    let mut files = calls::files()?;
    files.push(bochs::file("bin/bench", 0o755, &program)?);
    let mut entries = vec![Entry::new("bench", &["/bin/bench", "--json"])];
    entries.extend(calls::entries());
    let outcomes = bochs::run(Contents { vmm, files, entries })?;
    let mut rows = exits(of(&outcomes, "bench")?)?;
    rows.extend(calls::rows(&outcomes)?);
    rows.extend(reflected(vmm, &program)?);
    rows.push(runs::start_up(vmm)?);
    rows.push(runs::every_function(vmm)?);
    rows.push(runs::exits(vmm)?);
    rows.extend(files::rows(vmm)?);
    rows.extend(boots::rows(vmm)?);
    rows.extend(guarded::rows(vmm)?);
    rows.extend(here("replay")?);
    rows.extend(here("counters")?);
    rows.extend(scan(vmm)?);
    write(&rows)?;
    goals::check(&rows)
}

/// What came of the command of this name, which has ended well.
fn of<'a>(outcomes: &'a [Outcome], name: &str) -> anyhow::Result<&'a Outcome> {
    let outcome = outcomes.iter().find(|outcome| outcome.name == name).context("nothing was run")?;
    let text = outcome.output.join("\n");
    ensure!(outcome.exit == "0", "{name} ended with {}:\n{text}", outcome.exit);
    Ok(outcome)
}

/// Shows what it printed for people.
fn show(outcome: &Outcome) {
    let lines = outcome.output.iter().filter(|line| !line.starts_with('{'));
    lines.for_each(|line| println!("bench: {line}"));
}

/// Keeps the rows for whoever compares them with those of another day.
fn write(rows: &[Value]) -> anyhow::Result<()> {
    let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(RESULTS);
    if let Some(directory) = results.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(&results, serde_json::to_vec_pretty(rows)?)
        .with_context(|| format!("cannot write {}", results.display()))?;
    println!("bench: written to {RESULTS}");
    Ok(())
}

/// The rows of micro guests: exits, and what costs none.
fn exits(outcome: &Outcome) -> anyhow::Result<Vec<Value>> {
    let rows: Vec<Value> = outcome.output.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    show(outcome);
    for (hit, ratio) in ratios(&rows, EXIT)? {
        println!("bench: {hit}: {ratio:.3} times an exit of ours");
    }
    for (hit, ratio) in ratios(&rows, BARE)? {
        println!("bench: {hit}: {ratio:.3} times a bare exit (goal: {GOAL} at most)");
    }
    Ok(rows)
}

/// By how much each hit is above such an `exit`, of the same run.
fn ratios(rows: &[Value], exit: &str) -> anyhow::Result<Vec<(&'static str, f64)>> {
    let exit = median(rows, exit).context("the benchmark printed no exits")?;
    let ratio = |hit| Ok((hit, median(rows, hit).context("the benchmark printed no hits")? / exit));
    HITS.into_iter().map(ratio).collect()
}

/// The same where breakpoints are not intercepted, but come back from the guest's own handler: in the emulated host, as
/// ratios of times.
fn reflected(vmm: &Path, program: &Path) -> anyhow::Result<Vec<Value>> {
    let output = Command::new(vmm).args(["host", "exec"]).arg(program).arg("--json").output();
    let output = output.context("cannot run vmm")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the benchmark did not end well in the emulated host:\n{text}");
    let rows: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let ratios = ratios(&rows, EXIT)?.into_iter();
    Ok(ratios
        .map(|(hit, ratio)| {
            println!("bench: {hit}, reflected: {ratio:.2} times an exit");
            json!({ "row": format!("{hit}, reflected"), "unit": "exits", "median": ratio })
        })
        .collect())
}

/// What a program of this name shows of how something scales with threads of this machine.
fn here(name: &str) -> anyhow::Result<Vec<Value>> {
    let program = setup::build("tests", name)?;
    let output = Command::new(program).arg("--json").output();
    let output = output.with_context(|| format!("cannot run {name}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{name} did not end well:\n{text}");
    text.lines().filter(|line| !line.starts_with('{')).for_each(|line| println!("bench: {line}"));
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

/// How long the world stands still for a look through RAM that a guest has touched: on this machine, for the sizes that it has
/// room for, and in the emulated host.
fn scan(vmm: &Path) -> anyhow::Result<Vec<Value>> {
    const MIB: [u64; 3] = [1 << 10, 4 << 10, 16 << 10];
    let program = setup::build("tests", "scan")?;
    let available = available_mib()?;
    let (fitting, too_large): (Vec<u64>, Vec<u64>) = MIB.into_iter().partition(|mib| mib + 1024 <= available);
    for mib in too_large {
        println!("bench: skipped: a look through {mib} MiB: this machine has {available} MiB left");
    }
    let mut here = Command::new(&program);
    here.args(fitting.iter().map(u64::to_string));
    let mut inside = Command::new(vmm);
    inside.args(["host", "exec"]).arg(&program).arg("1024");
    let mut rows = Vec::new();
    for (place, mut command) in [("", here), (", in the emulated host", inside)] {
        let output = command.arg("--json").output().context("cannot run the look through RAM")?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "the look through RAM did not end well:\n{text}");
        for line in text.lines() {
            match serde_json::from_str::<Value>(line) {
                Ok(mut row) => {
                    let name = row.get_mut("row").context("a row has no name")?;
                    *name = format!("{}{place}", name.as_str().unwrap_or_default()).into();
                    rows.push(row);
                }
                Err(_) => println!("bench: {line}{place}"),
            }
        }
    }
    Ok(rows)
}

/// How much memory can be had without swapping, in MiB (proc(5), `MemAvailable`).
fn available_mib() -> anyhow::Result<u64> {
    let text = fs::read_to_string("/proc/meminfo").context("cannot read /proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    Ok(kib.context("/proc/meminfo does not say how much memory is available")? / 1024)
}

fn median(rows: &[Value], name: &str) -> Option<f64> {
    let row = rows.iter().find(|row| row.get("row").is_some_and(|row| row == name))?;
    row.get("median")?.as_f64()
}
