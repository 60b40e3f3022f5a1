//! What came of a case, as it is kept and told.

use super::case_run::{CaseRun, Readiness};
use super::judge::Judged;
use super::judgement::Judgement;
use super::ktap::Subtest;
use probe_engine::guest_text::Escaped;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::time::Duration;

/// What came of a case on a kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "case")]
pub(crate) struct CaseResult {
    /// Its place among all cases of the file and all kernels.
    pub(crate) number: usize,
    pub(crate) kernel: String,
    pub(crate) name: String,
    /// Where it is in the file.
    pub(crate) line: usize,
    #[serde(flatten)]
    pub(crate) judgement: Judgement,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) subtests: Vec<Subtest>,
    /// How often it was run, which is more than once after failures of infrastructure.
    pub(crate) attempts: u32,
    /// How long it took, which is told and never judged.
    pub(crate) seconds: f64,
    /// The words of `vmm run` that run it by hand; none where it was not run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) command: Vec<String>,
}

impl CaseResult {
    pub(crate) fn of(run: &CaseRun<'_>, judged: Judged, attempts: u32, took: Duration) -> Self {
        let Judged { judgement, subtests, .. } = judged;
        let (number, line, seconds) = (run.number, run.line, took.as_secs_f64());
        let (kernel, name) = (run.kernel.word.clone(), run.name().to_owned());
        let command = match run.ready {
            Readiness::Ready(_) => {
                run.words().iter().map(|word| word.to_string_lossy().into_owned()).collect()
            }
            _ => Vec::new(),
        };
        Self { number, kernel, name, line, judgement, subtests, attempts, seconds, command }
    }

    /// Writes it for people, on one line and one more for each reason.
    pub(crate) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (word, name) = (self.judgement.word(), Escaped(self.name.as_bytes()));
        write!(out, "{word:<14}  {name} [{}]  {:.1} s", Escaped(self.kernel.as_bytes()), self.seconds)?;
        if self.attempts > 1 {
            write!(out, ", run {} times", self.attempts)?;
        }
        writeln!(out)?;
        for reason in self.judgement.reasons() {
            writeln!(out, "                {}", Escaped(reason.as_bytes()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// One of each kind, the second with two subtests.
    pub(crate) fn results() -> Vec<CaseResult> {
        let reasons = || vec!["<b>why</b> | \u{1b}[2J\n::error::forged # x".to_owned()];
        let part = |name: &str, judgement| Subtest { name: name.to_owned(), judgement, parts: Vec::new() };
        let parts = vec![part("x", Judgement::Passed), part("y", Judgement::Failed(reasons()))];
        let judgements = [
            (Judgement::Passed, vec![]),
            (Judgement::Failed(reasons()), parts),
            (Judgement::Inconclusive(reasons()), vec![]),
            (Judgement::Skipped("why".to_owned()), vec![]),
            (Judgement::Infrastructure("why".to_owned()), vec![]),
        ];
        let result = |(number, (judgement, subtests))| CaseResult {
            number,
            kernel: "debian:6.12".to_owned(),
            name: format!("case {number}"),
            line: 7,
            judgement,
            subtests,
            attempts: 1,
            seconds: 1.5,
            command: vec!["--probe=f if comm == \"a\"".to_owned()],
        };
        judgements.into_iter().enumerate().map(result).collect()
    }
}
