//! One case, which is run as often as somebody wants, on one kernel after the other.

use super::case_run::{CaseRun, Readiness};
use super::child::Bench;
use super::judge::Judged;
use super::kernels::{KnownKernel, TestedKernel};
use super::source::SuiteSource;
use super::suite::{TestCase, TestSuite};
use super::{checks, is_emulated};
use crate::args::HostArgs;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tempfile::TempDir;

/// Where a case is written.
pub(crate) struct SingleCaseSource {
    file: SuiteSource,
    /// Where its command begins.
    folder: PathBuf,
}

impl SingleCaseSource {
    /// In a file of cases.
    pub(crate) fn in_file(path: &Path) -> Result<Self> {
        let folder = std::path::absolute(path)?;
        let folder = folder.parent().unwrap_or(Path::new("/")).to_owned();
        Ok(Self { file: SuiteSource::read(path)?, folder })
    }

    /// Nowhere: `text` is what a file would say.
    pub(crate) fn of_text(text: String) -> Result<Self> {
        let folder = std::env::current_dir().context("there is no working directory")?;
        Ok(Self { file: SuiteSource::of("the command", text), folder })
    }

    /// All that it says.
    pub(crate) fn text(&self) -> &str {
        self.file.text()
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }
}

/// A case, and where it is run.
pub(crate) struct SingleCase {
    file: SuiteSource,
    suite: TestSuite,
    /// Its place in the suite.
    at: usize,
    bench: Bench,
    /// Where its runs leave what nobody wants.
    passing: Option<TempDir>,
}

impl SingleCase {
    /// The case of this name, or else the only one. What its runs leave is kept in `output`.
    pub(crate) fn of(
        source: SingleCaseSource,
        name: Option<&str>,
        place: &HostArgs,
        output: Option<&Path>,
        is_over: Arc<AtomicBool>,
    ) -> Result<Self> {
        let SingleCaseSource { file, folder } = source;
        let suite: TestSuite = file.parse()?;
        checks::check(&file, &folder, &suite)?;
        let is_it = |case: &TestCase| name.is_none_or(|name| case.name.get_ref() == name);
        let at = match (suite.cases.iter().position(is_it), name) {
            (None, Some(name)) => bail!("{} has no case of the name `{name}`", file.name()),
            (Some(_), None) if suite.cases.len() > 1 => {
                let names = suite.cases.iter().map(|case| format!("`{}`", case.name.get_ref()));
                bail!("name one case with --test: {}", names.collect::<Vec<_>>().join(", "))
            }
            (at, _) => at.unwrap_or_default(),
        };
        let passing = match output {
            Some(_) => None,
            None => Some(tempfile::tempdir().context("cannot create a folder for what runs leave")?),
        };
        let results = output.or(passing.as_ref().map(TempDir::path)).unwrap_or(Path::new("."));
        fs::create_dir_all(results).with_context(|| format!("cannot create {}", results.display()))?;
        let bench = Bench {
            here: folder,
            results: std::path::absolute(results)?,
            is_emulated: is_emulated(place)?,
            kvm_device: std::path::absolute(&place.kvm_device)?,
            is_over,
        };
        Ok(Self { file, suite, at, bench, passing })
    }

    fn case(&self) -> Result<&TestCase> {
        self.suite.cases.get(self.at).context("there is no case")
    }

    /// Where what runs leave is.
    pub(crate) fn results(&self) -> &Path {
        &self.bench.results
    }

    /// Whether it can be run on this kernel.
    ///
    /// # Errors
    /// What is wrong with a definition of its probes, on this kernel.
    pub(crate) fn ready(&self, kernel: &TestedKernel) -> Result<Readiness> {
        match kernel.read() {
            Ok(read) => {
                let known = KnownKernel::new(&kernel.word, &read);
                Readiness::of(&known, &self.file, &self.bench.here, (&self.suite, self.case()?))
            }
            Err(error) => Ok(Readiness::NoKernel(format!("{error:#}"))),
        }
    }

    /// Runs it once and judges it.
    pub(crate) fn judged(&self, kernel: &TestedKernel, ready: Readiness, number: usize) -> Result<Judged> {
        let case = self.case()?;
        let line = self.file.line_of(&case.name);
        let run = CaseRun { number, line, suite: &self.suite, case, kernel, ready };
        let judged = self.bench.judged(&run);
        if self.passing.is_some() {
            // What is not there need not go.
            let _ = fs::remove_dir_all(self.bench.results.join(run.folder()));
        }
        Ok(judged)
    }
}
