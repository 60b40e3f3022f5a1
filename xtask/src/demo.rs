//! `cargo xtask demo`: the main job on a real kernel, and a look at whether it was done right.

use crate::{setup, workload};
use anyhow::{Context as _, bail, ensure};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread;

/// The probed function.
const PROBE: &str = "do_sys_openat2";
/// What the guest does: fifteen opens, some system calls, a child process.
const WORKLOAD: &str = "workload=open:15,getppid:5,fork:1";

pub(crate) fn run() -> anyhow::Result<()> {
    let vmm = setup::run()?.vmm;
    println!("demo: vmm run --probe {PROBE} --cmdline {WORKLOAD}");
    let mut child = Command::new(vmm)
        .args(["run", "--probe", PROBE, "--cmdline", WORKLOAD])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run vmm")?;
    let console = child.stdout.take().context("vmm has no output")?;
    let said = child.stderr.take().context("vmm has no output")?;
    let console = thread::spawn(|| show(console));
    let said = show(said);
    let console = console.join().unwrap_or_default();
    let status = child.wait().context("cannot wait for vmm")?;
    ensure!(status.success(), "vmm ended with {status}");

    let calls = workload::done(&console, "openat");
    let hits = said
        .iter()
        .find(|line| line.starts_with(PROBE))
        .and_then(|row| row.split_whitespace().nth(2)?.parse::<u64>().ok());
    match (calls, hits) {
        (Some(calls), Some(hits)) if calls == hits => {
            println!("demo: the guest counted {calls} calls of openat, its probe {hits} hits: right");
            Ok(())
        }
        _ => bail!("the guest counted {calls:?} calls of openat, its probe {hits:?} hits"),
    }
}

/// Shows lines as they come, and keeps them.
fn show(stream: impl Read) -> Vec<String> {
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.inspect(|line| println!("{line}")).collect()
}
