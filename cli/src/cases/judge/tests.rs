//! Made-up observations, and what is said of them.

use super::super::observed::SeenValue;
use super::super::source::testing::source;
use super::super::suite::TestSuite;
use super::*;
use crate::record::{ARMED, Address, End, Kind, ProbeEnd, SplatLine, example};

/// The case that these lines below its name say.
fn case(lines: &str) -> TestCase {
    let text = format!("[[test]]\nname = 'a'\nrun = 'true'\n{lines}");
    let suite: TestSuite = source(&text).parse().unwrap();
    suite.cases.into_iter().next().unwrap()
}

/// What is seen of a run in which nothing went wrong.
fn observed() -> Observed {
    let end = End {
        end: "stopped".to_owned(),
        exit_code: Some(0),
        waits: 0,
        exits: None,
        ran_ns: 1,
        armed_us: 1,
        disarmed_us: 1,
    };
    let recording = RecordedRun { end: Some(end), ..RecordedRun::default() };
    Observed { ended: ProcessEnd::Code(0), recording, ..Observed::default() }
}

impl Observed {
    /// The same with hits of a probe, of which so many were missed.
    fn with(mut self, id: u32, hits: &[SeenHit], missed: u64) -> Self {
        let end = ProbeEnd {
            id,
            probe: format!("f{id}"),
            kind: Kind::Instruction,
            module: None,
            address: Address(1),
            hits: hits.len() as u64,
            outside: 0,
            missed,
            reasons: if missed > 0 { "ring full".to_owned() } else { String::new() },
            outstanding: 0,
            state: ARMED.to_owned(),
            injected: None,
            rule: None,
            trapped: None,
            places: Vec::new(),
        };
        self.recording.probes.insert(id, end);
        self.recording.hits.extend(hits.iter().map(|hit| SeenHit { probe: id, ..hit.clone() }));
        self
    }

    fn end(mut self, code: u8, how: &str, exit_code: Option<u8>) -> Self {
        self.ended = ProcessEnd::Code(code);
        let end = self.recording.end.as_mut().unwrap();
        (end.end, end.exit_code) = (how.to_owned(), exit_code);
        self
    }
}

fn hits(count: usize) -> Vec<SeenHit> {
    vec![SeenHit::default(); count]
}

fn read(name: &str, text: &str) -> SeenHit {
    let number = text.parse().ok();
    let value = SeenValue { text: text.to_owned(), number, is_missing: text == "(missing)" };
    SeenHit { fields: vec![(name.to_owned(), value)], ..SeenHit::default() }
}

fn took(nanos: u64) -> SeenHit {
    SeenHit { duration_ns: Some(nanos), ..SeenHit::default() }
}

/// `passed`, or the word and the first reason.
fn said(case: &TestCase, observed: &Observed) -> String {
    let counts = vec![1; case.probes.len()];
    let Judged { judgement, .. } = judge(case, &counts, observed);
    match judgement.reasons() {
        [] => judgement.word().to_owned(),
        [first, ..] => format!("{}: {first}", judgement.word()),
    }
}

#[test]
fn a_number_of_hits_is_judged_as_far_as_it_is_known() {
    for (expected, seen, missed, verdict) in [
        ("2", 2, 0, "passed"),
        ("2", 3, 0, "failed: open: 3 hits, and not 2"),
        ("2", 1, 0, "failed: open: 1 hit, and not 2"),
        ("0", 0, 0, "passed"),
        ("0", 1, 0, "failed: open: 1 hit, and it is forbidden"),
        ("'>= 1'", 0, 0, "failed: open: 0 hits, and not at least 1"),
        // What was missed can only be more.
        ("2", 2, 1, "inconclusive: open: 2 hits of 2, and 1 were missed (ring full)"),
        ("2", 1, 1, "inconclusive: open: 1 hit of 2, and 1 were missed (ring full)"),
        ("2", 3, 1, "failed: open: 3 hits, and not 2"),
        ("'>= 1'", 1, 7, "passed"),
        ("'>= 2'", 1, 7, "inconclusive: open: 1 hit of at least 2, and 7 were missed (ring full)"),
        ("'1..=5'", 2, 1, "inconclusive: open: 2 hits of 1 to 5, and 1 were missed (ring full)"),
        ("0", 0, 1, "inconclusive: open: 0 hits of none, and 1 were missed (ring full)"),
        ("0", 1, 1, "failed: open: 1 hit, and it is forbidden"),
    ] {
        let case = case(&format!("[[test.probe]]\nid = 'open'\nat = 'f'\nhits = {expected}"));
        assert_eq!(
            said(&case, &observed().with(0, &hits(seen), missed)),
            verdict,
            "{expected} {seen} {missed}"
        );
    }
}

#[test]
fn misses_of_which_nobody_knows_how_many_are_misses() {
    let case = case("[[test.probe]]\nid = 'open'\nat = 'f'\nhits = 0");
    let mut seen = observed().with(0, &[], 0);
    seen.recording.probes.get_mut(&0).unwrap().reasons = "the guest worked on its text".to_owned();
    assert!(said(&case, &seen).starts_with("inconclusive: open"), "{}", said(&case, &seen));
}

#[test]
fn no_hits_of_a_probe_that_never_stood_mean_nothing() {
    let case = case("[[test.probe]]\nid = 'open'\nat = 'f'\nhits = 0");
    for (state, verdict) in [
        ("armed", "passed"),
        ("[OPTIMIZED]", "passed"),
        ("[GONE]", "passed"),
        ("[NOT REACHED] why", "inconclusive: open: f0: [NOT REACHED] why"),
        ("[PENDING] why", "inconclusive: open: f0: [PENDING] why"),
        ("[OVERWRITTEN] why", "inconclusive: open: f0: [OVERWRITTEN] why"),
    ] {
        let mut seen = observed().with(0, &[], 0);
        seen.recording.probes.get_mut(&0).unwrap().state = state.to_owned();
        assert_eq!(said(&case, &seen), verdict);
    }
    assert_eq!(said(&case, &observed()), "inconclusive: open: nothing was recorded of it");
    // A run says so as well by its exit code.
    let mut seen = observed().with(0, &[], 0).end(122, "stopped", Some(0));
    seen.said = "vmm: f0: never armed\n".to_owned();
    assert_eq!(said(&case, &seen), "inconclusive: f0: never armed");
}

#[test]
fn of_a_pattern_all_hits_count_together() {
    let case =
        case("[[test.probe]]\nid = 'a'\nat = 'f*'\nhits = 3\n[[test.probe]]\nid = 'b'\nat = 'g'\nhits = 1");
    let seen = observed().with(0, &hits(1), 0).with(1, &hits(2), 0).with(2, &hits(1), 0);
    assert_eq!(judge(&case, &[2, 1], &seen).judgement, Judgement::Passed);
    assert_ne!(judge(&case, &[1, 2], &seen).judgement, Judgement::Passed);
}

#[test]
fn the_exit_code_is_the_commands_own() {
    for (lines, code, how, exit_code, verdict) in [
        ("", 0, "stopped", Some(0), "passed"),
        ("", 1, "stopped", Some(1), "failed: its exit code is 1, and not 0"),
        ("exit = 3", 3, "stopped", Some(3), "passed"),
        ("exit = 3", 0, "stopped", Some(0), "failed: its exit code is 0, and not 3"),
        // These numbers are a command's as well.
        ("", 125, "stopped", Some(125), "failed: its exit code is 125, and not 0"),
        ("exit = 125", 125, "stopped", Some(125), "passed"),
        ("", 2, "stopped", Some(2), "failed: its exit code is 2, and not 0"),
        ("", 123, "panicked", None, "failed: the guest died: panicked"),
        ("", 124, "timed out", None, "failed: the guest had not ended when its time was over"),
        ("", 125, "stopped", None, "infrastructure: the run has ended with exit code 125"),
        ("", 125, "stopped", Some(0), "infrastructure: the run has ended with exit code 125"),
        ("", 143, "signal 15", None, "infrastructure: its process was ended by signal 15"),
    ] {
        assert_eq!(said(&case(lines), &observed().end(code, how, exit_code)), verdict, "{code} {how}");
    }
}

#[test]
fn without_a_command_a_guest_ends_by_itself() {
    let case = |lines: &str| {
        let text = format!("[[test]]\nname = 'a'\n{lines}");
        source(&text).parse::<TestSuite>().unwrap().cases.into_iter().next().unwrap()
    };
    assert_eq!(said(&case(""), &observed().end(0, "powered off", None)), "passed");
    let died = observed().end(123, "panicked", None);
    assert_eq!(said(&case(""), &died), "failed: the guest died: panicked");
    assert_eq!(said(&case("exit = 123"), &died), "passed");
}

#[test]
fn what_could_not_be_run_says_nothing_of_the_kernel() {
    let case = case("[[test.probe]]\nid = 'open'\nat = 'f'\nhits = 2");
    let none = |ended, said: &str| Observed { ended, said: said.to_owned(), ..Observed::default() };
    for (seen, verdict) in [
        (
            none(ProcessEnd::Code(2), "vmm: a\nvmm: there is no module\n"),
            "infrastructure: there is no module",
        ),
        (none(ProcessEnd::Code(125), "vmm: the host died\x1b[2J\n"), "infrastructure: the host died\\x1b[2J"),
        (none(ProcessEnd::Code(0), ""), "infrastructure: its recording ends before the run did"),
        (none(ProcessEnd::Signal(9), ""), "infrastructure: its process was ended by signal 9"),
        (
            none(ProcessEnd::Overdue, ""),
            "infrastructure: its process did not end the guest in time, and was killed",
        ),
    ] {
        assert_eq!(said(&case, &seen), verdict);
    }
}

#[test]
fn texts_are_searched_line_by_line() {
    let mut seen = observed();
    seen.console = "[ 1.0] booted\n[ 2.0] Oops: \u{1b}[2J\n".to_owned();
    seen.stdout = "ok\n".to_owned();
    for (lines, verdict) in [
        ("console.must = ['boot*d']", "passed"),
        ("console.must = ['booted*Oops']", "failed: console: no line has `booted*Oops`"),
        ("console.never = ['Oops']", "failed: console: a line has `Oops`: [ 2.0] Oops: \\x1b[2J"),
        ("stdout.must = ['ok']\nstdout.never = ['not ok']", "passed"),
    ] {
        assert_eq!(said(&case(lines), &seen), verdict);
    }
}

#[test]
fn a_report_of_the_kernel_fails_a_case_unless_it_is_allowed() {
    let line = example("json").lines().find(|line| line.starts_with("{\"type\":\"splat\"")).unwrap();
    let splat: SplatLine = serde_json::from_str(line).unwrap();
    let mut seen = observed();
    seen.recording.splats = vec![SplatLine { allowed: Some("known".to_owned()), ..splat.clone() }];
    assert_eq!(said(&case(""), &seen), "passed");
    let splat = SplatLine { allowed: None, ..splat };
    let words = format!("failed: {splat}");
    // It came twice, and is said once.
    seen.recording.splats.extend([splat.clone(), SplatLine { repeats: 1, ..splat }]);
    assert_eq!(said(&case(""), &seen), words);
    assert_eq!(judge(&case(""), &[], &seen).judgement.reasons().len(), 1);
}

#[test]
fn what_hits_have_read_is_compared_in_their_order() {
    let listed = "[[test.probe]]\nid = 'open'\nat = 'f'\nargs = [{ name = 'a' }, { name = 'b*' }]";
    let of = |texts: &[&str], missed| {
        let hits: Vec<SeenHit> = texts.iter().map(|text| read("name", text)).collect();
        observed().with(0, &hits, missed)
    };
    for (texts, missed, verdict) in [
        (&["a", "bc"][..], 0, "passed"),
        (&["a", "c"], 0, "failed: open: hit 2: name is c, and not \"b*\""),
        (&["a"], 0, "failed: open: 1 hit, and not 2"),
        (&["a", "b", "c"], 0, "failed: open: 3 hits, and not 2"),
        (&["a", "(missing)"], 0, "inconclusive: open: hit 2: name could not be read"),
        (&["b", "c"], 1, "inconclusive: open: 2 hits of 2, and 1 were missed (ring full)"),
    ] {
        assert_eq!(said(&case(listed), &of(texts, missed)), verdict, "{texts:?}");
    }
    let each = case("[[test.probe]]\nid = 'n'\nat = 'f'\nvalues = { n = -1 }\nhits = '>= 1'");
    assert_eq!(said(&each, &observed().with(0, &[read("n", "-1"), read("n", "-1")], 0)), "passed");
    let other = observed().with(0, &[read("n", "-1"), read("n", "7")], 0);
    assert_eq!(said(&each, &other), "failed: n: hit 2: n is 7, and not -1");
    // A hit that is wrong is wrong, whatever was missed.
    let other = observed().with(0, &[read("n", "7")], 1);
    assert_eq!(said(&each, &other), "failed: n: hit 1: n is 7, and not -1");
}

#[test]
fn durations_are_compared_and_never_judged_alone() {
    let lines = "[[test.probe]]\nid = 'walk'\nat = 'f%return'\nmax = '<= 3 x open'\n\
                 [[test.probe]]\nid = 'open'\nat = 'g%return'";
    let of = |walk: &[u64], open: &[u64], missed| {
        let hits = |nanos: &[u64]| nanos.iter().map(|nanos| took(*nanos)).collect::<Vec<_>>();
        observed().with(0, &hits(walk), missed).with(1, &hits(open), 0)
    };
    assert_eq!(said(&case(lines), &of(&[30, 1], &[10], 0)), "passed");
    let slow = "failed: walk: max is 3.10 x that of open, and not <= 3 x open";
    assert_eq!(said(&case(lines), &of(&[31], &[10], 0)), slow);
    let none = "inconclusive: walk: max <= 3 x open: no calls have returned to be compared";
    assert_eq!(said(&case(lines), &of(&[], &[10], 0)), none);
    let missed = "inconclusive: walk: max <= 3 x open: calls were missed";
    assert_eq!(said(&case(lines), &of(&[31], &[10], 1)), missed);
}

#[test]
fn order_is_that_of_the_recording() {
    let probes = "[[test.probe]]\nid = 'a'\nat = 'f'\n[[test.probe]]\nid = 'b'\nat = 'g'\n[test.order]\n";
    let seen = |order: &[u32], missed| {
        let mut seen = observed().with(0, &[], missed).with(1, &[], 0);
        seen.recording.hits =
            order.iter().map(|probe| SeenHit { probe: *probe, ..SeenHit::default() }).collect();
        seen
    };
    let sequence = case(&format!("{probes}sequence = ['a', 'b', 'a']"));
    assert_eq!(said(&sequence, &seen(&[1, 0, 0, 1, 0], 0)), "passed");
    assert_eq!(said(&sequence, &seen(&[1, 0, 1], 0)), "failed: order a, b, a: no hit of a in its place");
    let open = "inconclusive: order a, b, a: no hit of a in its place, and hits were missed";
    assert_eq!(said(&sequence, &seen(&[1, 0, 1], 1)), open);
    // What was seen was there, whatever was missed.
    assert_eq!(said(&sequence, &seen(&[0, 1, 0], 1)), "passed");
    let never = case(&format!("{probes}never-before = {{ b = 'a' }}"));
    assert_eq!(said(&never, &seen(&[0, 1], 0)), "passed");
    assert_eq!(said(&never, &seen(&[], 0)), "passed");
    assert_eq!(said(&never, &seen(&[1, 0], 0)), "failed: order: a hit of b came before any of a");
    assert!(said(&never, &seen(&[1, 0], 1)).starts_with("inconclusive: order: whether b came before a"));
}

#[test]
fn subtests_are_judged_with_their_case() {
    let ktap = case("format = 'ktap'");
    let of = |code, text: &str| {
        let seen = observed().end(code, "stopped", Some(code));
        Observed { stdout: text.to_owned(), ..seen }
    };
    assert_eq!(said(&ktap, &of(0, "1..1\nok 1 a\n")), "passed");
    assert_eq!(judge(&ktap, &[], &of(0, "1..1\nok 1 a\n")).subtests.len(), 1);
    assert_eq!(said(&ktap, &of(0, "1..1\nnot ok 1 a\n")), "failed: the subtest `a` has failed");
    assert_eq!(said(&ktap, &of(0, "")), "failed: its output names no subtests");
    let skipped = "skipped: all of its subtests were skipped";
    assert_eq!(said(&ktap, &of(0, "1..1\nok 1 a # SKIP\n")), skipped);
    assert_eq!(said(&ktap, &of(4, "1..0 # SKIP no device\n")), skipped);
    assert_eq!(said(&ktap, &of(4, "1..1\nok 1 a\n")), "failed: its exit code is 4, and not 0");
}
