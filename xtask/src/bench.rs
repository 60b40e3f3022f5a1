//! `cargo xtask bench`: what things cost, in instructions, which Bochs executes one by one and counts.

use crate::bochs::{self, Contents, Entry};
use crate::setup;
use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The rows whose ratio says how far a hit is from the least that an exit can cost.
const EXIT: &str = "empty port exit";
const HIT: &str = "trap hit, empty handler";
/// The rows of hits without an exit, and how many instructions each should be at most.
const DETOURS: [(&str, f64); 2] = [("detour, count", 15.0), ("detour, record", 80.0)];
/// The row of the one figure that is a time.
const START: &str = "vmm run to the guest's start";
/// What that ratio should be at most.
const GOAL: f64 = 1.15;
/// Where the figures are kept, in the workspace.
const RESULTS: &str = "target/bench.json";

/// Runs the benchmark and shows its rows.
///
/// # Errors
/// When it cannot be run.
pub(crate) fn run(vmm: &Path) -> anyhow::Result<()> {
    let program = setup::build("tests", "bench")?;
    let files = vec![bochs::file("bin/bench", 0o755, &program)?];
    let entries = vec![Entry::new("bench", &["/bin/bench", "--json"])];
    let outcomes = bochs::run(Contents { vmm, files, entries })?;
    let outcome = outcomes.first().context("nothing was run")?;
    let text = outcome.output.join("\n");
    ensure!(outcome.exit == "0", "the benchmark ended with {}:\n{text}", outcome.exit);
    let mut rows: Vec<Value> =
        outcome.output.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for line in outcome.output.iter().filter(|line| !line.starts_with('{')) {
        println!("bench: {line}");
    }
    let (exit, hit) =
        median(&rows, EXIT).zip(median(&rows, HIT)).context("the benchmark printed no figures")?;
    println!("bench: a hit costs {:.3} exits (goal: {GOAL} at most)", hit / exit);
    for (row, goal) in DETOURS {
        // The loop around it is two instructions of these.
        let cost = median(&rows, row).context("the benchmark printed no detour")? - 2.0;
        println!("bench: {row}: {cost} instructions (goal: {goal} at most)");
    }
    let start = start_up(vmm)?;
    println!("bench: {START}: {start} ms (goal: 2000 at most)");
    rows.push(json!({ "row": START, "unit": "ms", "median": start }));
    rows.extend(replay()?);
    let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(RESULTS);
    if let Some(directory) = results.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(&results, serde_json::to_vec_pretty(&rows)?)
        .with_context(|| format!("cannot write {}", results.display()))?;
    println!("bench: written to {RESULTS}");
    Ok(())
}

/// How long it takes, in milliseconds, from the start of `vmm run` on this machine to the start of its guest: the
/// median of several runs. A hit's own time, which counts from there, is taken off the time at which it arrives.
fn start_up(vmm: &Path) -> anyhow::Result<u128> {
    const RUNS: usize = 5;
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let begun = Instant::now();
        let mut child = Command::new(vmm)
            .args(["run", "--format=json", "--probe=rest_init", "--cmdline=workload=poweroff"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run vmm")?;
        let said = BufReader::new(child.stderr.take().context("vmm has no output")?);
        let mut lines = said.lines().map_while(Result::ok);
        let since_start = lines.find_map(|line| {
            let hit: Value = serde_json::from_str(&line).ok()?;
            Some(Duration::from_nanos(hit.get("time_ns")?.as_u64()?))
        });
        let arrived = begun.elapsed();
        lines.for_each(drop);
        ensure!(child.wait()?.success(), "vmm run did not end well");
        times.push(arrived.saturating_sub(since_start.context("the guest was not seen to start")?));
    }
    times.sort();
    Ok(times.get(RUNS / 2).map_or(0, |time| time.as_millis()))
}

/// How the engine's part of a hit scales with threads of this machine.
fn replay() -> anyhow::Result<Vec<Value>> {
    let program = setup::build("tests", "replay")?;
    let output = Command::new(program).arg("--json").output().context("cannot run the replay")?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter(|line| !line.starts_with('{')).for_each(|line| println!("bench: {line}"));
    Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
}

fn median(rows: &[Value], name: &str) -> Option<f64> {
    let row = rows.iter().find(|row| row.get("row").is_some_and(|row| row == name))?;
    row.get("median")?.as_f64()
}
