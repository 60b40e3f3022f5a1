//! The table of rules names tests that are run.
#![allow(clippy::unwrap_used, reason = "what goes wrong here is a failed test")]

use std::fs;
use std::path::Path;

/// Whether a file has a test of this name that no `#[ignore]` leaves out.
fn is_run(text: &str, test: &str) -> bool {
    let Some((before, _)) = text.split_once(&format!("fn {test}()")) else { return false };
    // What stands between the item before and this one: documentation and attributes.
    let attributes = before.rsplit('}').next().unwrap_or_default();
    attributes.contains("#[test]") && !attributes.contains("#[ignore")
}

#[test]
fn a_function_that_is_no_test_shows_nothing() {
    let text =
        "fn helper() {}\n#[test]\n#[should_panic]\nfn shown() {}\n#[test]\n#[ignore]\nfn left_out() {}\n";
    assert!(is_run(text, "shown"));
    assert!(["helper", "left_out", "missing"].iter().all(|test| !is_run(text, test)));
}

#[test]
fn every_rule_has_its_tests() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let table = fs::read_to_string(root.join("tests/RULES.md")).unwrap();
    let rules = table.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| rule"));
    let mut shown = 0;
    for rule in rules {
        let tests: Vec<(&str, &str)> =
            rule.split('`').filter_map(|words| words.split_once(".rs: ")).collect();
        assert!(!tests.is_empty(), "no test: {rule}");
        for (file, test) in tests {
            let text = fs::read_to_string(root.join(format!("{file}.rs"))).unwrap();
            assert!(is_run(&text, test), "{file}.rs has no test {test} that is run");
            shown += 1;
        }
    }
    assert!(shown > 50, "{shown}");
}
