//! `cargo xtask bench`: what things cost, in instructions, which Bochs executes one by one and counts.

use crate::bochs::{self, Contents, Entry};
use crate::setup;
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The rows whose ratio says how far a hit is from the least that an exit can cost.
const EXIT: &str = "empty port exit";
const HIT: &str = "trap hit, empty handler";
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
    let rows: Vec<Value> = outcome.output.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for line in outcome.output.iter().filter(|line| !line.starts_with('{')) {
        println!("bench: {line}");
    }
    let (exit, hit) =
        median(&rows, EXIT).zip(median(&rows, HIT)).context("the benchmark printed no figures")?;
    println!("bench: a hit costs {:.3} exits (goal: {GOAL} at most)", hit / exit);
    let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(RESULTS);
    if let Some(directory) = results.parent() {
        fs::create_dir_all(directory)?;
    }
    fs::write(&results, serde_json::to_vec_pretty(&rows)?)
        .with_context(|| format!("cannot write {}", results.display()))?;
    println!("bench: written to {RESULTS}");
    Ok(())
}

fn median(rows: &[Value], name: &str) -> Option<f64> {
    let row = rows.iter().find(|row| row.get("row").is_some_and(|row| row == name))?;
    row.get("median")?.as_f64()
}
