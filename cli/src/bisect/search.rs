//! The search for the first bad one of candidates. It boots nothing: whoever calls it runs them.

use super::chance::{ErrorBudget, FailureRate};
use super::outcome::{CandidateVerdict, CandidateVerdicts, TrialOutcome};
use anyhow::Result;

/// What is searched.
pub(crate) trait Searched {
    /// Those that may be the first bad one: the best one to try first, the one that is known to be bad last.
    fn open(&mut self, verdicts: &CandidateVerdicts) -> Result<Vec<String>>;
    /// Runs one of them once.
    fn run(&mut self, candidate: &str) -> Result<TrialOutcome>;
    /// Tells what came of one.
    fn tell(&mut self, step: &BisectStep) -> Result<()>;
}

/// How long one is tried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchRules {
    /// How likely the answer is to be right; `None`: a failure comes in each run.
    pub(crate) confidence: Option<f64>,
    /// How often one is run at most.
    pub(crate) most_runs: u32,
    /// How many of its runs may say nothing.
    pub(crate) retries: u32,
}

/// Which candidate it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepPlace {
    BadEnd,
    GoodEnd,
    /// The n-th between them.
    Between(usize),
}

/// What came of a candidate.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct BisectStep {
    pub(crate) place: StepPlace,
    pub(crate) candidate: String,
    pub(crate) tried: Tried,
    /// How likely a verdict is right that could be wrong.
    pub(crate) confidence: Option<f64>,
}

/// What the search came to.
#[derive(Debug, PartialEq)]
pub(crate) enum BisectAnswer {
    Found(FirstBad),
    /// An end is not what it was said to be.
    WrongEnd(StepPlace),
    /// Nothing can be said of an end.
    UnknownEnd(StepPlace),
}

/// Where the change is.
#[derive(Debug, PartialEq)]
pub(crate) struct FirstBad {
    /// The first bad one, or several of which one is it: of all but the last of them nothing can be said.
    pub(crate) among: Vec<String>,
    pub(crate) fingerprint: String,
    /// How likely that is right.
    pub(crate) confidence: Option<f64>,
}

/// Searches from `good` to `bad`.
pub(crate) fn first_bad(
    searched: &mut dyn Searched,
    (good, bad): (&str, &str),
    rules: SearchRules,
) -> Result<BisectAnswer> {
    let tried = Enough::to_know_the_rate(rules).tried(searched, bad, None)?;
    let rate = FailureRate { failures: tried.failures, runs: tried.runs };
    let ended = tried.verdict;
    let fingerprint = tried.why.clone().unwrap_or_default();
    let step = BisectStep { place: StepPlace::BadEnd, candidate: bad.to_owned(), tried, confidence: None };
    searched.tell(&step)?;
    if ended != CandidateVerdict::Bad {
        return Ok(BisectAnswer::of_end(StepPlace::BadEnd, ended));
    }
    let mut verdicts = CandidateVerdicts::default();
    verdicts.add(bad, CandidateVerdict::Bad);
    verdicts.add(good, CandidateVerdict::Good);
    let mut budget = rules.confidence.map(ErrorBudget::new);
    let (mut place, mut candidate, mut number) = (StepPlace::GoodEnd, good.to_owned(), 0);
    loop {
        let left = searched.open(&verdicts)?.iter().filter(|open| verdicts.of(open).is_none()).count();
        let passes = budget.map_or(1, |budget| rate.passes_for(budget.share(left), rules.most_runs));
        let tried = Enough::passes(passes, rules).tried(searched, &candidate, Some(&fingerprint))?;
        let (verdict, error) = (tried.verdict, rate.all_pass(passes));
        let is_open = budget.is_some() && verdict == CandidateVerdict::Good;
        let confidence = is_open.then_some(1.0 - error);
        searched.tell(&BisectStep { place, candidate: candidate.clone(), tried, confidence })?;
        if place == StepPlace::GoodEnd {
            // That it is good is the user's word, which is not made less likely by how often it was tried.
            if verdict != CandidateVerdict::Good {
                return Ok(BisectAnswer::of_end(place, verdict));
            }
        } else {
            verdicts.add(&candidate, verdict);
            // A bad one could have passed as well; of one that is skipped nothing is said.
            if let Some(budget) = budget.as_mut().filter(|_| verdict != CandidateVerdict::Skipped) {
                budget.spend(error);
            }
        }
        let open = searched.open(&verdicts)?;
        let Some(next) = open.iter().find(|open| verdicts.of(open).is_none()) else {
            let confidence = budget.map(ErrorBudget::confidence);
            return Ok(BisectAnswer::Found(FirstBad { among: open, fingerprint, confidence }));
        };
        candidate.clone_from(next);
        number += 1;
        place = StepPlace::Between(number);
    }
}

impl BisectAnswer {
    /// Of an end to which this came.
    fn of_end(place: StepPlace, verdict: CandidateVerdict) -> Self {
        match verdict {
            CandidateVerdict::Skipped => Self::UnknownEnd(place),
            CandidateVerdict::Good | CandidateVerdict::Bad => Self::WrongEnd(place),
        }
    }
}

/// What runs of a candidate came to.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Tried {
    pub(crate) verdict: CandidateVerdict,
    /// How many have said something.
    pub(crate) runs: u32,
    pub(crate) failures: u32,
    /// The fingerprint of the failure, or why nothing can be said.
    pub(crate) why: Option<String>,
}

/// How often a candidate is run.
#[derive(Clone, Copy)]
struct Enough {
    /// No more when so many have failed: it is bad.
    failures: u32,
    /// No more than so many: without a failure it is good.
    runs: u32,
    /// No more when more than so many have said nothing.
    retries: u32,
}

impl Enough {
    /// The end that is bad is run until it is known how often it fails.
    fn to_know_the_rate(rules: SearchRules) -> Self {
        /// So many failures tell it.
        const FAILURES: u32 = 5;
        let (failures, runs) = rules.confidence.map_or((1, 1), |_| (FAILURES, rules.most_runs));
        Self { failures, runs, retries: rules.retries }
    }

    fn passes(runs: u32, rules: SearchRules) -> Self {
        Self { failures: 1, runs, retries: rules.retries }
    }

    /// Runs a candidate as often. A failure counts when it has this fingerprint; without one, that of the first failure.
    fn tried(self, searched: &mut dyn Searched, candidate: &str, fingerprint: Option<&str>) -> Result<Tried> {
        let mut counts = fingerprint.map(str::to_owned);
        let (mut runs, mut failures, mut lost) = (0, 0, 0);
        while failures < self.failures && runs < self.runs {
            let why = match searched.run(candidate)? {
                TrialOutcome::Passed => None,
                TrialOutcome::Failed { fingerprints } => {
                    let first = || fingerprints.first().cloned().unwrap_or_default();
                    let is_it = fingerprints.contains(counts.get_or_insert_with(first));
                    failures += u32::from(is_it);
                    (!is_it).then(|| format!("another failure: {}", first()))
                }
                TrialOutcome::Lost { why } => Some(why),
                TrialOutcome::Untestable { why } => {
                    lost = self.retries;
                    Some(why)
                }
            };
            match why {
                None => runs += 1,
                Some(why) if lost >= self.retries => {
                    return Ok(Tried { verdict: CandidateVerdict::Skipped, runs, failures, why: Some(why) });
                }
                Some(_) => lost += 1,
            }
        }
        let verdict = if failures > 0 { CandidateVerdict::Bad } else { CandidateVerdict::Good };
        Ok(Tried { verdict, runs, failures, why: counts.filter(|_| failures > 0) })
    }
}

#[cfg(test)]
mod tests;
