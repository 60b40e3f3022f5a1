//! The table of rules names tests that exist.
#![allow(clippy::unwrap_used, reason = "what goes wrong here is a failed test")]

use std::fs;
use std::path::Path;

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
            assert!(text.contains(&format!("fn {test}()")), "{file}.rs has no test {test}");
            shown += 1;
        }
    }
    assert!(shown > 50, "{shown}");
}
