//! `cargo xtask test`: everything that says whether the product works, on a machine as it comes.
//!
//! One kernel is tested in full, the others by a few guests each. `--long NAME` runs what takes longer.

mod beside;
mod built;
mod examples;
mod guests;
mod hosts;
mod kernels;
mod kvm;
mod long;
mod programs;
mod races;
mod selftests;
mod vmx;

use crate::setup;
use anyhow::{Context as _, ensure};
use beside::Beside;
use guest_kernels::{DEFAULT_KERNEL, KERNELS};
use guests::Guests;
use kvm::{Kvm, Variables};
use long::Piece;
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use kernels::draw;
use programs::test_program;

/// Which tests.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only those that run inside Bochs, on VMX: the KVM contract and one Linux boot with probes
    #[arg(long)]
    vmx: bool,
    /// Only this piece of what takes long: all guest tests on another kernel, or storms, soaks and comparisons
    #[arg(long, value_name = "NAME", value_parser = long::names(), conflicts_with = "vmx")]
    long: Option<Piece>,
    /// Only what is run beside others: see [`Beside`]
    #[arg(long, hide = true, conflicts_with_all = ["vmx", "long"])]
    beside: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let start = Instant::now();
    let vmm = setup::run()?.vmm;
    if options.beside {
        beside::run(start, &vmm)?;
    } else if options.vmx {
        say(start, "the KVM contract and a kernel in Bochs, on VMX");
        let mut there = Vec::new();
        for kernel in KERNELS {
            if kernels::is_there(start, kernel)? {
                there.push(kernel);
            }
        }
        vmx::run(&vmm, &there)?;
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
    step(start, "unit tests and examples", cargo(["test", "--workspace", "--exclude", "tests"]))?;
    step(start, "unit tests of the tests' own library", cargo(["test", "--package", "tests", "--lib"]))?;
    step(start, "the fuzz targets", fuzz_targets())?;
    step(start, "building the tests that boot guests", cargo(["test", "--package", "tests", "--no-run"]))?;
    // All that follows is built. Most of it keeps one processor busy.
    let beside = Beside::start(start)?;
    step(start, "the text of real kernels", kernels::text()?)?;
    let kvms = Kvm::all(vmm)?;
    contract(start, vmm, kvms)?;
    differential(start, vmm, kvms)?;
    for kvm in kvms {
        // What is run beside the others is run in the emulated host only.
        let which = if *kvm == Kvm::Emulated { beside::others() } else { vec![] };
        Guests { start, vmm, kvm: *kvm, kernel: &DEFAULT_KERNEL }.session(&which)?;
        examples::run(start, vmm, *kvm)?;
    }
    beside.end(start)?;
    for kvm in kvms {
        Guests { start, vmm, kvm: *kvm, kernel: &DEFAULT_KERNEL }.product()?;
        for kernel in KERNELS.iter().filter(|kernel| **kernel != DEFAULT_KERNEL) {
            if kernels::is_there(start, kernel)? {
                Guests { start, vmm, kvm: *kvm, kernel }.smoke()?;
            }
        }
    }
    Ok(())
}

/// The KVM contract. A KVM that is not fit is tested as well, and says what it lacks.
fn contract(start: Instant, vmm: &Path, kvms: &[Kvm]) -> anyhow::Result<()> {
    let program = test_program("contract")?;
    if !kvms.contains(&Kvm::Own) {
        let mut here = Command::new(&program);
        here.arg("--show-output");
        step(start, "the KVM contract on this machine, whose KVM is not fit", here)?;
    }
    for kvm in kvms {
        let tests = kvm.command(vmm, &program, Variables::default());
        step(start, &format!("the KVM contract {}", kvm.words()), tests)?;
    }
    Ok(())
}

/// Every way past an instruction.
fn differential(start: Instant, vmm: &Path, kvms: &[Kvm]) -> anyhow::Result<()> {
    const INSTRUCTIONS: u32 = 100_000;
    let program = test_program("differential")?;
    say(start, "drawing instructions from the kernels");
    let drawn = draw(INSTRUCTIONS)?;
    for kvm in kvms {
        let variables = Variables::default().with_file("VMM_DIFF_CORPUS", drawn.path());
        let mut tests = kvm.command(vmm, &program, variables);
        tests.arg("--show-output");
        step(start, &format!("these instructions {}", kvm.words()), tests)?;
    }
    Ok(())
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

fn step(start: Instant, what: &str, mut command: Command) -> anyhow::Result<()> {
    say(start, what);
    let status = command.status().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{what}: failed");
    Ok(())
}

fn say(start: Instant, what: &str) {
    println!("test: [{:6.1} s] {what}", start.elapsed().as_secs_f32());
}
