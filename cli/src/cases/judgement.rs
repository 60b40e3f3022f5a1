//! What is said of a case in the end.

use serde::{Deserialize, Serialize};

/// How a case was judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", content = "reasons", rename_all = "lowercase")]
pub(crate) enum Judgement {
    /// All that was expected was seen.
    Passed,
    /// What was expected was not seen, for each of these reasons.
    Failed(Vec<String>),
    /// Something was not seen as a whole: what was expected may have been there or not.
    Inconclusive(Vec<String>),
    /// The kernel lacks what the case requires.
    Skipped(String),
    /// It could not be run, which says nothing about the kernel.
    Infrastructure(String),
}

impl Judgement {
    /// A failure is one, whatever was not seen besides.
    pub(crate) fn of(Findings { failures, doubts }: Findings) -> Self {
        match (failures.is_empty(), doubts.is_empty()) {
            (false, _) => Self::Failed(failures),
            (true, false) => Self::Inconclusive(doubts),
            (true, true) => Self::Passed,
        }
    }

    /// The word for it.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed(_) => "failed",
            Self::Inconclusive(_) => "inconclusive",
            Self::Skipped(_) => "skipped",
            Self::Infrastructure(_) => "infrastructure",
        }
    }

    /// Why it is so.
    pub(crate) fn reasons(&self) -> &[String] {
        match self {
            Self::Passed => &[],
            Self::Failed(reasons) | Self::Inconclusive(reasons) => reasons,
            Self::Skipped(reason) | Self::Infrastructure(reason) => std::slice::from_ref(reason),
        }
    }
}

/// What speaks against a case, and what leaves it open.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// What was expected and is not so, whatever was missed.
    pub(crate) failures: Vec<String>,
    /// What may be so or not.
    pub(crate) doubts: Vec<String>,
}

/// How many cases were judged how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct JudgementCounts {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) inconclusive: usize,
    pub(crate) skipped: usize,
    pub(crate) infrastructure: usize,
}

impl JudgementCounts {
    pub(crate) fn of<'a>(judgements: impl IntoIterator<Item = &'a Judgement>) -> Self {
        let mut counts = Self::default();
        for judgement in judgements {
            *match judgement {
                Judgement::Passed => &mut counts.passed,
                Judgement::Failed(_) => &mut counts.failed,
                Judgement::Inconclusive(_) => &mut counts.inconclusive,
                Judgement::Skipped(_) => &mut counts.skipped,
                Judgement::Infrastructure(_) => &mut counts.infrastructure,
            } += 1;
        }
        counts
    }

    /// What a run of these cases ends with: engines repeat what ends with 125, and not what ends with 1.
    pub(crate) fn exit_code(self) -> u8 {
        use crate::exit_codes::{FAILED, INFRASTRUCTURE, SKIPPED};
        match self {
            Self { failed: 1.., .. } => FAILED,
            Self { inconclusive: 1.., .. } | Self { infrastructure: 1.., .. } => INFRASTRUCTURE,
            Self { passed: 0, skipped: 1.., .. } => SKIPPED,
            _ => 0,
        }
    }
}

impl std::fmt::Display for JudgementCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { passed, failed, inconclusive, skipped, infrastructure } = self;
        write!(f, "{passed} passed")?;
        for (count, word) in [
            (failed, "failed"),
            (inconclusive, "inconclusive"),
            (skipped, "skipped"),
            (infrastructure, "not run (infrastructure)"),
        ] {
            if *count > 0 {
                write!(f, ", {count} {word}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_tells_failures_from_what_can_be_repeated() {
        let some = || vec!["why".to_owned()];
        let passed = || Judgement::Passed;
        let failed = || Judgement::Failed(some());
        let inconclusive = || Judgement::Inconclusive(some());
        let skipped = || Judgement::Skipped("why".to_owned());
        let lost = || Judgement::Infrastructure("why".to_owned());
        for (judgements, code) in [
            (vec![], 0),
            (vec![passed()], 0),
            (vec![passed(), skipped()], 0),
            (vec![skipped(), skipped()], 77),
            (vec![passed(), inconclusive()], 125),
            (vec![skipped(), lost()], 125),
            (vec![lost(), failed(), inconclusive(), passed()], 1),
        ] {
            assert_eq!(JudgementCounts::of(&judgements).exit_code(), code, "{judgements:?}");
        }
        let shown = JudgementCounts::of(&[passed(), failed(), lost()]).to_string();
        assert_eq!(shown, "1 passed, 1 failed, 1 not run (infrastructure)");
    }

    #[test]
    fn a_failure_is_one_whatever_was_not_seen_besides() {
        let some = || vec!["why".to_owned()];
        let of = |failures, doubts| Judgement::of(Findings { failures, doubts });
        assert_eq!(of(some(), some()), Judgement::Failed(some()));
        assert_eq!(of(vec![], some()), Judgement::Inconclusive(some()));
        assert_eq!(of(vec![], vec![]), Judgement::Passed);
    }
}
