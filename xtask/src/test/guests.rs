//! Tests that boot guests, of one kernel: each gets its name in `VMM_TEST_KERNEL`.

use super::kvm::{Kvm, Variables};
use super::{cargo, programs, step, test_program};
use guest_kernels::{Cache, Kernel};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Guests of one kernel on one KVM.
#[derive(Clone, Copy)]
pub(super) struct Guests<'a> {
    /// When the tests began.
    pub(super) start: Instant,
    pub(super) vmm: &'a Path,
    pub(super) kvm: Kvm,
    pub(super) kernel: &'a Kernel,
}

impl Guests<'_> {
    /// The library: each test boots a guest in its own process. `which`: words for the test program that choose some of
    /// them.
    pub(super) fn session(self, which: &[&str]) -> anyhow::Result<()> {
        self.step("the library", "", self.in_session(Variables::default(), which)?)
    }

    /// The same, as long as it may take.
    pub(super) fn long_session(self, which: &[&str]) -> anyhow::Result<()> {
        let variables = Variables::default().with("VMM_LONG", "1");
        self.step("the library", ", for long", self.in_session(variables, which)?)
    }

    /// The tests that run `vmm` as a user does.
    pub(super) fn product(self) -> anyhow::Result<()> {
        let names = programs::of_the_product()?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        self.step("the product", "", self.as_user(&names))
    }

    /// The least that a kernel must do.
    pub(super) fn smoke(self) -> anyhow::Result<()> {
        self.step("smoke guests", "", self.as_user(&["smoke"]))
    }

    /// One program of the product's tests, as long as it may take.
    pub(super) fn long_product(self, name: &str) -> anyhow::Result<()> {
        self.long_product_with(name, &[])
    }

    /// The same, with these variables.
    pub(super) fn long_product_with(self, name: &str, variables: &[(&str, &OsStr)]) -> anyhow::Result<()> {
        let mut tests = self.as_user(&[name]);
        tests.env("VMM_LONG", "1").envs(variables.iter().copied());
        self.step(name, ", for long", tests)
    }

    fn step(self, what: &str, how: &str, tests: Command) -> anyhow::Result<()> {
        let what = format!("{what} on {}{how}, {}", self.kernel, self.kvm.words());
        step(self.start, &what, tests)
    }

    fn in_session(self, variables: Variables, which: &[&str]) -> anyhow::Result<Command> {
        let cache = Cache::open()?;
        let kernel = cache.kernel(self.kernel)?;
        let variables = variables
            .with("VMM_TEST_KERNEL", self.kernel.to_string())
            .with_file("VMM_GUEST_INITRD", &cache.initramfs()?)
            .with_file(&self.kernel.variable(), &kernel.image);
        let variables = match kernel.guest_module("dummy") {
            Some(module) => variables.with_file("VMM_GUEST_MODULE_DUMMY", module),
            None => variables,
        };
        let mut tests = self.kvm.command(self.vmm, &test_program("session")?, variables);
        tests.args(["--test-threads=1", "--show-output"]).args(which);
        Ok(tests)
    }

    /// What the tests print is shown: the figures of a comparison, and what is skipped. Each guest keeps up to two
    /// processors busy.
    fn as_user(self, names: &[&str]) -> Command {
        let mut tests = cargo(["test", "--package", "tests", "--no-fail-fast"]);
        tests.args(names.iter().map(|name| format!("--test={name}")));
        tests.args(["--", "--test-threads", "2", "--show-output"]);
        tests.env("VMM_BIN", self.vmm).env("VMM_TEST_KERNEL", self.kernel.to_string());
        tests.env("VMM_TEST_HOST", self.kvm.host());
        tests
    }
}
