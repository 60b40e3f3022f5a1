//! Guarded kernels that change themselves: many boots of each kernel, two at a time, in pieces that go on where the last one ended.

use super::guests::Guests;
use super::kvm::Kvm;
use super::pool::side_by_side;
use super::programs::Programs;
use super::resumed::Resumed;
use super::{kernels, say};
use anyhow::ensure;
use guest_kernels::{KERNELS, Kernel};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::time::{Duration, Instant};

/// The program of the test.
const PROGRAM: &str = "churn";
/// Which boot it is: each traces other functions of the kernel.
const BOOT: &str = "VMM_CHURN_BOOT";
/// No guests are begun after that: a piece takes less than an hour.
const PIECE: Duration = Duration::from_secs(50 * 60);
/// So many guests run at once.
const AT_ONCE: usize = 2;

/// What has been seen, in all pieces.
#[derive(Default, Serialize, Deserialize)]
struct Seen {
    /// How many boots have ended, by the kernel.
    ended: BTreeMap<String, u32>,
    failures: Vec<String>,
}

/// Runs guests until the piece is over, or each kernel has been booted so often.
pub(super) fn run(start: Instant, vmm: &Path, kvm: Kvm, boots: u32) -> anyhow::Result<()> {
    let state = Resumed::of(&format!("churn-{boots}"));
    let mut seen: Seen = state.read()?;
    let programs = Programs::built_of(&[PROGRAM])?;
    let begun = Instant::now();
    let mut there: Vec<&Kernel> = Vec::new();
    for kernel in KERNELS {
        if kernels::is_there(start, kernel)? {
            there.push(kernel);
        }
    }
    let is_over = loop {
        // All kernels come to the same number of boots, one after the other.
        let (mut ended, mut jobs, mut names) = (seen.ended.clone(), Vec::new(), Vec::new());
        for _ in 0..AT_ONCE {
            let count = |kernel: &&&Kernel| ended.get(&kernel.to_string()).copied().unwrap_or(0);
            let Some(kernel) = there.iter().min_by_key(count).filter(|kernel| count(kernel) < boots) else {
                break;
            };
            let boot = count(&kernel);
            let guests = Guests { start, vmm, kvm, kernel };
            let number = boot.to_string();
            jobs.push(guests.long_product_job(PROGRAM, &programs, &[(BOOT, OsStr::new(&number))])?);
            names.push(format!("boot {boot} of {kernel}"));
            ended.insert(kernel.to_string(), boot + 1);
        }
        if jobs.is_empty() {
            break true;
        }
        if begun.elapsed() > PIECE {
            break false;
        }
        if let Err(error) = side_by_side(start, jobs) {
            seen.failures.push(format!("{}: {error:#}", names.join(" or ")));
        }
        seen.ended = ended;
        state.write(&seen)?;
    };
    for (kernel, ended) in &seen.ended {
        say(start, &format!("{ended} of {boots} boots of {kernel}"));
    }
    if is_over {
        state.remove()?;
    } else {
        say(start, "the same command goes on from here");
    }
    ensure!(seen.failures.is_empty(), "boots that failed:\n{}", seen.failures.join("\n"));
    Ok(())
}
