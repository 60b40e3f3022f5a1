//! `cargo xtask test`: everything that says whether the product works, on a machine as it comes.

use crate::{setup, vmx};
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, KERNELS};
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
        step(start, "unit tests and examples", unit()?)?;
        contract(start, &ready.vmm)?;
        step(start, "the product on real kernels", product(&ready.vmm, options.long))?;
    }
    say(start, "the KVM contract and a kernel in Bochs, on VMX");
    vmx::run(&ready.vmm)?;
    say(start, "all passed");
    Ok(())
}

/// Tests that need no guest. Those that read kernels find the fetched ones.
fn unit() -> anyhow::Result<Command> {
    let cache = Cache::open()?;
    let kernels =
        KERNELS.iter().filter_map(|kernel| cache.kernel(kernel.name).ok()).map(|kernel| kernel.image);
    let mut tests = cargo(["test", "--workspace", "--exclude", "tests"]);
    tests.env("VMM_TEST_KERNELS", env::join_paths(kernels)?);
    Ok(tests)
}

/// The KVM contract: on this machine's own KVM, and inside the emulated host, where it may not be skipped.
fn contract(start: Instant, vmm: &Path) -> anyhow::Result<()> {
    let program = contract_program()?;
    let mut here = Command::new(&program);
    here.arg("--show-output");
    step(start, "the KVM contract on this machine", here)?;
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
        .filter(|message| message.pointer("/target/name").is_some_and(|name| name == "contract"))
        .find_map(|message| message.get("executable")?.as_str().map(PathBuf::from));
    program.context("cargo built no program for the contract tests")
}

/// The tests that run `vmm` as a user does. Each guest keeps up to two processors busy.
fn product(vmm: &Path, long: bool) -> Command {
    let mut tests = cargo(["test", "--package", "tests"]);
    tests.args(["linux", "console", "wrong_input", "readme"].map(|name| format!("--test={name}")));
    if long {
        tests.arg("--test=soak");
    }
    tests.args(["--", "--test-threads", "2"]);
    tests.env("VMM_BIN", vmm);
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
