//! The kernel's own tests, as commands in a guest of ours and in one of QEMU with virtiofsd: same kernel, same files.

use super::say;
use crate::peer::Peer;
use crate::setup;
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, DEFAULT_KERNEL};
use serde_json::Value;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The package that has the default kernel's source.
const SOURCE: &str = "linux-source-6.12";
/// What building the tests needs.
const NEEDED: [(&str, &str); 7] = [
    (SOURCE, "the kernel's own tests"),
    ("rsync", "the kernel's headers"),
    ("flex", "the kernel's headers"),
    ("bison", "the kernel's headers"),
    ("libcap-dev", "the kernel's own tests"),
    ("libnuma-dev", "the kernel's own tests"),
    ("liburing-dev", "the kernel's own tests"),
];
const CPUS: u32 = 2;
/// What a guest needs beside the program's time, in seconds.
const AROUND: u32 = 120;
/// What `timeout` ends with when the program did not end, and what a test ends with that does not apply to its machine.
const OUT_OF_TIME: i32 = 124;
const DOES_NOT_APPLY: i32 = 4;

/// Tests that are run one after the other.
struct Collection {
    name: &'static str,
    /// Where the kernel's tree has the programs, below its tests.
    folder: &'static str,
    /// The functions that are counted meanwhile.
    counted: &'static str,
    /// The seconds that a program may take.
    limit: u32,
}

const COLLECTIONS: [Collection; 3] = [
    Collection { name: "futex", folder: "futex/functional", counted: "*futex_*", limit: 120 },
    Collection { name: "mm", folder: "mm", counted: "*handle_mm_fault", limit: 120 },
    Collection { name: "timers", folder: "timers", counted: "hrtimer_*", limit: 200 },
];
/// Those of timers that take longer: a piece of their own.
const SLOW: [&str; 4] = ["change_skew", "clocksource-switch", "set-2038", "skew_consistency"];
const SLOW_LIMIT: u32 = 700;

/// What fails for want of time where the processor is emulated, and why.
const HURRIED: [(&str, &str); 1] = [(
    "futex_requeue",
    "ten threads have 30 ms to start, and the first one's wait is over before the last one waits",
)];

/// Which of them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Those of memory and of futexes.
    Memory,
    /// Those of timers, but the slow ones.
    Timers,
    /// The slow ones.
    Slow,
}

/// Runs them. What passes in QEMU is to pass in our guest, while probes count there.
///
/// # Errors
/// When a program that passes in QEMU does not in our guest, twice.
pub(super) fn run(start: Instant, vmm: &Path, which: Which) -> anyhow::Result<()> {
    let own_kvm = setup::has_fit_kvm(vmm)?;
    let peer = Peer::prepare(&DEFAULT_KERNEL, own_kvm)?;
    let tests = built(start)?;
    let mut worse = Vec::new();
    for collection in COLLECTIONS.iter().filter(|of| (of.name == "timers") != (which == Which::Memory)) {
        let folder = tests.join(collection.name);
        for program in programs(&folder)? {
            if SLOW.contains(&program.as_str()) != (which == Which::Slow) {
                continue;
            }
            let limit = if which == Which::Slow { SLOW_LIMIT } else { collection.limit };
            let script = format!("timeout {limit} ./{program}");
            let theirs = peer.run(CPUS, (&folder, &script), limit + AROUND, |_| {})?;
            let mut ours = of_ours(vmm, &folder, &script, collection.counted, limit)?;
            let is_worse = |ours: &Ended| theirs == Some(0) && ![0, DOES_NOT_APPLY].contains(&ours.code);
            if is_worse(&ours) {
                ours = of_ours(vmm, &folder, &script, collection.counted, limit)?;
            }
            let name = format!("{} {program}", collection.name);
            let theirs_in_words = theirs.map_or("no end".to_owned(), verdict);
            say(
                start,
                &format!(
                    "{name}: {}, {theirs_in_words} in QEMU; {} calls counted",
                    verdict(ours.code),
                    ours.calls
                ),
            );
            let hurried = HURRIED.iter().find(|(hurried, _)| !own_kvm && *hurried == program);
            match hurried.filter(|_| is_worse(&ours)) {
                Some((_, why)) => say(start, &format!("{name}: {why}")),
                None if is_worse(&ours) => worse.push(format!("{name}:\n{}", ours.said)),
                None => {}
            }
        }
    }
    ensure!(worse.is_empty(), "these pass in QEMU, and not in our guest:\n{}", worse.join("\n"));
    Ok(())
}

/// An exit code in words.
fn verdict(code: i32) -> String {
    match code {
        0 => "passes".to_owned(),
        DOES_NOT_APPLY => "does not apply".to_owned(),
        OUT_OF_TIME => "takes longer".to_owned(),
        code => format!("ends with {code}"),
    }
}

/// How a program ended in our guest.
struct Ended {
    code: i32,
    said: String,
    calls: u64,
}

fn of_ours(vmm: &Path, folder: &Path, script: &str, counted: &str, limit: u32) -> anyhow::Result<Ended> {
    let files = tempfile::tempdir().context("no temporary directory")?;
    let output = files.path().join("output");
    let mut run = Command::new(vmm);
    run.args(["run", "--cpus", &CPUS.to_string(), "--timeout", &(limit + AROUND).to_string()])
        .args(["--count", counted, "--output"])
        .arg(&output)
        .args(["--", "sh", "-c", script]);
    let ended = run.current_dir(folder).stdin(Stdio::null()).output().context("cannot run vmm")?;
    let said =
        [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let code = ended.status.code().context("vmm was killed")?;
    let mut calls = 0;
    for line in fs::read_to_string(&output).with_context(|| said.clone())?.lines() {
        let line: Value = serde_json::from_str(line)?;
        let count = |of: &str| line.get(of).and_then(Value::as_u64).unwrap_or_default();
        calls += count("hits");
        ensure!(count("missed") == 0, "calls were missed: {line}");
    }
    Ok(Ended { code, said, calls })
}

/// The names of the programs in `folder`.
fn programs(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let mut magic = Vec::new();
        fs::File::open(entry.path())?.take(4).read_to_end(&mut magic)?;
        let name = entry.file_name().into_string();
        match name {
            Ok(name) if magic == b"\x7fELF" && !name.ends_with(".o") => names.push(name),
            _ => {}
        }
    }
    names.sort();
    ensure!(!names.is_empty(), "there is no program in {}", folder.display());
    Ok(names)
}

/// The folder with a folder for each collection, its programs built.
fn built(start: Instant) -> anyhow::Result<PathBuf> {
    let place = Cache::open()?.root().join(format!("selftests-{DEFAULT_KERNEL}"));
    if place.is_dir() {
        return Ok(place);
    }
    say(start, "building the kernel's own tests");
    setup::install(&NEEDED)?;
    let unpacked = tempfile::tempdir_in(Cache::open()?.root()).context("no temporary directory")?;
    let archive = format!("/usr/src/{SOURCE}.tar.xz");
    setup::quietly(Command::new("tar").args(["-xf", &archive, "-C"]).arg(unpacked.path()))?;
    let tree = unpacked.path().join(SOURCE);
    setup::quietly(Command::new("make").args(["-s", "headers"]).current_dir(&tree))?;
    let tests = tree.join("tools/testing/selftests");
    let mut make = Command::new("make");
    make.args(["-s", "-k", "TARGETS=timers futex mm"]);
    make.arg(format!("KHDR_INCLUDES=-isystem {}", tree.join("usr/include").display()));
    // Some of mm need what this source or this machine lacks: those that are built are run.
    let _ = make.current_dir(&tests).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    let made = unpacked.path().join("made");
    for collection in COLLECTIONS {
        let to = made.join(collection.name);
        fs::create_dir_all(&made)?;
        setup::quietly(Command::new("cp").arg("-r").args([tests.join(collection.folder), to]))?;
    }
    fs::rename(made, &place).or_else(|error| match error.kind() {
        // Another process was faster.
        io::ErrorKind::DirectoryNotEmpty => Ok(()),
        _ => Err(error),
    })?;
    Ok(place)
}
