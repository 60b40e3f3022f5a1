//! Tests that boot guests, of one kernel: each gets its name in `VMM_TEST_KERNEL`.

use super::kvm::{Kvm, Variables};
use super::pool::{Job, side_by_side};
use super::programs::Programs;
use guest_kernels::{Cache, Flavour, Kernel};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The modules of the library's tests on real kernels, in parts that take about as long as each other; the last part is all others.
const PARTS: [&[&str]; 2] = [
    &["detours::", "detoured_returns::", "regions::", "groups::", "returned_reads::"],
    &["fire::", "storm::", "modules::", "holds::"],
];

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
    /// The library: each test boots a guest in its own process.
    pub(super) fn session(self) -> anyhow::Result<()> {
        let programs = Programs::built_of(&["session"])?;
        let tests = self.in_session(programs.get("session")?, Variables::default(), &[])?;
        self.alone("the library", tests)
    }

    /// The same, in programs that may run side by side.
    pub(super) fn session_in_parts(self, programs: &Programs) -> anyhow::Result<Vec<Job>> {
        let program = programs.get("session")?;
        let job = |which: &[&str]| {
            let what = format!("{}: {}", self.called("the library"), which.join(" "));
            Ok(Job::new(what, self.in_session(program, Variables::default(), which)?))
        };
        let others: Vec<&str> = PARTS.concat().into_iter().flat_map(|module| ["--skip", module]).collect();
        [&PARTS[..], &[&others]].concat().into_iter().map(job).collect()
    }

    /// The library, as long as it may take. `which`: words for the test program that choose some of them.
    pub(super) fn long_session(self, which: &[&str]) -> anyhow::Result<()> {
        side_by_side(self.start, vec![self.long_session_job(&Programs::built_of(&["session"])?, which)?])
    }

    /// The same, beside others.
    pub(super) fn long_session_job(self, programs: &Programs, which: &[&str]) -> anyhow::Result<Job> {
        let variables = Variables::default().with("VMM_LONG", "1");
        let tests = self.in_session(programs.get("session")?, variables, which)?;
        Ok(Job::new(self.called("the library, for long,"), tests))
    }

    /// The tests that run `vmm` as a user does, a job a program.
    pub(super) fn product(self, programs: &Programs) -> anyhow::Result<Vec<Job>> {
        programs.of_the_product().into_iter().map(|name| self.job(name, programs)).collect()
    }

    /// The least that a kernel must do. A real-time kernel has a sibling of its series that does all of that.
    pub(super) fn smoke(self, programs: &Programs) -> anyhow::Result<Job> {
        let mut tests = self.as_user(programs.get("smoke")?, 1);
        if self.kernel.flavour == Flavour::Realtime {
            tests.arg("opens_are_counted");
        }
        Ok(Job::new(self.called("smoke"), tests))
    }

    /// One program of the product's tests, as long as it may take.
    pub(super) fn long_product(self, name: &str) -> anyhow::Result<()> {
        self.long_product_with(name, &[])
    }

    /// The same, with these variables.
    pub(super) fn long_product_with(self, name: &str, variables: &[(&str, &OsStr)]) -> anyhow::Result<()> {
        // Each guest keeps a processor busy.
        let mut tests = self.as_user(Programs::built_of(&[name])?.get(name)?, 2);
        tests.env("VMM_LONG", "1").envs(variables.iter().copied());
        self.alone(&format!("{name}, for long,"), tests)
    }

    /// One program of the product's tests, as long as it may take, with these variables, beside others.
    pub(super) fn long_product_job(
        self,
        name: &str,
        programs: &Programs,
        variables: &[(&str, &OsStr)],
    ) -> anyhow::Result<Job> {
        let mut tests = self.as_user(programs.get(name)?, 1);
        tests.env("VMM_LONG", "1").envs(variables.iter().copied());
        Ok(Job::new(self.called(&format!("{name}, for long,")), tests))
    }

    /// Runs these tests, those that the emulator has failed once more.
    fn alone(self, what: &str, tests: Command) -> anyhow::Result<()> {
        side_by_side(self.start, vec![Job::new(self.called(what), tests)])
    }

    fn job(self, name: &str, programs: &Programs) -> anyhow::Result<Job> {
        Ok(Job::new(self.called(name), self.as_user(programs.get(name)?, 1)))
    }

    fn called(self, what: &str) -> String {
        format!("{what} on {}, {}", self.kernel, self.kvm.words())
    }

    fn in_session(self, program: &Path, variables: Variables, which: &[&str]) -> anyhow::Result<Command> {
        let cache = Cache::open()?;
        let kernel = cache.kernel(self.kernel)?;
        let variables = variables
            .with("VMM_TEST_KERNEL", self.kernel.to_string())
            .with_file("VMM_GUEST_INITRD", &cache.initramfs()?)
            // Beside the folder of the test programs.
            .with_file("VMM_GUEST_PROBED", &program.with_file_name("../probed"))
            .with_file(&self.kernel.variable(), &kernel.image);
        let variables = match kernel.guest_module("dummy") {
            Some(module) => variables.with_file("VMM_GUEST_MODULE_DUMMY", module),
            None => variables,
        };
        let mut tests = self.kvm.command(self.vmm, program, variables);
        tests.args(["--test-threads=1", "--show-output"]).args(which);
        Ok(tests)
    }

    /// What the tests print is shown: the figures of a comparison, and what is skipped.
    fn as_user(self, program: &Path, side_by_side: u8) -> Command {
        let mut tests = Command::new(program);
        tests.args(["--test-threads", &side_by_side.to_string(), "--show-output"]);
        tests.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests"));
        tests.env("VMM_BIN", self.vmm).env("VMM_TEST_KERNEL", self.kernel.to_string());
        tests.env("VMM_TEST_HOST", self.kvm.host());
        tests
    }
}
