//! Every place of a change is found, and what cannot be told is said.

use super::super::halves;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const BUG: &str = "warning:f,g";

/// Kernels of which the one at `planted` is the first bad one.
struct Planted {
    list: Vec<String>,
    planted: usize,
    /// How often a bad one fails.
    rate: f64,
    /// What others come to than to pass or to fail.
    others: BTreeMap<usize, TrialOutcome>,
    seed: u64,
    runs: u32,
    steps: Vec<BisectStep>,
}

impl Planted {
    fn new(count: usize, planted: usize) -> Self {
        let list = (0..count).map(|n| n.to_string()).collect();
        Self { list, planted, rate: 1.0, others: BTreeMap::new(), seed: 1, runs: 0, steps: Vec::new() }
    }

    fn search(&mut self, rules: SearchRules) -> BisectAnswer {
        let (good, bad) = (self.list[0].clone(), self.list[self.list.len() - 1].clone());
        first_bad(self, (&good, &bad), rules).unwrap()
    }

    /// The numbers of those among which the first bad one is.
    fn found(&mut self, rules: SearchRules) -> Vec<usize> {
        match self.search(rules) {
            BisectAnswer::Found(found) => found.among.iter().map(|n| n.parse().unwrap()).collect(),
            answer => panic!("{answer:?}"),
        }
    }

    /// A number from 0 to 1, the same in all runs of this test.
    fn chance(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl Searched for Planted {
    fn open(&mut self, verdicts: &CandidateVerdicts) -> Result<Vec<String>> {
        Ok(halves::open(&self.list, verdicts))
    }

    fn run(&mut self, candidate: &str) -> Result<TrialOutcome> {
        self.runs += 1;
        let at: usize = candidate.parse()?;
        if let Some(outcome) = self.others.get(&at) {
            return Ok(outcome.clone());
        }
        Ok(match at >= self.planted && self.chance() < self.rate {
            true => failed(&[BUG]),
            false => TrialOutcome::Passed,
        })
    }

    fn tell(&mut self, step: &BisectStep) -> Result<()> {
        self.steps.push(step.clone());
        Ok(())
    }
}

fn failed(fingerprints: &[&str]) -> TrialOutcome {
    TrialOutcome::Failed { fingerprints: fingerprints.iter().map(|&print| print.to_owned()).collect() }
}

fn lost() -> TrialOutcome {
    TrialOutcome::Lost { why: "the host died".to_owned() }
}

const ONCE: SearchRules = SearchRules { confidence: None, most_runs: 100, retries: 1 };

#[test]
fn every_place_is_found_in_as_few_runs_as_halves_take() {
    for count in 2..=40 {
        for planted in 1..count {
            let mut all = Planted::new(count, planted);
            assert_eq!(all.found(ONCE), [planted], "{planted} of {count}");
            let halves = usize::BITS - (count - 2).leading_zeros();
            assert!(all.runs <= 2 + halves, "{planted} of {count}: {} runs", all.runs);
        }
    }
}

proptest! {
    /// Of those among which the first bad one is, nothing can be said but of the last; the one before them is good.
    #[test]
    fn what_cannot_be_told_is_left_open_and_nothing_else(
        planted in 1usize..20, skipped in proptest::collection::btree_set(1usize..19, 0..12),
    ) {
        let mut all = Planted::new(20, planted);
        let why = "its build failed".to_owned();
        all.others = skipped.iter().map(|at| (*at, TrialOutcome::Untestable { why: why.clone() })).collect();
        let mut found = all.found(ONCE);
        let last = found[found.len() - 1];
        found.sort_unstable();
        prop_assert!(found.contains(&planted) && found[found.len() - 1] == last);
        prop_assert!(found.windows(2).all(|pair| pair[1] == pair[0] + 1), "{:?}", found);
        prop_assert!(!skipped.contains(&last) && !skipped.contains(&(found[0] - 1)));
        prop_assert!(found[..found.len() - 1].iter().all(|at| skipped.contains(at)), "{:?}", found);
    }

    #[test]
    fn nothing_is_tried_twice(planted in 1usize..64, seed: u64) {
        let mut all = Planted { rate: 0.5, seed, ..Planted::new(64, planted) };
        let rules = SearchRules { confidence: Some(0.9), ..ONCE };
        let found = all.search(rules);
        prop_assert!(matches!(found, BisectAnswer::Found(_)), "{:?}", found);
        let mut tried: Vec<&str> = all.steps.iter().map(|step| step.candidate.as_str()).collect();
        tried.sort_unstable();
        let count = tried.len();
        tried.dedup();
        prop_assert_eq!(tried.len(), count);
    }
}

#[test]
fn a_failure_that_comes_seldom_is_found_as_often_as_is_said() {
    for (rate, confidence, most_runs) in
        [(0.2, 0.95, 200), (0.5, 0.95, 100), (0.9, 0.9, 100), (0.5, 0.5, 100)]
    {
        let rules = SearchRules { confidence: Some(confidence), most_runs, retries: 0 };
        let (mut right, mut least) = (0, 1.0_f64);
        const TIMES: u32 = 2000;
        for time in 0..TIMES {
            let planted = 1 + time as usize % 15;
            let mut all = Planted { rate, seed: u64::from(time) << 20, ..Planted::new(16, planted) };
            let BisectAnswer::Found(found) = all.search(rules) else {
                panic!("{rate}: the ends are as they are")
            };
            least = least.min(found.confidence.unwrap());
            right += u32::from(found.among == [planted.to_string()]);
        }
        assert!(least >= confidence - 1e-9, "{rate}: it has reached {least}");
        let reached = f64::from(right) / f64::from(TIMES);
        assert!(reached >= confidence, "{rate}: {reached} of the answers are right, and not {confidence}");
    }
}

#[test]
fn runs_that_may_not_be_made_lower_the_confidence_and_that_is_said() {
    let rules = SearchRules { confidence: Some(0.99), most_runs: 8, retries: 0 };
    let mut all = Planted { rate: 0.3, seed: 3, ..Planted::new(4, 2) };
    let BisectAnswer::Found(found) = all.search(rules) else { panic!() };
    assert!(found.confidence.unwrap() < 0.99);
    let step = all.steps.iter().find(|step| step.confidence.is_some()).unwrap();
    assert_eq!((step.tried.runs, step.tried.failures), (8, 0));
    assert!(step.confidence.unwrap() < 0.99);
}

#[test]
fn another_failure_is_neither_good_nor_bad() {
    let mut all = Planted::new(5, 2);
    all.others.insert(2, failed(&["oops:other"]));
    let mut found = all.found(ONCE);
    found.sort_unstable();
    assert_eq!(found, [2, 3]);
    let step = all.steps.iter().find(|step| step.candidate == "2").unwrap();
    assert_eq!(step.tried.verdict, CandidateVerdict::Skipped);
    assert_eq!(step.tried.why.as_deref(), Some("another failure: oops:other"));
    // What fails otherwise besides has the bug all the same.
    all.others.insert(2, failed(&["oops:other", BUG]));
    assert_eq!(all.found(ONCE), [2]);
}

#[test]
fn what_says_nothing_is_tried_again_as_often_as_is_said() {
    for (retries, runs) in [(0, 1), (2, 3)] {
        let mut all = Planted::new(3, 1);
        all.others.insert(1, lost());
        let rules = SearchRules { retries, ..ONCE };
        let mut found = all.found(rules);
        found.sort_unstable();
        assert_eq!((found, all.runs), (vec![1, 2], 2 + runs));
    }
    let mut all = Planted::new(3, 1);
    all.others.insert(1, TrialOutcome::Untestable { why: "its build failed".to_owned() });
    all.found(SearchRules { retries: 9, ..ONCE });
    assert_eq!(all.runs, 3);
}

#[test]
fn ends_that_are_not_what_they_were_said_to_be_end_the_search() {
    let answer = |planted, others: &[(usize, TrialOutcome)]| {
        let mut all = Planted::new(4, planted);
        all.others = others.iter().cloned().collect();
        (all.search(ONCE), all.steps.len())
    };
    let (bad, good) = (StepPlace::BadEnd, StepPlace::GoodEnd);
    assert_eq!(answer(4, &[]), (BisectAnswer::WrongEnd(bad), 1));
    assert_eq!(answer(0, &[]), (BisectAnswer::WrongEnd(good), 2));
    assert_eq!(answer(2, &[(3, lost())]), (BisectAnswer::UnknownEnd(bad), 1));
    assert_eq!(answer(2, &[(0, lost())]), (BisectAnswer::UnknownEnd(good), 2));
    // A failure of another kind is no sign that this one is there.
    assert_eq!(answer(2, &[(0, failed(&["oops:other"]))]), (BisectAnswer::UnknownEnd(good), 2));
}
