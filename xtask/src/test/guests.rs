//! Tests that boot guests, of one kernel: each gets its name in `VMM_TEST_KERNEL`.

use super::{cargo, programs, step, test_program};
use guest_kernels::{Cache, Kernel};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The library: each test boots a guest in its own process, inside the emulated host. `which`: words for the test
/// program that choose some of them.
pub(super) fn session(start: Instant, vmm: &Path, kernel: &Kernel, which: &[&str]) -> anyhow::Result<()> {
    let what = format!("the library on {}, in the emulated host", kernel.name);
    step(start, &what, in_session(vmm, kernel, &[], which)?)
}

/// The same, as long as it may take.
pub(super) fn long_session(
    start: Instant,
    vmm: &Path,
    kernel: &Kernel,
    which: &[&str],
) -> anyhow::Result<()> {
    let what = format!("the library on {}, for long, in the emulated host", kernel.name);
    step(start, &what, in_session(vmm, kernel, &["--env", "VMM_LONG=1"], which)?)
}

fn in_session(vmm: &Path, kernel: &Kernel, variables: &[&str], which: &[&str]) -> anyhow::Result<Command> {
    let cache = Cache::open()?;
    let mut inside = Command::new(vmm);
    inside.args(["host", "exec", "--env", "VMM_CONTRACT_REQUIRED=1"]).args(variables);
    inside.arg("--env").arg(format!("VMM_TEST_KERNEL={}", kernel.name));
    inside.arg("--file").arg(variable("VMM_GUEST_INITRD", &cache.initramfs()?));
    inside.arg("--file").arg(variable(&kernel.variable(), &cache.kernel(kernel.name)?.image));
    inside.arg(test_program("session")?).args(["--test-threads=1", "--show-output"]).args(which);
    Ok(inside)
}

/// `NAME=VALUE`.
fn variable(name: &str, value: &Path) -> OsString {
    let mut variable = OsString::from(name);
    variable.push("=");
    variable.push(value);
    variable
}

/// The tests that run `vmm` as a user does.
pub(super) fn product(start: Instant, vmm: &Path, kernel: &Kernel) -> anyhow::Result<()> {
    let names = programs::of_the_product()?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    step(start, &format!("the product on {}", kernel.name), as_user(vmm, kernel, &names))
}

/// The least that a kernel must do.
pub(super) fn smoke(start: Instant, vmm: &Path, kernel: &Kernel) -> anyhow::Result<()> {
    step(start, &format!("six guests of {}", kernel.name), as_user(vmm, kernel, &["smoke"]))
}

/// One program of those tests, as long as it may take.
pub(super) fn long_product(start: Instant, vmm: &Path, kernel: &Kernel, name: &str) -> anyhow::Result<()> {
    let mut tests = as_user(vmm, kernel, &[name]);
    tests.arg("--show-output").env("VMM_LONG", "1");
    step(start, &format!("{name} on {}, for long", kernel.name), tests)
}

/// Each guest keeps up to two processors busy.
fn as_user(vmm: &Path, kernel: &Kernel, names: &[&str]) -> Command {
    let mut tests = cargo(["test", "--package", "tests", "--no-fail-fast"]);
    tests.args(names.iter().map(|name| format!("--test={name}")));
    tests.args(["--", "--test-threads", "2"]);
    tests.env("VMM_BIN", vmm).env("VMM_TEST_KERNEL", kernel.name);
    tests
}
