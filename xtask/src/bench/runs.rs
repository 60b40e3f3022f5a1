//! Whole runs of the product on this machine, as a user has them: their times are compared with each other.

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How often each is run.
const RUNS: usize = 3;

/// How long it takes, in milliseconds, from the start of `vmm run` on this machine to the start of its guest: the
/// median of several runs. A hit's own time, which counts from there, is taken off the time at which it arrives.
pub(super) fn start_up(vmm: &Path) -> anyhow::Result<Value> {
    const RUNS: usize = 5;
    let mut times = Vec::new();
    for _ in 0..RUNS {
        let begun = Instant::now();
        let mut child = Command::new(vmm)
            .args(["run", "--format=json", "--probe=rest_init", "--cmdline=workload=poweroff"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run vmm")?;
        let said = BufReader::new(child.stdout.take().context("vmm has no output")?);
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
    let median = times.get(RUNS / 2).map_or(0, |time| time.as_millis());
    println!("bench: vmm run to the guest's start: {median} ms (goal: 2000 at most)");
    Ok(json!({ "row": "vmm run to the guest's start", "unit": "ms", "median": median }))
}

/// How much longer a guest takes for its boot and its workload when every function is counted that ftrace knows. The times
/// are the guest's own, from its start to its end, and what it stands still while all is armed is in them.
pub(super) fn every_function(vmm: &Path) -> anyhow::Result<Value> {
    const WORKLOAD: &str = "--cmdline=workload=open:200,getppid:1000,fork:20,pipe:200";
    let seconds = |words: &[&str]| -> anyhow::Result<Vec<f64>> {
        let times = (0..RUNS).map(|_| power_down(&run(vmm, words)?.console));
        let mut times = times.collect::<anyhow::Result<Vec<f64>>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times)
    };
    let (without, with) = (seconds(&[WORKLOAD])?, seconds(&["--count=*", WORKLOAD])?);
    let ratio = with.get(RUNS / 2).zip(without.get(RUNS / 2)).map_or(0.0, |(with, without)| with / without);
    println!(
        "bench: every function counted: boot and workload take {ratio:.2} times as long (goal: 2.5 at most)"
    );
    Ok(json!({
        "row": "every function counted, boot and workload", "unit": "ratio", "median": ratio,
        "seconds without": without, "seconds with": with,
    }))
}

/// How often CPUs leave the guest in all for N calls of a counted function and for ten times as many.
pub(super) fn exits(vmm: &Path) -> anyhow::Result<Value> {
    const N: u64 = 10_000;
    let exits = |calls: u64| -> anyhow::Result<Vec<u64>> {
        let words = ["--count=__x64_sys_getppid", &format!("--cmdline=workload=getppid:{calls}")];
        let exits = (0..RUNS).map(|_| run(vmm, &words)?.exits.context("this KVM does not count exits"));
        let mut exits = exits.collect::<anyhow::Result<Vec<u64>>>()?;
        exits.sort_unstable();
        Ok(exits)
    };
    let (few, many) = (exits(N)?, exits(10 * N)?);
    println!("bench: a counted function: {few:?} exits for {N} calls, {many:?} for {}", 10 * N);
    Ok(json!({
        "row": "exits for N and 10 N hits of a detour", "unit": "exits", "n": N, "of n": few, "of 10 n": many,
    }))
}

/// What a run said.
struct Said {
    console: String,
    exits: Option<u64>,
}

/// Runs a guest.
fn run(vmm: &Path, words: &[&str]) -> anyhow::Result<Said> {
    let written = tempfile::NamedTempFile::new().context("no temporary file")?;
    let mut command = Command::new(vmm);
    command.args(["run", "--output"]).arg(written.path()).args(words);
    let output = command.stdin(Stdio::null()).output().context("cannot run vmm")?;
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "vmm run {words:?} did not end well:\n{console}");
    let text = fs::read_to_string(written.path())?;
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let end = lines.find(|line| line.get("type").is_some_and(|kind| kind == "end"));
    let exits = end.and_then(|end| end.get("exits")?.as_u64());
    Ok(Said { console, exits })
}

/// When the guest was powered off, in seconds by its own clock: `[    8.946459] reboot: Power down`.
fn power_down(console: &str) -> anyhow::Result<f64> {
    let line = console.lines().find(|line| line.contains("reboot: Power down"));
    let time = line.and_then(|line| line.trim().strip_prefix('[')?.split(']').next()?.trim().parse().ok());
    time.with_context(|| format!("the guest did not say when it ended:\n{console}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_tells_the_time() {
        let console = "workload: done openat=1\r\n[    8.946459] reboot: Power down\r\n";
        assert_eq!(power_down(console).unwrap(), 8.946_459);
        assert!(power_down("workload: done openat=1\n").is_err());
    }
}
