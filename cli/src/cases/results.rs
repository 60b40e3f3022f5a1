//! What came of a case, as it is kept and told.

use super::case_run::CaseRun;
use super::judge::Judged;
use super::judgement::Judgement;
use super::ktap::Subtest;
use probe_engine::guest_text::Escaped;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::time::Duration;

/// What came of a case on a kernel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CaseResult {
    /// Its place among all cases of the file and all kernels.
    pub(crate) number: usize,
    pub(crate) kernel: String,
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) judgement: Judgement,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) subtests: Vec<Subtest>,
    /// How long it took, which is told and never judged.
    pub(crate) seconds: f64,
}

impl CaseResult {
    pub(crate) fn of(run: &CaseRun<'_>, Judged { judgement, subtests }: Judged, took: Duration) -> Self {
        let (number, kernel, name) = (run.number, run.kernel.word.clone(), run.name().to_owned());
        Self { number, kernel, name, judgement, subtests, seconds: took.as_secs_f64() }
    }

    /// Writes it for people, on one line and one more for each reason.
    pub(crate) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let (word, name) = (self.judgement.word(), Escaped(self.name.as_bytes()));
        writeln!(out, "{word:<14}  {name} [{}]  {:.1} s", Escaped(self.kernel.as_bytes()), self.seconds)?;
        for reason in self.judgement.reasons() {
            writeln!(out, "                {}", Escaped(reason.as_bytes()))?;
        }
        Ok(())
    }
}
