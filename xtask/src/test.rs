//! `cargo xtask test`: everything that says whether the product works, on a machine as it comes.

use crate::setup;
use anyhow::{Context as _, ensure};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Which tests.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only those that run inside Bochs, on VMX: the KVM contract and one Linux boot with probes
    #[arg(long)]
    vmx: bool,
    /// Also storms and soaks that take long
    #[arg(long, conflicts_with = "vmx")]
    long: bool,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let start = Instant::now();
    let ready = setup::run()?;
    if !options.vmx {
        step(start, "format", cargo(["fmt", "--all", "--check"]))?;
        let lints = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"];
        step(start, "lints", cargo(lints))?;
        step(start, "unit tests and examples", cargo(["test", "--workspace", "--exclude", "tests"]))?;
        contract(start, &ready.vmm)?;
        step(start, "the product on real kernels", product(&ready.vmm, options.long))?;
    }
    say(start, "all passed");
    Ok(())
}

/// The KVM contract: on this machine's own KVM, and inside the emulated host, where it may not be skipped.
fn contract(start: Instant, vmm: &Path) -> anyhow::Result<()> {
    let program = contract_program()?;
    step(start, "the KVM contract on this machine", Command::new(&program))?;
    let mut inside = Command::new(vmm);
    inside.args(["host", "exec", "--env", "VMM_CONTRACT_REQUIRED=1"]).arg(&program);
    step(start, "the KVM contract in the emulated host", inside)
}

/// Builds the contract tests: one static program that runs anywhere.
pub(crate) fn contract_program() -> anyhow::Result<PathBuf> {
    let mut build = cargo(["test", "--package", "tests", "--test", "contract", "--no-run"]);
    let output = build.args(["--message-format", "json"]).output().context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "building the contract tests failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let program = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "contract")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    program.context("cargo built no program for the contract tests")
}

/// The tests that run `vmm` as a user does. Each guest keeps up to two processors busy.
fn product(vmm: &Path, long: bool) -> Command {
    let mut tests = cargo(["test", "--package", "tests", "--test", "linux", "--test", "wrong_input"]);
    tests.args(["--", "--test-threads", "2"]);
    tests.env("VMM_BIN", vmm);
    if long {
        tests.env("VMM_LONG", "1");
    }
    tests
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
