//! What runs in a probed guest: `/init` of the guest initramfs.
//!
//! It does a known number of things and says how many, so that what probes count from outside can be checked.
//! What to do is chosen on the kernel command line with `workload=STEP[,STEP...]`, see [`step`]; the kernel hands
//! that word to its first process as an environment variable, so that learning it costs no system call. Every step
//! prints one line, the end prints the totals of the whole life of the guest's user space, and then the guest is
//! powered off:
//!
//! ```text
//! workload: open calls=20 bytes=1060
//! workload: pinned calls=2000 cpus=2
//! workload: done openat=20 getppid=2000 execve=0 clone=2
//! ```
//!
//! A step that fails, or that there is not, ends the guest with `workload: failed STEP: REASON` instead of the last line:
//! its first process exits, at which the kernel panics, so that nobody takes it for a guest that has done its work.
//!
//! `workload --steps STEP[,STEP...]` does the same as an ordinary process, without mounting anything or powering
//! anything off; its exit code is 1 when a step failed.
#![no_main]

mod bpf;
mod btf;
mod called;
mod perf;
mod run;
mod step;
mod sys;

use std::fmt::Display;
use std::io::Write as _;

use step::{End, Plan};

/// Argument that makes this program exit at once: what the `fork` step executes.
const EXIT_AT_ONCE: &str = "--exit";

/// The C entry point: Rust's own would open files before the first line of ours, and opens are counted here.
#[expect(unsafe_code, reason = "the C runtime finds its entry point by this name")]
#[unsafe(no_mangle)]
extern "C" fn main() -> libc::c_int {
    let mut args = std::env::args().skip(1);
    match (args.next().as_deref(), args.next()) {
        (Some(EXIT_AT_ONCE), None) => 0,
        (Some("--steps"), Some(steps)) => native(&steps),
        _ if std::process::id() == 1 => guest(),
        _ => {
            say("usage: workload --steps NAME[:ARGUMENT][,NAME[:ARGUMENT]...]");
            2
        }
    }
}

/// Runs steps as an ordinary process.
fn native(steps: &str) -> libc::c_int {
    match Plan::parse(steps).and_then(|plan| plan.steps.iter().try_for_each(run::step)) {
        Ok(()) => {
            say(format_args!("done {}", sys::Totals::now()));
            0
        }
        Err(failure) => {
            say(failure);
            1
        }
    }
}

/// Runs the guest: what its command line asks for, then its end. It returns only when something failed.
fn guest() -> libc::c_int {
    let asked = std::env::var("workload").unwrap_or_else(|_| "shell".to_owned());
    let steps = guest_steps(&asked);
    if let Err(failure) = &steps {
        say(failure);
    }
    // The kernel's own last words do not wait for ours.
    sys::drain_stdout();
    if let Ok(end) = steps {
        say(run::end(end));
    }
    1
}

/// Mounts what the steps need, runs them, and says the totals.
fn guest_steps(asked: &str) -> Result<End, step::Failure> {
    run::mount_all()?;
    let plan = Plan::parse(asked)?;
    plan.steps.iter().try_for_each(run::step)?;
    if plan.end == End::Panic {
        // Asked for before the totals are said, which count its open; the panic itself comes with `run::end`.
        sys::count_open();
    }
    say(format_args!("done {}", sys::Totals::now()));
    Ok(plan.end)
}

/// Prints one line in a single write, so that the lines of the kernel and ours stay whole. A console that is gone
/// leaves nobody to tell.
fn say(line: impl Display) {
    let _ = std::io::stdout().lock().write_all(format!("workload: {line}\n").as_bytes());
}
