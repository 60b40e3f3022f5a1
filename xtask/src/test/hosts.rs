//! How often an emulated host dies: many guests, two at a time, in pieces that go on where the last one ended.

use super::resumed::Resumed;
use super::say;
use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

/// No guest is begun after that: a piece takes less than an hour.
const PIECE: Duration = Duration::from_secs(50 * 60);
/// `vmm`'s exit code when the host has died.
const INFRASTRUCTURE: i32 = 125;

/// A kind of guest, and how many there are to be.
struct Load {
    name: &'static str,
    guests: u32,
    words: &'static [&'static str],
}

const LOADS: [Load; 2] = [
    Load {
        name: "100,000 traps",
        guests: 150,
        words: &["--probe=__x64_sys_getppid", "--cmdline=workload=pinned:25000"],
    },
    Load {
        name: "every system call probed",
        guests: 40,
        words: &[
            "--probe=__x64_sys_*",
            "--cmdline=workload=open:500,fork:100,pipe:2000,walk:100,signal:2000,pinned:5000",
        ],
    },
];

/// What has been seen of each load, in all pieces.
#[derive(Default, Serialize, Deserialize)]
struct Seen {
    begun: [u32; 2],
    ended: [u32; 2],
    /// Hosts that died, after something was seen of the guest or before.
    deaths: u32,
    failures: Vec<String>,
}

/// Runs guests until the piece is over or all have been run.
pub(super) fn run(start: Instant, vmm: &Path) -> anyhow::Result<()> {
    let state = Resumed::of("host");
    let mut before: Seen = state.read()?;
    // What an interrupted piece had begun is begun again.
    before.begun = before.ended;
    let until = Instant::now() + PIECE;
    let seen = Mutex::new(before);
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..2).map(|_| scope.spawn(|| work(start, vmm, &state, until, &seen))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a thread panicked")))
    })?;
    let seen = seen.into_inner().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    for (load, ended) in LOADS.iter().zip(seen.ended) {
        say(start, &format!("{ended} of {} guests with {}", load.guests, load.name));
    }
    say(start, &format!("{} emulated hosts died", seen.deaths));
    if LOADS.iter().zip(seen.ended).any(|(load, ended)| ended < load.guests) {
        say(start, "the same command goes on from here");
    } else {
        state.remove()?;
    }
    ensure!(seen.failures.is_empty(), "guests that failed:\n{}", seen.failures.join("\n"));
    Ok(())
}

/// Runs one guest after the other.
fn work(
    start: Instant,
    vmm: &Path,
    state: &Resumed,
    until: Instant,
    seen: &Mutex<Seen>,
) -> anyhow::Result<()> {
    let lock = || seen.lock().map_err(|_| anyhow::anyhow!("a thread panicked"));
    while Instant::now() < until {
        let next = {
            let mut seen = lock()?;
            let next = LOADS
                .iter()
                .zip(&mut seen.begun)
                .enumerate()
                .find(|(_, (load, begun))| **begun < load.guests);
            let Some((n, (load, begun))) = next else { return Ok(()) };
            *begun += 1;
            (n, load)
        };
        let (n, load) = next;
        let output = guest(vmm, load)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let mut seen = lock()?;
        if let Some(ended) = seen.ended.get_mut(n) {
            *ended += 1;
        }
        let died = output.status.code() == Some(INFRASTRUCTURE);
        seen.deaths += u32::from(died) + u32::from(said.contains("is run once more"));
        if !output.status.success() {
            let last: Vec<&str> = said.lines().rev().take(5).collect();
            seen.failures.push(format!("{}: {}: {last:?}", load.name, output.status));
        }
        state.write(&*seen)?;
        let ended: u32 = seen.ended.iter().sum();
        if ended.is_multiple_of(10) {
            say(start, &format!("{ended} guests, {} hosts died", seen.deaths));
        }
    }
    Ok(())
}

fn guest(vmm: &Path, load: &Load) -> anyhow::Result<Output> {
    let mut run = Command::new(vmm);
    run.args(["run", "--host=emulated", "--cpus=4", "--optimize=off", "--output=/dev/null"]).args(load.words);
    run.stdin(Stdio::null()).output().with_context(|| format!("cannot run {run:?}"))
}
