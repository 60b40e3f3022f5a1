//! A case on a kernel: what is run, judged and told as one.

use super::kernels::{KnownKernel, TestedKernel};
use super::known::{self, KnownCase};
use super::source::SuiteSource;
use super::suite::{TestCase, TestSuite};
use anyhow::Result;
use std::ffi::OsString;
use std::path::Path;

/// A case on a kernel.
pub(crate) struct CaseRun<'a> {
    /// Its place among all of them.
    pub(crate) number: usize,
    /// Where the case is in the file.
    pub(crate) line: usize,
    pub(crate) suite: &'a TestSuite,
    pub(crate) case: &'a TestCase,
    pub(crate) kernel: &'a TestedKernel,
    pub(crate) ready: Readiness,
}

/// Whether it can be run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// Its definitions come to so many probes each.
    Ready(Vec<u32>),
    /// The kernel lacks what it requires.
    Lacking(String),
    /// There is no such kernel to be had.
    NoKernel(String),
}

/// So long a guest may take that runs natively, in seconds, where its case does not say it.
const TIMEOUT: u64 = 100;
/// In the emulated host it may take so many times as long.
const EMULATED: u64 = 6;

impl Readiness {
    /// Whether `case` of a file in `folder` can be run on a kernel that is there.
    ///
    /// # Errors
    /// What is wrong with its definitions on this kernel.
    pub(crate) fn of(
        known: &KnownKernel<'_>,
        file: &SuiteSource,
        folder: &Path,
        (suite, case): (&TestSuite, &TestCase),
    ) -> Result<Self> {
        if let Some(reason) = known.lacks(file, case)? {
            return Ok(Self::Lacking(reason));
        }
        let found = known.probes(file, case)?;
        known.check_modules(file, folder, (suite, case), &found)?;
        let count = |found: &Vec<_>| u32::try_from(found.len()).unwrap_or(u32::MAX);
        Ok(Self::Ready(found.iter().map(count).collect()))
    }
}

impl CaseRun<'_> {
    pub(crate) fn name(&self) -> &str {
        self.case.name.get_ref()
    }

    /// By what it is known from others.
    pub(crate) fn known(&self) -> KnownCase {
        let (number, line) = (self.number, self.line);
        KnownCase { number, kernel: self.kernel.word.clone(), name: self.name().to_owned(), line }
    }

    /// How long its guest may take, in seconds.
    pub(crate) fn limit(&self, is_emulated: bool) -> u64 {
        let said = self.case.timeout.or(self.suite.timeout).unwrap_or(TIMEOUT);
        said.saturating_mul(if is_emulated { EMULATED } else { 1 })
    }

    pub(crate) fn cpus(&self) -> u8 {
        let cpus = self.case.cpus.as_ref().or(self.suite.cpus.as_ref());
        cpus.map_or(1, |cpus| *cpus.get_ref())
    }

    /// As it is written.
    pub(crate) fn memory(&self) -> &str {
        let memory = self.case.memory.as_ref().or(self.suite.memory.as_ref());
        memory.map_or("512M", |memory| memory.get_ref())
    }

    /// What is said to `vmm run` of its guest and its probes, but for the limit of its time. Its command comes last.
    pub(crate) fn words(&self) -> Vec<OsString> {
        let Self { suite, case, .. } = self;
        let mut words = Vec::new();
        let mut option = |name: &str, value: &str| words.push(OsString::from(format!("--{name}={value}")));
        option("cpus", &self.cpus().to_string());
        option("memory", self.memory());
        let appended = [&suite.append, &case.append].into_iter().flatten().cloned().collect::<Vec<_>>();
        if !appended.is_empty() {
            option("append", &appended.join(" "));
        }
        if let Some(initrd) = case.initrd(suite) {
            option("initrd", initrd.get_ref());
        }
        case.probes.iter().for_each(|probe| option("probe", probe.at.get_ref()));
        if let Some(definition) = &case.fail_nth {
            option("fail-nth", definition.get_ref());
        }
        words.push("--kernel".into());
        words.push(self.kernel.choice.word());
        if let Some(program) = &case.run {
            words.push("--".into());
            words.extend(program.words());
        }
        words
    }

    /// Its folder among those of all.
    pub(crate) fn folder(&self) -> String {
        known::folder(self.number, &self.kernel.word, self.name())
    }
}
