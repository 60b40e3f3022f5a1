//! What a guard costs a guest: boots, system calls, processes, and exits while nothing happens, beside the same guest without a guard, in
//! turns.

use super::boots::median;
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, DEFAULT_KERNEL};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How often each guest runs.
const ROUNDS: usize = 3;
/// By which line of the console a guest says that it does nothing from now on.
const BEGUN: &str = "workload: getppid";
/// How long it does nothing before its exits are counted, and how long they are.
const SETTLED: Duration = Duration::from_secs(3);
const IDLE: Duration = Duration::from_secs(15);
/// What its first program does, and by which line of the console each part ends.
const STEPS: &str = "getppid:1,open:20000,fork:300";
const PARTS: [(&str, &str); 3] = [
    ("start to init", "workload: getppid"),
    ("20,000 opens and reads", "workload: open"),
    ("300 processes", "workload: fork"),
];

/// A way to run the guest.
struct Way {
    words: &'static str,
    options: &'static [&'static str],
}

/// The first is the one that the others are compared with.
const WAYS: [Way; 3] = [
    Way { words: "unguarded", options: &["run"] },
    Way { words: "guarded", options: &["guard"] },
    Way { words: "guarded and scanned each second", options: &["guard", "--scan", "1s"] },
];

/// The rows: seconds of each part and their ratio, and exits a second.
pub(super) fn rows(vmm: &Path) -> anyhow::Result<Vec<Value>> {
    let cache = Cache::open()?;
    let (image, initramfs) = (cache.kernel(&DEFAULT_KERNEL)?.image, cache.initramfs()?);
    let command = |way: &Way, steps: &str| {
        let mut command = Command::new(vmm);
        command.args(way.options).arg("--kernel").arg(&image).arg("--initrd").arg(&initramfs);
        command.args(["--cmdline", &format!("workload={steps}")]);
        command
    };
    let mut seconds = WAYS.map(|_| Vec::new());
    for _ in 0..ROUNDS {
        for (way, seconds) in WAYS.iter().zip(&mut seconds) {
            seconds.push(parts(&mut command(way, STEPS))?);
        }
    }
    let [unguarded, ..] = &seconds;
    let unguarded = median(unguarded);
    let mut rows = Vec::new();
    for (way, seconds) in WAYS.iter().zip(&seconds) {
        for (((part, _), ours), theirs) in PARTS.iter().zip(median(seconds)).zip(unguarded) {
            let (words, ratio) = (way.words, ours / theirs);
            println!("bench: {words}: {part}: {ours:.2} s ({ratio:.2} times the unguarded guest's)");
            rows.push(json!({
                "row": format!("{words}: {part}"), "unit": "ratio", "median": ratio, "seconds": ours,
            }));
        }
        let a_second = exits_a_second(&mut command(way, "getppid:1,idle:300"))?;
        println!("bench: {}: {a_second:.0} exits a second while nothing happens", way.words);
        rows.push(json!({
            "row": format!("{}: exits a second while nothing happens", way.words), "unit": "exits", "median": a_second,
        }));
    }
    Ok(rows)
}

/// Runs a guest to its end: how long each part took, in seconds.
fn parts(command: &mut Command) -> anyhow::Result<[f64; 3]> {
    let mut begun = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start a guest")?;
    let (mut said, mut took) = (String::new(), [None; 3]);
    for line in BufReader::new(child.stdout.take().context("the guest has no console")?).split(b'\n') {
        let line = String::from_utf8_lossy(&line?).into_owned();
        for ((_, mark), took) in PARTS.iter().zip(&mut took) {
            if took.is_none() && line.contains(mark) {
                *took = Some(begun.elapsed().as_secs_f64());
                begun = Instant::now();
            }
        }
        said.extend([&line, "\n"]);
    }
    ensure!(child.wait()?.success(), "a guest did not end well:\n{said}");
    let [Some(boot), Some(opens), Some(processes)] = took else {
        anyhow::bail!("the guest did not say what it does:\n{said}")
    };
    Ok([boot, opens, processes])
}

/// How often a guest comes back to the host in a second in which it does nothing.
fn exits_a_second(command: &mut Command) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir().context("no temporary folder")?;
    let socket = folder.path().join("control");
    command.arg("--control").arg(&socket).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().context("cannot start a guest")?;
    let mut console = BufReader::new(child.stdout.take().context("the guest has no console")?);
    let mut said = Vec::new();
    while console.read_until(b'\n', &mut said)? > 0 {
        if String::from_utf8_lossy(&said).contains(BEGUN) {
            break;
        }
        said.clear();
    }
    thread::sleep(SETTLED);
    let first = exits(&socket)?;
    let begun = Instant::now();
    thread::sleep(IDLE);
    let count = exits(&socket)? - first;
    let a_second = count / begun.elapsed().as_secs_f64();
    child.kill().context("a guest cannot be ended")?;
    child.wait()?;
    Ok(a_second)
}

/// How often the guest with this control socket has come back to the host.
fn exits(socket: &Path) -> anyhow::Result<f64> {
    let mut stream = UnixStream::connect(socket).context("nobody takes commands")?;
    stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"counters\"}\n")?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    let said: Value = serde_json::from_str(&line).context("what the guest's server says is no JSON")?;
    said.pointer("/result/exits").and_then(Value::as_f64).context("this KVM does not count exits")
}
