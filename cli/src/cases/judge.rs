//! Judges a case by what was seen of it: the same for the same, whatever time it took and wherever it ran.

use super::expect::{CountRange, DurationRatio, ExpectedValue, HitMatch};
use super::fingerprint;
use super::judgement::{Findings, Judgement};
use super::ktap::{self, Subtest};
use super::observed::{Observed, ProcessEnd, RecordedRun, SeenHit};
use super::ordered;
use super::seen_probe::{SeenProbe, Statistic};
use super::suite::{ProbeExpectation, SubtestFormat, TestCase, TextRules};
use crate::exit_codes::{INFRASTRUCTURE, UNARMED};
use crate::fail_nth::GuestRuns;
use probe_engine::guest_text::Escaped;
use std::fmt;

/// With what the kernel's own tests end that were all skipped.
const SKIPPED_BY_KSELFTEST: u8 = 4;

/// What is said of a case, and of the subtests that its output names.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) judgement: Judgement,
    pub(crate) subtests: Vec<Subtest>,
    /// By what its failure is known from others: those of all that went wrong.
    pub(crate) fingerprints: Vec<String>,
}

impl From<Judgement> for Judged {
    fn from(judgement: Judgement) -> Self {
        Self { judgement, subtests: Vec::new(), fingerprints: Vec::new() }
    }
}

/// Judges `case`. Its definitions came to so many probes each as `counts` has.
pub(crate) fn judge(case: &TestCase, counts: &[u32], observed: &Observed) -> Judged {
    if let Some(reason) = not_run(case, observed) {
        return Judgement::Infrastructure(reason).into();
    }
    let mut found = Findings::default();
    let subtests = subtests(case, observed, &mut found);
    let are_skipped = case.format.is_some()
        && subtests.iter().all(|subtest| matches!(subtest.judgement, Judgement::Skipped(_)));
    match &observed.recording.nth {
        Some(runs) => nth(case, runs, &mut found),
        None => {
            ending(case, observed, are_skipped, &mut found);
            splats(&observed.recording, &mut found);
        }
    }
    text("console", &case.console, &observed.console, &mut found);
    text("stdout", &case.stdout, &observed.stdout, &mut found);
    let probes = SeenProbe::all(counts, &observed.recording);
    for (expected, seen) in case.probes.iter().zip(&probes) {
        if let Some(reason) = &seen.silence {
            found.doubts.push(format!("{}: {reason}", expected.id.get_ref()));
            continue;
        }
        hits(expected, seen, &mut found);
        values(expected, seen, &observed.recording, &mut found);
        durations(case, expected, &probes, &mut found);
    }
    ordered::judge(case, &probes, &observed.recording, &mut found);
    if observed.ended == ProcessEnd::Code(UNARMED) && found.doubts.is_empty() && case.exit != UNARMED {
        found.doubts.push(last_words(&observed.said, "a probe was overwritten or never armed"));
    }
    let fingerprints = fingerprint::of(&observed.recording, &found.failures);
    let judgement = match Judgement::of(found) {
        Judgement::Passed if are_skipped => Judgement::Skipped("all of its subtests were skipped".to_owned()),
        judgement => judgement,
    };
    Judged { judgement, subtests, fingerprints }
}

/// The subtests that its output names. One that has failed fails the case.
fn subtests(case: &TestCase, observed: &Observed, found: &mut Findings) -> Vec<Subtest> {
    let text = match (case.format, &case.run) {
        (None, _) => return Vec::new(),
        (Some(SubtestFormat::Ktap), Some(_)) => &observed.stdout,
        // The kernel's own tests write to its log.
        (Some(SubtestFormat::Ktap), None) => &observed.console,
    };
    /// So many are named.
    const NAMED: usize = 20;
    let subtests = ktap::subtests(text, found);
    let failed = ktap::failures(&subtests);
    found.failures.extend(failed.iter().take(NAMED).map(|name| format!("the subtest `{name}` has failed")));
    if failed.len() > NAMED {
        found.failures.push(format!("and {} others", failed.len() - NAMED));
    }
    subtests
}

/// Why the case says nothing about the kernel, if that is so.
fn not_run(case: &TestCase, observed: &Observed) -> Option<String> {
    let code = match observed.ended {
        ProcessEnd::Overdue => {
            return Some("its process did not end the guest in time, and was killed".to_owned());
        }
        ProcessEnd::Signal(signal) => return Some(format!("its process was ended by signal {signal}")),
        ProcessEnd::Code(code) => code,
    };
    let Some(end) = &observed.recording.end else {
        return Some(last_words(&observed.said, "its recording ends before the run did"));
    };
    if end.end.starts_with("signal") {
        return Some(format!("its process was ended by {}", end.end));
    }
    // A command may end with the same number.
    let is_its_own = case.run.is_some() && end.exit_code == Some(INFRASTRUCTURE);
    (code == INFRASTRUCTURE && !is_its_own)
        .then(|| last_words(&observed.said, "the run has ended with exit code 125"))
}

/// The last line that `vmm` itself has said, or else `otherwise`.
fn last_words(said: &str, otherwise: &str) -> String {
    let last = said.lines().rev().find_map(|line| line.strip_prefix("vmm: "));
    last.map_or_else(|| otherwise.to_owned(), |line| Escaped(line.as_bytes()).to_string())
}

/// How the guest ended, and with what exit code.
fn ending(case: &TestCase, observed: &Observed, are_skipped: bool, found: &mut Findings) {
    let (ProcessEnd::Code(code), Some(end)) = (observed.ended, &observed.recording.end) else { return };
    let is_orderly = ["powered off", "reset", "quit", "stopped"].contains(&end.end.as_str());
    let ended = match (case.run.is_some(), is_orderly) {
        (true, true) => end.exit_code.unwrap_or(code),
        (false, true) => 0,
        (_, false) => code,
    };
    if ended == case.exit || (are_skipped && is_orderly && ended == SKIPPED_BY_KSELFTEST) {
        return;
    }
    let how = Escaped(end.end.as_bytes());
    found.failures.push(match (is_orderly, end.end.as_str()) {
        (true, _) => format!("its exit code is {ended}, and not {}", case.exit),
        (false, "timed out") => "the guest had not ended when its time was over".to_owned(),
        (false, _) => format!("the guest died: {how}"),
    });
}

/// What came of calls that failed, one in each run.
fn nth(case: &TestCase, runs: &GuestRuns, found: &mut Findings) {
    let shown = |finding: &dyn fmt::Display| Escaped(finding.to_string().as_bytes()).to_string();
    found.failures.extend(runs.findings.iter().map(|finding| shown(finding)));
    match runs.plain.and_then(|plain| plain.exit_code) {
        Some(code) if code != case.exit => {
            found.failures.push(format!("its exit code is {code} without a failure, and not {}", case.exit));
        }
        Some(_) => {}
        None => found.doubts.push("its run without a failure has not ended".to_owned()),
    }
}

/// Reports of the kernel: each one fails a case that no list allows.
fn splats(run: &RecordedRun, found: &mut Findings) {
    found
        .failures
        .extend(run.failing_splats().map(|splat| Escaped(splat.to_string().as_bytes()).to_string()));
}

fn text(name: &str, rules: &TextRules, text: &str, found: &mut Findings) {
    for pattern in &rules.must {
        if !text.lines().any(|line| pattern.is_in(line)) {
            found.failures.push(format!("{name}: no line has `{pattern}`"));
        }
    }
    for pattern in &rules.never {
        if let Some(line) = text.lines().find(|line| pattern.is_in(line)) {
            let line = Escaped(line.as_bytes());
            found.failures.push(format!("{name}: a line has `{pattern}`: {line}"));
        }
    }
}

/// How often a probe was hit. What was missed can only be more.
fn hits(expected: &ProbeExpectation, seen: &SeenProbe<'_>, found: &mut Findings) {
    // A list of hits is all that there are, where nothing else is said.
    let listed = (!expected.args.is_empty()).then(|| CountRange::exactly(expected.args.len() as u64));
    let Some(range) = expected.hits.or(listed) else { return };
    let (id, hits) = (expected.id.get_ref(), seen.hits);
    if range.most.is_some_and(|most| hits > most) || (!range.has(hits) && !seen.has_missed()) {
        return found.failures.push(match range.most {
            Some(0) => format!("{id}: {}, and it is forbidden", counted(hits)),
            _ => format!("{id}: {}, and not {range}", counted(hits)),
        });
    }
    if seen.has_missed() && (range.most.is_some() || !range.has(hits)) {
        found.doubts.push(format!("{id}: {} of {range}, and {}", counted(hits), seen.missed_words()));
    }
}

fn counted(hits: u64) -> String {
    if hits == 1 { "1 hit".to_owned() } else { format!("{hits} hits") }
}

/// What hits have read.
fn values(expected: &ProbeExpectation, seen: &SeenProbe<'_>, run: &RecordedRun, found: &mut Findings) {
    if expected.args.is_empty() && expected.values.is_none() {
        return;
    }
    let id = expected.id.get_ref();
    let mut known = 0;
    for (number, hit) in run.hits.iter().filter(|hit| seen.has(hit)).enumerate() {
        known = number + 1;
        // Where hits were missed, nobody knows which is which.
        let listed = expected.args.get(number).filter(|_| !seen.has_missed());
        for wanted in listed.into_iter().chain(&expected.values) {
            fields(&format!("{id}: hit {known}"), wanted, hit, found);
        }
    }
    if seen.has_missed() || run.is_cut {
        found.doubts.push(format!("{id}: not all hits were read: {}", seen.missed_words()));
    } else if known < expected.args.len() && expected.hits.is_some() {
        found.failures.push(format!(
            "{id}: {} recorded, and {} are listed",
            counted(known as u64),
            expected.args.len()
        ));
    }
}

/// What one hit has read.
fn fields(whose: &str, wanted: &HitMatch, hit: &SeenHit, found: &mut Findings) {
    for (name, value) in wanted {
        let name = name.get_ref();
        let Some((_, seen)) = hit.fields.iter().find(|(other, _)| other == name) else {
            found.doubts.push(format!("{whose}: {name} was not kept"));
            continue;
        };
        let is = match value {
            ExpectedValue::Number(number) => seen.number == Some(*number),
            ExpectedValue::Bool(value) => {
                seen.text == value.to_string() || seen.number == Some((*value).into())
            }
            ExpectedValue::Text(pattern) => pattern.is(&seen.text),
        };
        if seen.is_missing {
            found.doubts.push(format!("{whose}: {name} could not be read"));
        } else if !is {
            let text = Escaped(seen.text.as_bytes());
            found.failures.push(format!("{whose}: {name} is {text}, and not {value}"));
        }
    }
}

/// How long calls took, beside those of other probes.
fn durations(case: &TestCase, expected: &ProbeExpectation, all: &[SeenProbe<'_>], found: &mut Findings) {
    let ratios =
        [(Statistic::P99, &expected.p99), (Statistic::Max, &expected.max), (Statistic::Mean, &expected.mean)];
    let of = |id: &str| {
        let number = case.probes.iter().position(|probe| probe.id.get_ref() == id)?;
        all.get(number)
    };
    let id = expected.id.get_ref();
    for (statistic, ratio) in ratios.into_iter().filter_map(|(name, ratio)| Some((name, ratio.as_ref()?))) {
        let ratio: &DurationRatio = ratio.get_ref();
        let (Some(own), Some(other)) = (of(id), of(&ratio.of)) else { continue };
        let (Some(left), Some(right)) = (own.duration(statistic), other.duration(statistic)) else {
            found.doubts.push(format!("{id}: {statistic} {ratio}: no calls have returned to be compared"));
            continue;
        };
        if [own, other].iter().any(|probe| probe.has_missed()) {
            found.doubts.push(format!("{id}: {statistic} {ratio}: calls were missed"));
        } else if !ratio.comparison.holds(left, ratio.factor * right) {
            found.failures.push(format!(
                "{id}: {statistic} is {:.2} x that of {}, and not {ratio}",
                left / right,
                ratio.of
            ));
        }
    }
}

#[cfg(test)]
mod tests;
