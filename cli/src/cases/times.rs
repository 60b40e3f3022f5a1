//! How long cases took, by which the next run begins with the longest.

use super::case_run::CaseRun;
use super::results::CaseResult;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Seconds by kernel and name.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct CaseTimes(BTreeMap<String, BTreeMap<String, f64>>);

impl CaseTimes {
    /// What a file has; nothing where there is none.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let times = serde_json::from_slice(&text);
        Ok(Self(times.with_context(|| format!("{} is no file of times", path.display()))?))
    }

    /// Puts the longest first. What is not known may be longer.
    pub(crate) fn sort(&self, runs: &mut [CaseRun<'_>]) {
        let time = |run: &CaseRun<'_>| self.of(&run.kernel.word, run.name());
        runs.sort_by(|one, other| time(other).total_cmp(&time(one)));
    }

    fn of(&self, kernel: &str, name: &str) -> f64 {
        self.0.get(kernel).and_then(|names| names.get(name)).copied().unwrap_or(f64::INFINITY)
    }

    /// Notes how long these took.
    pub(crate) fn add(&mut self, results: &[CaseResult]) {
        for result in results.iter().filter(|result| result.attempts > 0) {
            self.0.entry(result.kernel.clone()).or_default().insert(result.name.clone(), result.seconds);
        }
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.0)?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::testing::results;
    use super::*;

    #[test]
    fn times_are_kept_and_what_is_not_known_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("times");
        let mut times = CaseTimes::read(&path).unwrap();
        assert_eq!(times, CaseTimes::default());
        times.add(&results());
        times.write(&path).unwrap();
        let times = CaseTimes::read(&path).unwrap();
        assert_eq!((times.of("debian:6.12", "case 0"), times.of("debian:6.12", "new")), (1.5, f64::INFINITY));
        fs::write(&path, "[]").unwrap();
        assert!(CaseTimes::read(&path).is_err());
    }
}
