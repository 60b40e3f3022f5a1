//! Guests whose hits are known beforehand, and how what was seen of one differs from that.

use crate::kernel_choice::Choice;
use anyhow::{Context, Result};
use guest_kernels::console::{complaint, number};
use serde_json::Value;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

/// How often a probe is to be hit.
#[derive(Clone, Copy)]
enum Hits {
    /// As often as the workload made this call.
    Calls(&'static str),
    /// At least once.
    Some,
}

/// A guest, and what is to be seen of it.
pub(super) struct Trial {
    pub(super) name: &'static str,
    words: &'static [&'static str],
    /// Probes by their names, and how each is to stand; `None` where either way is right.
    probes: &'static [(&'static str, Hits, Option<&'static str>)],
}

const TRAP: Option<&str> = Some("armed");
const DETOUR: Option<&str> = Some("[OPTIMIZED]");

pub(super) const TRIALS: [Trial; 4] = [
    Trial {
        name: "a storm of traps on 2 CPUs, with interrupts on and off",
        words: &[
            "--cpus=2",
            "--optimize=off",
            "--count=__x64_sys_getppid",
            "--count=try_to_wake_up",
            "--probe=r __x64_sys_getppid hist:keys=cpu",
            "--append=loglevel=5 workload=pinned:10000",
        ],
        probes: &[
            ("__x64_sys_getppid", Hits::Calls("getppid"), TRAP),
            ("__x64_sys_getppid%return", Hits::Calls("getppid"), TRAP),
            ("try_to_wake_up", Hits::Some, TRAP),
        ],
    },
    Trial {
        name: "traps with stacks on 1 CPU",
        words: &[
            "--optimize=off",
            "--stack",
            "--probe=do_sys_openat2",
            "--probe=do_sys_openat2%return",
            "--append=loglevel=5 workload=open:30,walk:5,fork:3",
        ],
        probes: &[
            ("do_sys_openat2", Hits::Calls("openat"), TRAP),
            ("do_sys_openat2%return", Hits::Calls("openat"), TRAP),
        ],
    },
    Trial {
        name: "detours on 2 CPUs",
        words: &[
            "--cpus=2",
            "--optimize=require",
            "--count=__x64_sys_getppid",
            "--probe=do_sys_openat2",
            "--probe=do_sys_openat2%return",
            "--append=loglevel=5 workload=open:30,walk:5,fork:3,pinned:20000",
        ],
        probes: &[
            ("__x64_sys_getppid", Hits::Calls("getppid"), DETOUR),
            ("do_sys_openat2", Hits::Calls("openat"), DETOUR),
            ("do_sys_openat2%return", Hits::Calls("openat"), DETOUR),
        ],
    },
    Trial {
        name: "hundreds of functions counted, and a store watched",
        words: &[
            "--cpus=2",
            "--count=vfs_*",
            "--count=__x64_sys_getppid",
            "--watch=jiffies:8:w",
            "--append=loglevel=5 workload=pinned:1000",
        ],
        probes: &[("__x64_sys_getppid", Hits::Calls("getppid"), None), ("jiffies:8:w", Hits::Some, TRAP)],
    },
];

/// So much is kept of what a guest prints, and of what is said about it, in bytes.
const MOST_KEPT: usize = 1 << 20;

/// A guest that hangs is ended.
const TIMEOUT_SECONDS: u32 = 900;

/// What was seen of a guest.
pub(super) struct Seen {
    /// The exit code of `vmm run`; `None` where a signal ended it.
    code: Option<i32>,
    pub(super) console: String,
    pub(super) said: String,
    /// The objects of the summary.
    summary: Vec<Value>,
    pub(super) took: Duration,
}

impl Trial {
    /// Runs the guest by this program, with `host` (words that say where) and on `kernel`, or on the default one.
    pub(super) fn run(&self, host: &[String], kernel: Option<&Choice>) -> Result<Seen> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let output = folder.path().join("hits.json");
        let program = env::current_exe().context("cannot find this program's own file")?;
        let mut run = Command::new(program);
        run.arg("run").arg(format!("--timeout={TIMEOUT_SECONDS}"));
        run.arg("--output").arg(&output).args(host).args(self.words).stdin(Stdio::null());
        if let Some(kernel) = kernel {
            run.arg("--kernel").arg(kernel.word());
        }
        let cannot = || "cannot run this program";
        let begun = Instant::now();
        let mut child = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().with_context(cannot)?;
        let pipes = (child.stdout.take(), child.stderr.take());
        let (console, said) = thread::scope(|scope| {
            let said = scope.spawn(|| pipes.1.map(last_of).unwrap_or_default());
            (pipes.0.map(last_of).unwrap_or_default(), said.join().unwrap_or_default())
        });
        let ended = child.wait().with_context(cannot)?;
        let took = begun.elapsed();
        // Where the run was refused there is no output; the exit code says so.
        let lines = fs::read_to_string(&output).unwrap_or_default();
        Ok(Seen {
            code: ended.code(),
            console,
            said,
            summary: lines.lines().filter_map(summary_of).collect(),
            took,
        })
    }

    /// What a user would write for it.
    pub(super) fn command(&self) -> String {
        format!("vmm run {}", self.words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "))
    }

    /// Each difference between what was `seen` and what was to be seen, in words. None is good.
    pub(super) fn differences(&self, seen: &Seen) -> Vec<String> {
        let mut differences = Vec::new();
        match seen.code {
            Some(0) => {}
            Some(code) => differences.push(format!("the run ended with exit code {code}")),
            None => differences.push("the run was ended by a signal".to_owned()),
        }
        if let Some(line) = complaint(&seen.console) {
            differences.push(format!("the guest's kernel complained: {line}"));
        }
        // A run that was refused says nothing of its probes.
        let probes = if seen.summary.is_empty() && seen.code != Some(0) { &[] } else { self.probes };
        for (name, hits, state) in probes {
            match seen.summary.iter().find(|line| line["type"] == "probe" && line["probe"] == *name) {
                Some(probe) => differences.extend(wrong(name, *hits, *state, probe, &seen.console)),
                None => differences.push(format!("{name}: nothing was said of this probe")),
            }
        }
        differences
    }
}

/// The last of what comes out of `pipe`, until it ends: a guest may print more than there is memory.
fn last_of(mut pipe: impl Read) -> String {
    let (mut last, mut buffer) = (Vec::new(), vec![0; 64 << 10]);
    // What cannot be read any more has ended.
    while let Ok(length @ 1..) = pipe.read(&mut buffer) {
        last.extend_from_slice(buffer.get(..length).unwrap_or_default());
        last.drain(..last.len().saturating_sub(MOST_KEPT));
    }
    String::from_utf8_lossy(&last).into_owned()
}

impl Seen {
    /// A number of the summary's last object, as `exits`.
    pub(super) fn of_end(&self, key: &str) -> Option<u64> {
        self.summary.iter().find(|line| line["type"] == "end")?[key].as_u64()
    }
}

/// An object of the summary, where `line` is one. Hits are many, and are counted there.
fn summary_of(line: &str) -> Option<Value> {
    let is_summary = ["{\"type\":\"probe\"", "{\"type\":\"end\""].iter().any(|start| line.starts_with(start));
    is_summary.then(|| serde_json::from_str(line).ok())?
}

/// What is wrong with a probe.
fn wrong(name: &str, expected: Hits, state: Option<&str>, probe: &Value, console: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let hits = probe["hits"].as_u64().unwrap_or_default();
    match expected {
        Hits::Calls(call) => match number(console, "done", call) {
            Some(calls) if calls == hits => {}
            Some(calls) => wrong.push(format!("{name}: {hits} hits of {calls} calls")),
            None => wrong
                .push(format!("{name}: {hits} hits, and the workload did not say how many calls it made")),
        },
        Hits::Some if hits > 0 => {}
        Hits::Some => wrong.push(format!("{name}: no hit")),
    }
    let missed = probe["missed"].as_u64().unwrap_or_default();
    if missed > 0 {
        wrong.push(format!("{name}: {missed} missed, {}", probe["reasons"]));
    }
    if let Some(expected) = state.filter(|expected| probe["state"] != **expected) {
        let why = probe["trapped"].as_str().map(|why| format!(" ({why})")).unwrap_or_default();
        wrong.push(format!("{name}: {} instead of {expected}{why}", probe["state"]));
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIAL: Trial = Trial {
        name: "a test",
        words: &[],
        probes: &[("f", Hits::Calls("openat"), DETOUR), ("g", Hits::Some, TRAP)],
    };

    fn seen(code: Option<i32>, console: &str, lines: [&str; 2]) -> Vec<String> {
        TRIAL.differences(&Seen {
            code,
            console: console.to_owned(),
            said: String::new(),
            summary: lines.into_iter().filter_map(summary_of).collect(),
            took: Duration::ZERO,
        })
    }

    const F: &str = r#"{"type":"probe","probe":"f","hits":7,"missed":0,"state":"[OPTIMIZED]"}"#;
    const G: &str = r#"{"type":"probe","probe":"g","hits":1,"missed":0,"state":"armed"}"#;

    #[test]
    fn what_was_to_be_seen_is_no_difference() {
        assert_eq!(
            seen(Some(0), "RETBleed: WARNING: x\r\nworkload: done openat=7 fork=1\r\n", [F, G]),
            [""; 0]
        );
    }

    #[test]
    fn the_last_is_kept_of_what_a_guest_prints_without_end() {
        let text = [vec![b'a'; MOST_KEPT], b"\nthe end\n".to_vec()].concat();
        let last = last_of(&text[..]);
        assert_eq!(last.len(), MOST_KEPT);
        assert!(last.ends_with("a\nthe end\n"));
    }

    #[test]
    fn every_difference_is_a_sentence() {
        let trapped = r#"{"type":"probe","probe":"f","hits":6,"missed":2,"reasons":{"busy":2},"state":"armed","trapped":"no room"}"#;
        let never = r#"{"type":"probe","probe":"g","hits":0,"missed":0,"state":"armed"}"#;
        let console = "workload: done openat=7\n[ 1.0] BUG: \x1b[2Kbad\n";
        assert_eq!(
            seen(Some(123), console, [trapped, never]),
            [
                "the run ended with exit code 123",
                "the guest's kernel complained: [ 1.0] BUG: \x1b[2Kbad",
                "f: 6 hits of 7 calls",
                r#"f: 2 missed, {"busy":2}"#,
                r#"f: "armed" instead of [OPTIMIZED] (no room)"#,
                "g: no hit",
            ]
        );
        assert_eq!(seen(Some(2), "", ["", ""]), ["the run ended with exit code 2"]);
        assert_eq!(
            seen(None, "", [F, "not JSON"]),
            [
                "the run was ended by a signal",
                "f: 7 hits, and the workload did not say how many calls it made",
                "g: nothing was said of this probe",
            ]
        );
    }
}
