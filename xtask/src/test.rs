//! `cargo xtask test`: everything that says whether the product works, on a machine as it comes.
//!
//! One kernel is tested in full, the others by a few guests each. `--long NAME` runs what takes longer.

mod built;
mod churn;
mod debug_info;
mod examples;
mod guests;
mod hosts;
mod kernels;
mod kvm;
mod long;
mod pool;
mod programs;
mod races;
mod repeat;
mod resumed;
mod selftests;
mod vmx;

use crate::setup;
use anyhow::{Context as _, ensure};
use guest_kernels::{DEFAULT_KERNEL, KERNELS};
use guests::Guests;
use kvm::{Kvm, Variables};
use long::Piece;
use pool::{Job, side_by_side};
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use kernels::draw;
use programs::Programs;

/// How many instructions of kernels are tried every way.
const INSTRUCTIONS: u32 = 100_000;

/// Which tests.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only those that run inside Bochs, on VMX: the KVM contract and one Linux boot with probes
    #[arg(long)]
    vmx: bool,
    /// Only this piece of what takes long: all guest tests on another kernel, or storms, soaks and comparisons
    #[arg(long, value_name = "NAME", value_parser = long::names(), conflicts_with = "vmx")]
    long: Option<Piece>,
    /// As --vmx, of the default kernel alone, with fewer traps
    #[arg(long, hide = true, conflicts_with_all = ["vmx", "long"])]
    bochs: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let start = Instant::now();
    let vmm = setup::run()?.vmm;
    if options.bochs {
        vmx::run_some(&vmm)?;
    } else if options.vmx {
        say(start, "the KVM contract and a kernel in Bochs, on VMX");
        let mut there = Vec::new();
        for kernel in KERNELS {
            if kernels::is_there(start, kernel)? {
                there.push(kernel);
            }
        }
        vmx::run_all(&vmm, &there)?;
    } else if let Some(piece) = options.long {
        piece.run(start, &vmm)?;
    } else {
        all(start, &vmm)?;
    }
    say(start, "all passed");
    Ok(())
}

/// What CI runs.
fn all(start: Instant, vmm: &Path) -> anyhow::Result<()> {
    step(start, "format", cargo(["fmt", "--all", "--check"]))?;
    let lints = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"];
    step(start, "lints", cargo(lints))?;
    step(start, "the fuzz targets", fuzz_targets())?;
    say(start, "building the tests");
    let programs = Programs::built()?;
    step(start, "examples of the documentation", cargo(["test", "--quiet", "--workspace", "--doc"]))?;
    // What takes seconds to find is not told an hour later.
    side_by_side(start, without_guests(&programs)?)?;
    say(start, "drawing instructions from the kernels");
    let drawn = draw(programs.draw()?, INSTRUCTIONS)?;
    side_by_side(start, jobs(start, vmm, &programs, drawn.path())?)
}

/// All tests that boot guests; what takes long comes first, so that no processor waits for it at last.
fn jobs(start: Instant, vmm: &Path, programs: &Programs, drawn: &Path) -> anyhow::Result<Vec<Job>> {
    let kvms = Kvm::all(vmm)?;
    let mut jobs = vec![bochs()?];
    for kvm in kvms {
        let guests = Guests { start, vmm, kvm: *kvm, kernel: &DEFAULT_KERNEL };
        jobs.extend(guests.session_in_parts(programs)?);
        jobs.extend(guests.product(programs)?);
    }
    jobs.extend(contract(vmm, kvms, programs)?);
    jobs.extend(differential(vmm, kvms, programs, drawn)?);
    for kvm in kvms {
        jobs.extend(examples::jobs(vmm, *kvm, programs)?);
        for kernel in KERNELS.iter().filter(|kernel| **kernel != DEFAULT_KERNEL) {
            if kernels::is_there(start, kernel)? {
                jobs.push(Guests { start, vmm, kvm: *kvm, kernel }.smoke(programs)?);
            }
        }
    }
    Ok(jobs)
}

/// What boots no guest. The engine's tests read the kernels that have been fetched, and say how many instructions can be probed.
fn without_guests(programs: &Programs) -> anyhow::Result<Vec<Job>> {
    let kernels = kernels::paths()?;
    let job = |(what, mut tests): (String, Command)| {
        tests.env("VMM_TEST_KERNELS", &kernels);
        Job::new(what, tests)
    };
    Ok(programs.without_guests().map(job).collect())
}

/// What runs inside Bochs.
fn bochs() -> anyhow::Result<Job> {
    let mut tests = Command::new(env::current_exe().context("no name of this program")?);
    tests.args(["test", "--bochs"]);
    Ok(Job::new("what runs inside Bochs", tests))
}

/// The KVM contract. A KVM that is not fit is tested as well, and says what it lacks.
fn contract(vmm: &Path, kvms: &[Kvm], programs: &Programs) -> anyhow::Result<Vec<Job>> {
    let program = programs.get("contract")?;
    let mut jobs = Vec::new();
    if !kvms.contains(&Kvm::Own) {
        let mut here = Command::new(program);
        here.arg("--show-output");
        jobs.push(Job::new("the KVM contract on this machine, whose KVM is not fit", here));
    }
    jobs.extend(kvms.iter().map(|kvm| {
        let tests = kvm.command(vmm, program, Variables::default());
        Job::new(format!("the KVM contract {}", kvm.words()), tests)
    }));
    Ok(jobs)
}

/// Every way past an instruction, for those in this file.
fn differential(vmm: &Path, kvms: &[Kvm], programs: &Programs, drawn: &Path) -> anyhow::Result<Vec<Job>> {
    let program = programs.get("differential")?;
    let job = |kvm: &Kvm| {
        let variables = Variables::default().with_file("VMM_DIFF_CORPUS", drawn);
        let mut tests = kvm.command(vmm, program, variables);
        tests.arg("--show-output");
        Job::new(format!("instructions of kernels {}", kvm.words()), tests)
    };
    Ok(kvms.iter().map(job).collect())
}

/// Whether they are still Rust: they are no part of the workspace. What runs them, which is C++, is not built for that.
fn fuzz_targets() -> Command {
    let mut check = cargo(["check", "--quiet", "--locked", "--manifest-path", "fuzz/Cargo.toml"]);
    check
        .args(["--bins", "--target-dir", "target/fuzz"])
        .env("CUSTOM_LIBFUZZER_PATH", "/nowhere/not-linked.a");
    check
}

fn cargo<const N: usize>(words: [&str; N]) -> Command {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(words).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    cargo
}

/// Runs it alone, and shows what it prints as it comes.
fn step(start: Instant, what: &str, mut command: Command) -> anyhow::Result<()> {
    say(start, what);
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{what}: failed");
    Ok(())
}

fn say(start: Instant, what: &str) {
    println!("test: [{:6.1} s] {what}", start.elapsed().as_secs_f32());
}
