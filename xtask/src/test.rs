//! `cargo xtask test`: everything that says whether the product works, on a machine as it comes.

use crate::{setup, vmx};
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, KERNELS};
use rustix::process::{Pid, Signal, kill_process};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use tempfile::NamedTempFile;

/// Which tests.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Only those that run inside Bochs, on VMX: the KVM contract and one Linux boot with probes
    #[arg(long)]
    vmx: bool,
    /// Also storms and soaks that take long
    #[arg(long, conflicts_with = "vmx")]
    long: bool,
    /// Only what is run beside others: see [`Beside`]
    #[arg(long, hide = true, conflicts_with = "vmx")]
    beside: bool,
}

/// The modules of the library's tests on real kernels that are run beside the others.
const BESIDE: [&str; 4] = ["detours::", "detoured_returns::", "regions::", "groups::"];

pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let start = Instant::now();
    let ready = setup::run()?;
    if options.beside {
        vmx::run(&ready.vmm)?;
        session(start, &ready.vmm, options.long, &BESIDE)?;
    } else if !options.vmx {
        step(start, "format", cargo(["fmt", "--all", "--check"]))?;
        let lints = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"];
        step(start, "lints", cargo(lints))?;
        step(start, "unit tests and examples", cargo(["test", "--workspace", "--exclude", "tests"]))?;
        step(start, "the text of real kernels", kernel_text()?)?;
        contract(start, &ready.vmm)?;
        differential(start, &ready.vmm)?;
        let beside = Beside::start(start, options.long)?;
        let others: Vec<&str> = BESIDE.iter().flat_map(|module| ["--skip", module]).collect();
        session(start, &ready.vmm, options.long, &others)?;
        beside.end(start)?;
        step(start, "the product on real kernels", product(&ready.vmm, options.long))?;
    } else {
        say(start, "the KVM contract and a kernel in Bochs, on VMX");
        vmx::run(&ready.vmm)?;
    }
    say(start, "all passed");
    Ok(())
}

/// The engine's tests that read the kernels that have been fetched, and say how many instructions can be probed.
fn kernel_text() -> anyhow::Result<Command> {
    let mut tests = cargo(["test", "--package", "probe-engine"]);
    tests.args([
        "--test=kernel_text",
        "--test=detour_text",
        "--test=real_kernels",
        "--test=kernel_stacks",
        "--test=compiled",
        "--",
        "--show-output",
    ]);
    tests.env("VMM_TEST_KERNELS", env::join_paths(kernels()?)?);
    Ok(tests)
}

/// The kernels that have been fetched.
fn kernels() -> anyhow::Result<Vec<PathBuf>> {
    let cache = Cache::open()?;
    Ok(KERNELS
        .iter()
        .filter_map(|kernel| cache.kernel(kernel.name).ok())
        .map(|kernel| kernel.image)
        .collect())
}

/// The KVM contract: on this machine's own KVM, and inside the emulated host, where it may not be skipped.
fn contract(start: Instant, vmm: &Path) -> anyhow::Result<()> {
    let program = test_program("contract")?;
    let mut here = Command::new(&program);
    here.arg("--show-output");
    step(start, "the KVM contract on this machine", here)?;
    let mut inside = Command::new(vmm);
    inside.args(["host", "exec", "--env", "VMM_CONTRACT_REQUIRED=1"]).arg(&program);
    step(start, "the KVM contract in the emulated host", inside)
}

/// The library on real kernels: each test boots a guest in its own process, inside the emulated host. `which`: words for
/// the test program that choose some of them.
fn session(start: Instant, vmm: &Path, long: bool, which: &[&str]) -> anyhow::Result<()> {
    let cache = Cache::open()?;
    let mut inside = Command::new(vmm);
    inside.args(["host", "exec", "--env", "VMM_CONTRACT_REQUIRED=1", "--file"]);
    inside.arg(variable("VMM_GUEST_INITRD", &cache.initramfs()?));
    for kernel in KERNELS {
        inside.arg("--file").arg(variable(&kernel.variable(), &cache.kernel(kernel.name)?.image));
    }
    if long {
        inside.args(["--env", "VMM_LONG=1"]);
    }
    inside.arg(test_program("session")?).args(["--test-threads=1", "--show-output"]).args(which);
    step(start, "the library on real kernels, in the emulated host", inside)
}

/// The tests on VMX and then those of [`BESIDE`], while others run: Bochs and each emulated host keep one processor busy.
/// They are stopped when this is dropped, for then something else has failed.
struct Beside {
    tests: Child,
    printed: NamedTempFile,
}

impl Beside {
    fn start(start: Instant, long: bool) -> anyhow::Result<Self> {
        say(start, "beside what follows: Bochs, and what detours do in the emulated host");
        let printed = NamedTempFile::new().context("no temporary file")?;
        let output = printed.reopen()?;
        let mut tests = Command::new(env::current_exe().context("no name of this program")?);
        tests
            .args(["test", "--beside"])
            .args(long.then_some("--long"))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let tests = tests.spawn().with_context(|| format!("cannot run {tests:?}"))?;
        Ok(Self { tests, printed })
    }

    /// Waits for them and shows what they printed.
    fn end(mut self, start: Instant) -> anyhow::Result<()> {
        say(start, "waiting for what runs beside");
        let status = self.tests.wait().context("cannot wait for what runs beside")?;
        print!("{}", String::from_utf8_lossy(&fs::read(&self.printed)?));
        ensure!(status.success(), "what ran beside: failed");
        Ok(())
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if matches!(self.tests.try_wait(), Ok(None)) {
            // It may end at this moment, by itself.
            let _ = kill_process(Pid::from_child(&self.tests), Signal::TERM);
            let _ = self.tests.wait();
        }
    }
}

/// `NAME=VALUE`.
fn variable(name: &str, value: &Path) -> OsString {
    let mut variable = OsString::from(name);
    variable.push("=");
    variable.push(value);
    variable
}

/// Every way past an instruction, inside the emulated host.
fn differential(start: Instant, vmm: &Path) -> anyhow::Result<()> {
    const INSTRUCTIONS: u32 = 100_000;
    let program = test_program("differential")?;
    say(start, "drawing instructions from the kernels");
    let drawn = draw(INSTRUCTIONS)?;
    let mut inside = Command::new(vmm);
    inside.args(["host", "exec", "--env", "VMM_CONTRACT_REQUIRED=1", "--file"]);
    inside.arg(format!("VMM_DIFF_CORPUS={}", drawn.path().display())).arg(&program).arg("--show-output");
    step(start, "these instructions in the emulated host", inside)
}

/// A file of `count` instructions from the kernels that have been fetched.
pub(crate) fn draw(count: u32) -> anyhow::Result<NamedTempFile> {
    let file = NamedTempFile::new().context("no temporary file")?;
    let mut draw = cargo(["run", "--quiet", "--package", "tests", "--bin", "draw", "--"]);
    let status = draw.arg(file.path()).arg(count.to_string()).args(kernels()?).status();
    ensure!(status.context("cannot run cargo")?.success(), "no instructions were drawn");
    Ok(file)
}

/// Builds the tests of one name: a static program that runs anywhere.
pub(crate) fn test_program(name: &str) -> anyhow::Result<PathBuf> {
    let mut build = cargo(["test", "--package", "tests", "--test", name, "--no-run"]);
    let output = build.args(["--message-format", "json"]).output().context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "building the tests `{name}` failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let program = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message.pointer("/target/name").is_some_and(|target| target == name))
        .find_map(|message| message.get("executable")?.as_str().map(PathBuf::from));
    program.with_context(|| format!("cargo built no program for the tests `{name}`"))
}

/// The tests that run `vmm` as a user does. Each guest keeps up to two processors busy.
fn product(vmm: &Path, long: bool) -> Command {
    let mut tests = cargo(["test", "--package", "tests"]);
    tests.args(
        [
            "rules",
            "linux",
            "modules",
            "stacks",
            "ftrace",
            "coverage",
            "workload",
            "console",
            "host_exec",
            "wrong_input",
            "oracle",
            "tasks",
            "probeable",
            "optimized",
            "graph",
            "readme",
        ]
        .map(|name| format!("--test={name}")),
    );
    if long {
        tests.arg("--test=soak").env("VMM_LONG", "1");
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
