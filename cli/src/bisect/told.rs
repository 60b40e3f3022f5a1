//! What is told of a bisection: a line a step, and the answer.

use super::candidates::Candidates;
use super::outcome::CandidateVerdict;
use super::search::{BisectAnswer, BisectStep, FirstBad, StepPlace};
use probe_engine::guest_text::Escaped;

/// A step, in one line.
pub(crate) fn step(step: &BisectStep, title: &str) -> String {
    let place = match step.place {
        StepPlace::BadEnd => "bad end".to_owned(),
        StepPlace::GoodEnd => "good end".to_owned(),
        StepPlace::Between(number) => format!("step {number}"),
    };
    let tried = &step.tried;
    let why = tried.why.as_ref().map(|why| Escaped(why.as_bytes()).to_string()).unwrap_or_default();
    let came_to = match (tried.verdict, step.place) {
        (CandidateVerdict::Good, _) => {
            let sure =
                step.confidence.map(|sure| format!(", confidence {}", floor(sure))).unwrap_or_default();
            format!("good: passed in {}{sure}", runs(tried.runs))
        }
        (CandidateVerdict::Bad, StepPlace::Between(_) | StepPlace::GoodEnd) => {
            format!("bad: failed so in run {}", tried.runs)
        }
        (CandidateVerdict::Bad, StepPlace::BadEnd) => {
            format!("bad: failed in {} of {}: {why}", tried.failures, runs(tried.runs))
        }
        (CandidateVerdict::Skipped, _) => format!("skipped: {why}"),
    };
    format!("{place:<9} {title}  {came_to}")
}

/// The answer, in lines.
pub(crate) fn answer(answer: &BisectAnswer, candidates: &Candidates) -> Vec<String> {
    let end = |place| if place == StepPlace::BadEnd { "bad" } else { "good" };
    match answer {
        BisectAnswer::Found(found) => self::found(found, candidates),
        BisectAnswer::WrongEnd(StepPlace::BadEnd) => {
            vec!["nothing to look for: the bad end has passed".to_owned()]
        }
        BisectAnswer::WrongEnd(_) => vec!["nothing to look for: the good end fails as well".to_owned()],
        BisectAnswer::UnknownEnd(place) => {
            vec![format!("nothing can be said: the {} end could not be tested", end(*place))]
        }
    }
}

fn found(FirstBad { among, fingerprint, confidence }: &FirstBad, candidates: &Candidates) -> Vec<String> {
    let noun = candidates.noun();
    let mut lines = Vec::new();
    match among.as_slice() {
        [first] => {
            let before = candidates.before(among);
            let before = before.map(|good| format!(", and {good} the last good one")).unwrap_or_default();
            lines.push(format!("{} is the first bad {noun}{before}", candidates.title(first)));
        }
        several => {
            lines.push(format!("the first bad {noun} is one of these, of which others could not be tested:"));
            lines.extend(several.iter().map(|one| format!("  {}", candidates.title(one))));
            let before = candidates.before(among);
            lines.extend(before.map(|good| format!("{good} is the last good one")));
        }
    }
    lines.push(format!("fingerprint: {}", Escaped(fingerprint.as_bytes())));
    lines.push(match confidence {
        Some(sure) => format!("confidence: {}", floor(*sure)),
        None => "confidence: not known, each was run once (--confidence)".to_owned(),
    });
    lines
}

fn runs(count: u32) -> String {
    if count == 1 { "1 run".to_owned() } else { format!("{count} runs") }
}

/// A probability with three digits, never more than it is.
fn floor(probability: f64) -> String {
    format!("{:.3}", ((probability + 1e-9) * 1000.0).floor() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::super::search::Tried;
    use super::*;
    use crate::cases::TestedKernel;
    use crate::kernel_choice::Choice;

    #[test]
    fn each_step_is_a_line() {
        let tried = |verdict, runs, failures, why: &str| Tried {
            verdict,
            runs,
            failures,
            why: Some(why.to_owned()).filter(|why| !why.is_empty()),
        };
        for (place, tried, confidence, says) in [
            (
                StepPlace::BadEnd,
                tried(CandidateVerdict::Bad, 9, 5, "oops:f\u{1b}"),
                None,
                "bad end   k  bad: failed in 5 of 9 runs: oops:f\\x1b",
            ),
            (
                StepPlace::GoodEnd,
                tried(CandidateVerdict::Good, 1, 0, ""),
                None,
                "good end  k  good: passed in 1 run",
            ),
            (
                StepPlace::Between(1),
                tried(CandidateVerdict::Good, 9, 0, ""),
                Some(0.98765),
                "step 1    k  good: passed in 9 runs, confidence 0.987",
            ),
            (
                StepPlace::Between(12),
                tried(CandidateVerdict::Bad, 3, 1, "oops:f"),
                None,
                "step 12   k  bad: failed so in run 3",
            ),
            (
                StepPlace::Between(2),
                tried(CandidateVerdict::Skipped, 0, 0, "its build failed"),
                None,
                "step 2    k  skipped: its build failed",
            ),
        ] {
            let step = BisectStep { place, candidate: "k".to_owned(), tried, confidence };
            assert_eq!(self::step(&step, "k"), says);
        }
    }

    #[test]
    fn the_answer_names_the_first_bad_one_or_all_that_may_be_it() {
        let kernel = |word: &str| TestedKernel { word: word.to_owned(), choice: Choice::At(word.into()) };
        let candidates = Candidates::Kernels(["a", "b", "c", "d"].map(kernel).into());
        let found = |among: &[&str], confidence| {
            let among = among.iter().map(|&one| one.to_owned()).collect();
            let found = FirstBad { among, fingerprint: "oops:f".to_owned(), confidence };
            answer(&BisectAnswer::Found(found), &candidates)
        };
        assert_eq!(
            found(&["c"], Some(0.95)),
            [
                "c is the first bad kernel, and b the last good one",
                "fingerprint: oops:f",
                "confidence: 0.950"
            ]
        );
        let lines = found(&["b", "c"], None);
        assert_eq!(lines[1..4], ["  b", "  c", "a is the last good one"]);
        assert!(lines[5].contains("--confidence"), "{lines:?}");
        for place in [StepPlace::BadEnd, StepPlace::GoodEnd] {
            assert_eq!(answer(&BisectAnswer::WrongEnd(place), &candidates).len(), 1);
            let unknown = answer(&BisectAnswer::UnknownEnd(place), &candidates);
            assert!(unknown[0].contains("could not be tested"), "{unknown:?}");
        }
    }
}
