//! Subtests that an output names: KTAP, the format of the kernel's own tests, and TAP, from which that comes.
//!
//! Results come behind those of their parts, which are further to the right. A guest has written all of it.

use super::judgement::{Findings, Judgement};
use probe_engine::guest_text::Escaped;
use serde::{Deserialize, Serialize};

/// So many results are kept, and so many levels of them.
const MOST: usize = 10_000;
const DEEPEST: usize = 8;
/// So much is kept of a name, in bytes.
const LONGEST: usize = 400;

/// A result that an output names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Subtest {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) judgement: Judgement,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<Subtest>,
}

/// Results at one distance from the left, and how many there were to be.
#[derive(Debug, Default)]
struct Level {
    indent: usize,
    planned: Option<usize>,
    results: Vec<Subtest>,
}

/// A line that says something.
enum Said<'a> {
    Plan(usize),
    Result { is_ok: bool, name: &'a str, directive: Option<(&'a str, &'a str)> },
    BailOut(&'a str),
}

/// The subtests that `text` names, and what there is to say of the whole.
pub(crate) fn subtests(text: &str, found: &mut Findings) -> Vec<Subtest> {
    let mut levels = vec![Level::default()];
    let mut count = 0;
    for line in text.lines() {
        let (indent, rest) = indented(without_stamp(line));
        let Some(said) = said(rest) else { continue };
        // A result ends its parts.
        let mut parts = Vec::new();
        while levels.last().is_some_and(|level| level.indent > indent && levels.len() > 1) {
            let level = levels.pop().unwrap_or_default();
            // What is deeper still belongs to the first of its parts that follows; there is none.
            parts = level.close(parts, found);
        }
        if levels.last().is_some_and(|level| level.indent < indent) && levels.len() < DEEPEST {
            levels.push(Level { indent, ..Level::default() });
        }
        let Some(level) = levels.last_mut() else { continue };
        match said {
            Said::Plan(planned) => {
                level.planned = Some(planned);
                level.results.extend(parts);
            }
            Said::BailOut(why) => found.failures.push(format!("it bailed out: {}", Escaped(why.as_bytes()))),
            Said::Result { is_ok, name, directive } => {
                count += 1;
                if count <= MOST {
                    level.results.push(Subtest {
                        name: named(name),
                        judgement: judgement(is_ok, directive),
                        parts,
                    });
                }
            }
        }
    }
    // `1..0` says that there are none here.
    let is_empty = levels.first().is_some_and(|level| level.planned == Some(0));
    let mut results = Vec::new();
    while let Some(level) = levels.pop() {
        results = level.close(results, found);
    }
    if count > MOST {
        found.doubts.push(format!("it names {count} subtests, of which {MOST} are kept"));
    }
    if results.is_empty() && !is_empty {
        found.failures.push("its output names no subtests".to_owned());
    }
    results
}

impl Level {
    /// Its results, with those that belong to none of them, and a complaint where there are not as many as planned.
    fn close(mut self, orphans: Vec<Subtest>, found: &mut Findings) -> Vec<Subtest> {
        self.results.extend(orphans);
        if let Some(planned) = self.planned.filter(|planned| *planned != self.results.len()) {
            found.failures.push(format!("{planned} subtests were planned, and {} ran", self.results.len()));
        }
        self.results
    }
}

/// All that have failed and have no parts, with the names of what they are parts of.
pub(crate) fn failures(subtests: &[Subtest]) -> Vec<String> {
    let mut failed = Vec::new();
    for subtest in subtests {
        let below = failures(&subtest.parts);
        match (&subtest.judgement, below.is_empty()) {
            (Judgement::Failed(_), true) => failed.push(subtest.name.clone()),
            _ => failed.extend(below.iter().map(|part| format!("{}: {part}", subtest.name))),
        }
    }
    failed
}

fn named(name: &str) -> String {
    let mut name = Escaped(name.as_bytes()).to_string();
    name.truncate(name.floor_char_boundary(LONGEST));
    name
}

fn judgement(is_ok: bool, directive: Option<(&str, &str)>) -> Judgement {
    let why = |otherwise: &str, why: &str| match why {
        "" => otherwise.to_owned(),
        why => named(why),
    };
    match directive {
        Some(("skip", reason)) => Judgement::Skipped(why("skipped", reason)),
        // What is known not to work yet.
        Some(("todo" | "xfail", reason)) if !is_ok => Judgement::Skipped(why("known to fail", reason)),
        Some((_, reason)) if !is_ok => Judgement::Failed(vec![why("not ok", reason)]),
        _ if is_ok => Judgement::Passed,
        _ => Judgement::Failed(vec!["not ok".to_owned()]),
    }
}

/// The line without the time that the kernel puts before its messages.
fn without_stamp(line: &str) -> &str {
    let stamped = line.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    match stamped {
        Some((stamp, rest)) if stamp.trim().parse::<f64>().is_ok() => rest,
        _ => line,
    }
}

/// How far to the right a line begins. What one test has printed of another begins with a `#` for each.
fn indented(line: &str) -> (usize, &str) {
    let (mut indent, mut rest) = (0, line);
    loop {
        let inner = rest.trim_start_matches(' ');
        indent += rest.len() - inner.len();
        match inner.strip_prefix("# ") {
            Some(more) if said(more.trim_start_matches(['#', ' '])).is_some() => {
                indent += 2;
                rest = more;
            }
            _ => return (indent, inner),
        }
    }
}

fn said(line: &str) -> Option<Said<'_>> {
    if let Some(planned) = line.strip_prefix("1..") {
        let digits = planned.split([' ', '#']).next()?;
        return Some(Said::Plan(digits.parse().ok()?));
    }
    if let Some(why) = line.strip_prefix("Bail out!") {
        return Some(Said::BailOut(why.trim()));
    }
    let (is_ok, rest) = match line.strip_prefix("not ok") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("ok")?),
    };
    let rest = rest.strip_prefix(' ').or_else(|| rest.is_empty().then_some(rest))?;
    let name = rest.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start();
    let name = name.strip_prefix("- ").unwrap_or(name);
    let (name, directive) = match name.split_once('#') {
        Some((name, directive)) => (name, Some(directive.trim())),
        None => (name, None),
    };
    let directive = directive.and_then(|directive| {
        let (word, reason) = directive.split_once(' ').unwrap_or((directive, ""));
        let mut known = ["skip", "todo", "xfail", "timeout", "error"].into_iter();
        let known = known.find(|known| word.trim_end_matches(':').eq_ignore_ascii_case(known))?;
        Some((known, reason.trim()))
    });
    Some(Said::Result { is_ok, name: name.trim(), directive })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each result on a line: its name, its judgement, its parts in parentheses.
    fn shown(subtests: &[Subtest]) -> String {
        let one = |subtest: &Subtest| {
            let parts =
                if subtest.parts.is_empty() { String::new() } else { format!("({})", shown(&subtest.parts)) };
            format!("{} {}{parts}", subtest.name, subtest.judgement.word())
        };
        subtests.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    fn read(text: &str) -> (String, Vec<String>) {
        let mut found = Findings::default();
        let subtests = subtests(text, &mut found);
        (shown(&subtests), [found.failures, found.doubts].concat())
    }

    #[test]
    fn subtests_are_named_with_their_parts() {
        let ktap = "KTAP version 1\n1..2\n  KTAP version 1\n  1..2\n    KTAP version 1\n    1..1\n    # a: initializing\n    \
                    ok 1 a1\n  ok 1 a\n  not ok 2 b # why\nnot ok 1 whole\nok 2 - other # SKIP no device\n";
        let whole = "whole failed(a passed(a1 passed), b failed), other skipped";
        assert_eq!(read(ktap), (whole.to_owned(), vec![]));
        // The same by the kernel's log.
        let log: String = ktap.lines().map(|line| format!("[    1.234567] {line}\n")).collect();
        assert_eq!(read(&log).0, whole);
    }

    #[test]
    fn what_one_test_has_printed_of_another_is_a_part() {
        let tap = "TAP version 13\n1..1\n# timeout set to 45\n# selftests: size: get_size\n# TAP version 13\n# 1..1\n\
                   # # a remark\n# ok 1 get runtime memory use\nok 1 selftests: size: get_size\n";
        assert_eq!(
            read(tap),
            ("selftests: size: get_size passed(get runtime memory use passed)".to_owned(), vec![])
        );
    }

    #[test]
    fn tests_that_are_missing_are_said() {
        assert_eq!(
            read("1..3\nok 1 a\n"),
            ("a passed".to_owned(), vec!["3 subtests were planned, and 1 ran".to_owned()])
        );
        assert_eq!(read("1..0 # SKIP no device\n"), (String::new(), vec![]));
        assert_eq!(read("all is well\n"), (String::new(), vec!["its output names no subtests".to_owned()]));
        assert_eq!(read("ok 1 a\nBail out! \u{1b}[2J\n").1, ["it bailed out: \\x1b[2J"]);
    }

    #[test]
    fn words_behind_a_number_sign_say_more() {
        for (line, verdict) in [
            ("ok 1 a # SKIP why", "a skipped"),
            ("ok 1 - a # skip", "a skipped"),
            ("not ok 1 a # TODO later", "a skipped"),
            ("not ok 1 a # XFAIL", "a skipped"),
            ("not ok 1 a # TIMEOUT 45 seconds", "a failed"),
            ("ok 1 a # 3 times", "a passed"),
            ("ok", " passed"),
            ("not ok 7", " failed"),
        ] {
            assert_eq!(read(line).0, verdict, "{line}");
        }
        for no_result in ["okay 1 a", "not okay", "1..x", "# comment"] {
            assert_eq!(read(no_result).0, "", "{no_result}");
        }
    }

    #[test]
    fn a_guest_that_writes_without_end_is_heard_to_an_end() {
        let deep: String = (0..200).map(|depth| format!("{}ok 1 a\n", " ".repeat(depth * 2))).collect();
        read(&deep);
        let many = "ok 1 a\n".repeat(MOST + 1);
        assert_eq!(read(&many).1, ["it names 10001 subtests, of which 10000 are kept"]);
        assert!(read(&format!("ok 1 {}", "x".repeat(100_000))).0.len() < 500);
    }

    #[test]
    fn failures_are_named_from_the_whole_to_the_part() {
        let mut found = Findings::default();
        let subtests = subtests("  not ok 1 b\n  ok 2 c\nnot ok 1 a\nnot ok 2 d\n", &mut found);
        assert_eq!(failures(&subtests), ["a: b", "d"]);
    }
}
