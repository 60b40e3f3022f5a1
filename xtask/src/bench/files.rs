//! A command on the host's files, in a guest of ours and in one of QEMU with virtiofsd: same kernel, same files, same
//! machine, in turns.

use crate::peer::Peer;
use crate::setup;
use anyhow::{Context as _, ensure};
use guest_kernels::DEFAULT_KERNEL;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// How often each is run.
const RUNS: usize = 3;
/// The folders of the tree that is walked, and the files in each.
const TREE: (usize, usize) = (100, 100);
/// The size of the file that is read, in MiB.
const MIB: usize = 256;
/// What the command prints before its first step, and after each.
const MARK: &str = "mark";
/// What is measured, in the order of the marks.
const ROWS: [&str; 3] =
    ["start to a command's first instruction", "a walk of 10,000 files", "reading a file of 256 MiB"];

/// The rows: seconds of each, and their ratio.
pub(super) fn rows(vmm: &Path) -> anyhow::Result<Vec<Value>> {
    let own_kvm = setup::has_fit_kvm(vmm)?;
    let peer = Peer::prepare(&DEFAULT_KERNEL, own_kvm)?;
    let place = files()?;
    let script = format!(
        "echo {MARK}; find tree -type f -size +9c | wc -l; echo {MARK}; dd if=file of=/dev/null bs=1M 2>&1; echo {MARK}"
    );
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        ours.push(seconds(|mark| of_ours(vmm, &place, &script, mark))?);
        theirs.push(seconds(|mark| {
            let code = peer.run(1, (&place, &script), 600, mark)?;
            ensure!(code == Some(0), "the command in QEMU ended with {code:?}");
            Ok(())
        })?);
    }
    let median = |runs: &[Vec<f64>], row: usize| {
        let mut seconds: Vec<f64> = runs.iter().filter_map(|run| run.get(row).copied()).collect();
        seconds.sort_by(f64::total_cmp);
        seconds.get(RUNS / 2).copied().unwrap_or_default()
    };
    let on = if own_kvm { "KVM" } else { "no KVM: QEMU emulates one guest, and for vmm a host with a guest" };
    let row = |(row, name): (usize, &&str)| {
        let (ours, theirs) = (median(&ours, row), median(&theirs, row));
        let ratio = ours / theirs;
        println!("bench: {name}: {ours:.2} s, {theirs:.2} s by QEMU with virtiofsd, {ratio:.2} times ({on})");
        json!({ "row": name, "unit": "ratio", "median": ratio, "seconds": ours, "seconds of QEMU": theirs })
    };
    Ok(ROWS.iter().enumerate().map(row).collect())
}

/// The seconds up to the first mark, and between marks.
fn seconds(run: impl FnOnce(&mut dyn FnMut(&str)) -> anyhow::Result<()>) -> anyhow::Result<Vec<f64>> {
    let (mut last, mut seconds) = (Instant::now(), Vec::new());
    let mut said = String::new();
    run(&mut |line| {
        said.extend([line, "\n"]);
        if line.trim() == MARK {
            seconds.push(last.elapsed().as_secs_f64());
            last = Instant::now();
        }
    })?;
    let walked = (TREE.0 * TREE.1).to_string();
    ensure!(said.lines().any(|line| line.trim() == walked), "not every file was seen:\n{said}");
    ensure!(said.contains(&format!("{MIB}+0 records in")), "the file was not read whole:\n{said}");
    ensure!(seconds.len() == ROWS.len(), "marks are missing:\n{said}");
    Ok(seconds)
}

/// Runs the command in a guest of ours.
fn of_ours(vmm: &Path, place: &Path, script: &str, mut line: impl FnMut(&str)) -> anyhow::Result<()> {
    let mut run = Command::new(vmm);
    run.args(["run", "--", "sh", "-c", script]).current_dir(place);
    let mut run = run.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("cannot run vmm")?;
    for said in BufReader::new(run.stdout.take().context("vmm has no output")?).lines() {
        line(&said?);
    }
    let status = run.wait()?;
    ensure!(status.success(), "the command in a guest of ours ended with {status}");
    Ok(())
}

/// Makes the files: a tree, and one large file.
fn files() -> anyhow::Result<PathBuf> {
    let place = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/bench-files"));
    let (folders, files) = TREE;
    for folder in 0..folders {
        let folder = place.join(format!("tree/{folder}"));
        fs::create_dir_all(&folder)?;
        for file in 0..files {
            fs::write(folder.join(file.to_string()), "ten bytes.")?;
        }
    }
    fs::write(place.join("file"), vec![b'x'; MIB << 20])?;
    Ok(place.canonicalize()?)
}
