//! What a run of a kernel has shown.

use serde::{Deserialize, Serialize};

/// What came of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
pub(crate) enum TrialOutcome {
    Passed,
    /// By what this failure is known from others: more than one where more went wrong.
    Failed {
        fingerprints: Vec<String>,
    },
    /// It says nothing of the kernel; another run may.
    Lost {
        why: String,
    },
    /// Nothing can be said of this kernel, however often it is tried.
    Untestable {
        why: String,
    },
}

/// What is said of a kernel in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CandidateVerdict {
    Good,
    Bad,
    /// It could not be told.
    Skipped,
}

/// What was said of kernels, in the order in which they were tried.
#[derive(Debug, Default)]
pub(crate) struct CandidateVerdicts(Vec<(String, CandidateVerdict)>);

impl CandidateVerdicts {
    pub(crate) fn add(&mut self, candidate: &str, verdict: CandidateVerdict) {
        self.0.push((candidate.to_owned(), verdict));
    }

    pub(crate) fn of(&self, candidate: &str) -> Option<CandidateVerdict> {
        Some(self.0.iter().find(|(known, _)| known == candidate)?.1)
    }

    /// Those of which this was said.
    pub(crate) fn all(&self, verdict: CandidateVerdict) -> impl DoubleEndedIterator<Item = &str> {
        self.0.iter().filter(move |(_, said)| *said == verdict).map(|(candidate, _)| candidate.as_str())
    }
}
