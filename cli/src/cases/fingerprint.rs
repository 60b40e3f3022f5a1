//! By what a failure of a case is known from others, in all runs.

use super::observed::RecordedRun;
use probe_engine::guest_text::Escaped;

/// Those of all that went wrong: of reports of the kernel their own, of all else the `failures` that were found, without numbers
/// that differ from run to run.
pub(crate) fn of(run: &RecordedRun, failures: &[String]) -> Vec<String> {
    let reports: Vec<String> =
        run.failing_splats().map(|splat| Escaped(splat.to_string().as_bytes()).to_string()).collect();
    let own = run.failing_splats().map(|splat| Escaped(splat.fingerprint.as_bytes()).to_string());
    let others = failures.iter().filter(|failure| !reports.contains(failure));
    own.chain(others.map(|failure| without_numbers(failure))).collect()
}

/// The same words for the same failure. An exit code tells failures apart; how many hits there were does not.
fn without_numbers(failure: &str) -> String {
    if failure.starts_with("its exit code is ") {
        return failure.to_owned();
    }
    let mut print = String::new();
    let mut is_in_number = false;
    for c in failure.chars() {
        let is_in_word = print.ends_with(|last: char| last.is_alphanumeric() || last == '_');
        match c {
            c if is_in_number && c.is_ascii_alphanumeric() => {}
            '0'..='9' if !is_in_word => {
                is_in_number = true;
                print.push('N');
            }
            c => {
                is_in_number = false;
                print.push(c);
            }
        }
    }
    print
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Line, Reader, SplatLine, example};

    fn splat() -> SplatLine {
        let text = example("json");
        let mut reader = Reader::open(text.as_bytes()).unwrap();
        loop {
            if let Line::Splat(splat) = reader.next().unwrap().unwrap() {
                return SplatLine { allowed: None, repeats: 0, ..*splat };
            }
        }
    }

    #[test]
    fn a_report_has_its_own_and_all_else_its_words() {
        let splats = vec![
            splat(),
            SplatLine { repeats: 1, ..splat() },
            SplatLine { allowed: Some("known".to_owned()), fingerprint: "oops:f".to_owned(), ..splat() },
        ];
        let run = RecordedRun { splats, ..RecordedRun::default() };
        let failures =
            [Escaped(splat().to_string().as_bytes()).to_string(), "open: 3 hits, and not 2".to_owned()];
        assert_eq!(of(&run, &failures), [splat().fingerprint, "open: N hits, and not N".to_owned()]);
        assert_eq!(of(&RecordedRun::default(), &[]), [""; 0]);
    }

    #[test]
    fn numbers_that_differ_from_run_to_run_do_not_count() {
        for (failure, print) in [
            (
                "do_sys_openat2: hit 12: how is 0xffff8881, and not 7",
                "do_sys_openat2: hit N: how is N, and not N",
            ),
            ("its exit code is 7, and not 0", "its exit code is 7, and not 0"),
            ("walk: p99 is 3.25 x that of open", "walk: p99 is N.N x that of open"),
        ] {
            assert_eq!(without_numbers(failure), print);
        }
    }
}
