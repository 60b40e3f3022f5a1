//! Results as JUnit's XML, which engines of CI read.

use super::judgement::Judgement;
use super::ktap::Subtest;
use super::results::CaseResult;
use anyhow::{Context, Result};
use probe_engine::guest_text::Escaped;
use quick_junit::{NonSuccessKind, Report, TestCaseStatus};
use std::time::Duration;

/// All results of the file that is called `name`. Each kernel is a suite. What could not be run, and what nobody knows, are errors
/// and no failures.
pub(crate) fn xml(name: &str, results: &[CaseResult]) -> Result<String> {
    let mut report = Report::new(plain(name));
    let mut kernels: Vec<&str> = Vec::new();
    for result in results {
        if !kernels.contains(&result.kernel.as_str()) {
            kernels.push(&result.kernel);
        }
    }
    for kernel in kernels {
        let mut suite = quick_junit::TestSuite::new(plain(kernel));
        for result in results.iter().filter(|result| result.kernel == kernel) {
            let mut case = quick_junit::TestCase::new(plain(&result.name), status(&result.judgement));
            case.set_classname(plain(kernel));
            case.set_time(Duration::try_from_secs_f64(result.seconds).unwrap_or_default());
            suite.add_test_case(case);
            for subtest in &result.subtests {
                add(&mut suite, kernel, &result.name, subtest);
            }
        }
        report.add_test_suite(suite);
    }
    report.to_string().context("the results cannot be written as XML")
}

/// Adds a subtest and its parts, which JUnit does not nest: their names are paths.
fn add(suite: &mut quick_junit::TestSuite, kernel: &str, of: &str, subtest: &Subtest) {
    let name = format!("{of}: {}", subtest.name);
    let mut case = quick_junit::TestCase::new(plain(&name), status(&subtest.judgement));
    case.set_classname(plain(kernel));
    suite.add_test_case(case);
    subtest.parts.iter().for_each(|part| add(suite, kernel, &name, part));
}

fn status(judgement: &Judgement) -> TestCaseStatus {
    let kind = match judgement {
        Judgement::Passed => return TestCaseStatus::success(),
        Judgement::Skipped(reason) => {
            let mut skipped = TestCaseStatus::skipped();
            skipped.set_message(plain(reason));
            return skipped;
        }
        Judgement::Failed(_) => NonSuccessKind::Failure,
        Judgement::Inconclusive(_) | Judgement::Infrastructure(_) => NonSuccessKind::Error,
    };
    let mut status = TestCaseStatus::non_success(kind);
    let reasons: Vec<String> = judgement.reasons().iter().map(|reason| plain(reason)).collect();
    status.set_type(judgement.word());
    status.set_message(reasons.first().map_or("", String::as_str));
    status.set_description(reasons.join("\n"));
    status
}

fn plain(text: &str) -> String {
    Escaped(text.as_bytes()).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::results::testing::results;
    use super::*;

    #[test]
    fn failures_and_errors_are_kept_apart_and_nothing_of_a_guest_is_markup() {
        let text = xml("cases.toml", &results()).unwrap();
        let read = Report::deserialize_from_str(&text).unwrap();
        assert_eq!((read.tests, read.failures, read.errors), (7, 2, 2));
        assert_eq!(read.test_suites.len(), 1);
        assert_eq!(read.test_suites[0].name.as_str(), "debian:6.12");
        assert!(text.contains("&lt;b&gt;") && !text.contains("<b>") && !text.contains('\u{1b}'), "{text}");
    }
}
