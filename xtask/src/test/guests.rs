//! Tests that boot guests, of one kernel: each gets its name in `VMM_TEST_KERNEL`.

use super::kvm::{Kvm, Variables};
use super::{cargo, programs, step, test_program};
use guest_kernels::{Cache, Kernel};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The library: each test boots a guest in its own process. `which`: words for the test program that choose some of them.
pub(super) fn session(
    start: Instant,
    vmm: &Path,
    kvm: Kvm,
    kernel: &Kernel,
    which: &[&str],
) -> anyhow::Result<()> {
    let what = format!("the library on {}, {}", kernel.name, kvm.words());
    step(start, &what, of_session(vmm, kvm, kernel, Variables::default(), which)?)
}

/// The same, as long as it may take.
pub(super) fn long_session(
    start: Instant,
    vmm: &Path,
    kvm: Kvm,
    kernel: &Kernel,
    which: &[&str],
) -> anyhow::Result<()> {
    let what = format!("the library on {}, for long, {}", kernel.name, kvm.words());
    step(start, &what, of_session(vmm, kvm, kernel, Variables::default().with("VMM_LONG", "1"), which)?)
}

fn of_session(
    vmm: &Path,
    kvm: Kvm,
    kernel: &Kernel,
    variables: Variables,
    which: &[&str],
) -> anyhow::Result<Command> {
    let cache = Cache::open()?;
    let variables = variables
        .with("VMM_TEST_KERNEL", kernel.name)
        .with_file("VMM_GUEST_INITRD", &cache.initramfs()?)
        .with_file(&kernel.variable(), &cache.kernel(kernel.name)?.image);
    let mut tests = kvm.command(vmm, &test_program("session")?, variables);
    tests.args(["--test-threads=1", "--show-output"]).args(which);
    Ok(tests)
}

/// The tests that run `vmm` as a user does.
pub(super) fn product(start: Instant, vmm: &Path, kvm: Kvm, kernel: &Kernel) -> anyhow::Result<()> {
    let names = programs::of_the_product()?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let what = format!("the product on {}, {}", kernel.name, kvm.words());
    step(start, &what, as_user(vmm, kvm, kernel, &names))
}

/// The least that a kernel must do.
pub(super) fn smoke(start: Instant, vmm: &Path, kvm: Kvm, kernel: &Kernel) -> anyhow::Result<()> {
    let what = format!("six guests of {}, {}", kernel.name, kvm.words());
    step(start, &what, as_user(vmm, kvm, kernel, &["smoke"]))
}

/// One program of those tests, as long as it may take.
pub(super) fn long_product(
    start: Instant,
    vmm: &Path,
    kvm: Kvm,
    kernel: &Kernel,
    name: &str,
) -> anyhow::Result<()> {
    let mut tests = as_user(vmm, kvm, kernel, &[name]);
    tests.env("VMM_LONG", "1");
    step(start, &format!("{name} on {}, for long, {}", kernel.name, kvm.words()), tests)
}

/// What they print is shown: the figures of a comparison, and what is skipped. Each guest keeps up to two processors busy.
fn as_user(vmm: &Path, kvm: Kvm, kernel: &Kernel, names: &[&str]) -> Command {
    let mut tests = cargo(["test", "--package", "tests", "--no-fail-fast"]);
    tests.args(names.iter().map(|name| format!("--test={name}")));
    tests.args(["--", "--test-threads", "2", "--show-output"]);
    tests.env("VMM_BIN", vmm).env("VMM_TEST_KERNEL", kernel.name).env("VMM_TEST_HOST", kvm.host());
    tests
}
