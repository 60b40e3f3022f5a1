//! How likely it is that a bad kernel passes, by how often one has failed.

/// How often runs of a kernel that is known to be bad have failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailureRate {
    pub(crate) failures: u32,
    pub(crate) runs: u32,
}

impl FailureRate {
    /// How likely a bad kernel passes `passes` times in a row.
    ///
    /// With the rate `p` that would be `(1 - p)^passes`. Few runs tell little of `p`: this is the mean over all rates, each as likely
    /// as the runs that were made leave it, where none was likelier than another before.
    pub(crate) fn all_pass(self, passes: u32) -> f64 {
        let (failures, runs) = (f64::from(self.failures), f64::from(self.runs));
        (0..passes).map(f64::from).map(|pass| (runs - failures + 1.0 + pass) / (runs + 2.0 + pass)).product()
    }

    /// After how many passes that is no likelier than `error`; `most` where it takes more.
    pub(crate) fn passes_for(self, error: f64, most: u32) -> u32 {
        (1..most).find(|passes| self.all_pass(*passes) <= error).unwrap_or(most)
    }
}

/// What may still go wrong, divided among the kernels that are still to be tried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorBudget {
    /// How likely the answer may be wrong.
    all: f64,
    /// How likely it is by now.
    spent: f64,
}

impl ErrorBudget {
    pub(crate) fn new(confidence: f64) -> Self {
        Self { all: 1.0 - confidence, spent: 0.0 }
    }

    /// What one kernel may take, of `left` that may have to be tried. Each halves what is left.
    pub(crate) fn share(self, left: usize) -> f64 {
        let tries = usize::BITS - left.max(1).leading_zeros();
        (self.all - self.spent) / f64::from(tries)
    }

    /// A kernel was tried, which could have passed as good by this chance though it is bad.
    pub(crate) fn spend(&mut self, error: f64) {
        self.spent += error;
    }

    /// How likely the answer is right.
    pub(crate) fn confidence(self) -> f64 {
        (1.0 - self.spent).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_more_is_known_the_fewer_passes_are_needed() {
        let needed = |failures, runs, error| FailureRate { failures, runs }.passes_for(error, 1000);
        // One failure of one run: 2 / ((n + 1) (n + 2)).
        assert!((FailureRate { failures: 1, runs: 1 }.all_pass(5) - 2.0 / 42.0).abs() < 1e-12);
        for (failures, runs, passes) in [(1, 1, 5), (5, 5, 2), (20, 20, 1), (5, 10, 6), (5, 50, 32)] {
            assert_eq!(needed(failures, runs, 0.05), passes, "{failures} of {runs}");
        }
        // It is never fewer than with a rate that is known: (1 - p)^n <= error.
        for (failures, runs) in [(1, 2), (5, 10), (50, 100), (500, 1000), (5, 6), (3, 30)] {
            let rate = f64::from(failures) / f64::from(runs);
            let known = (0.05_f64.ln() / (1.0 - rate).ln()).ceil() as u32;
            assert!(needed(failures, runs, 0.05) >= known, "{failures} of {runs}");
        }
        assert_eq!(needed(1, 100, 0.0), 1000);
        assert_eq!(FailureRate { failures: 1, runs: 1 }.all_pass(0), 1.0);
    }

    #[test]
    fn however_many_are_left_no_more_is_spent_than_may_go_wrong() {
        for left in [1, 2, 3, 7, 8, 100, 4096] {
            let mut budget = ErrorBudget::new(0.95);
            // In the worst case one goes at a time.
            for left in (1..=left).rev() {
                budget.spend(budget.share(left));
            }
            assert!(budget.confidence() >= 0.95 - 1e-9, "{left}: {}", budget.confidence());
        }
        assert!((ErrorBudget::new(0.9).share(7) - 0.1 / 3.0).abs() < 1e-12);
    }
}
