//! Commands from a list, for a machine without a control port: their output goes to the console.
//!
//! ```text
//! vmm-batch: begin NAME
//! ...
//! vmm-batch: end NAME exit=CODE seconds=S
//! vmm-batch: done
//! ```
//! CODE is the exit code, `signal-N`, `timeout`, or `not-started`. S has milliseconds.

use super::super::emulated::chain;
use super::super::spawn;
use super::AgentError;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// One command of the list.
#[derive(Debug, Deserialize)]
struct Item {
    name: String,
    /// The program, `vmm` being this one, and its arguments.
    argv: Vec<String>,
    /// Added to its environment.
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// In seconds.
    timeout: u64,
}

const POLL: Duration = Duration::from_millis(20);

/// Runs the commands that the file at `path` lists.
pub(super) fn run(path: &Path) -> Result<(), AgentError> {
    let text = fs::read(path).map_err(AgentError::file("read", path))?;
    let items: Vec<Item> =
        serde_json::from_slice(&text).map_err(|source| AgentError::Batch { path: path.into(), source })?;
    for item in &items {
        println!("vmm-batch: begin {}", item.name);
        let began = Instant::now();
        let exit = start(item).map_or_else(
            |error| {
                println!("vmm-batch: {}", chain(&error));
                "not-started".to_owned()
            },
            |child| wait(child, Duration::from_secs(item.timeout)),
        );
        println!("vmm-batch: end {} exit={exit} seconds={:.3}", item.name, began.elapsed().as_secs_f64());
    }
    println!("vmm-batch: done");
    Ok(())
}

fn start(item: &Item) -> Result<Child, AgentError> {
    let mut argv = item.argv.iter().map(String::as_str);
    let name = argv.next().unwrap_or_default();
    let mut command = Command::new(if name == "vmm" { "/proc/self/exe" } else { name });
    command.arg0(name).args(argv).envs(&item.env).stdin(Stdio::null());
    spawn::in_own_session(command, None, false).map_err(AgentError::file("start", name))
}

/// Waits for the command, at most for `patience`, and says how it ended.
fn wait(mut child: Child, patience: Duration) -> String {
    let (group, began) = (Pid::from_child(&child), Instant::now());
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let signal = || format!("signal-{}", status.signal().unwrap_or(0));
                break status.code().map_or_else(signal, |code| code.to_string());
            }
            Ok(None) if began.elapsed() < patience => thread::sleep(POLL),
            _ => break "timeout".to_owned(),
        }
    };
    // Whatever is left of it must not print into the next one's output.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = child.wait();
    ended
}
