//! What the recording of one guest says of its runs.

use crate::record::{Line, NthLine, ReadError, Reader, SplatLine, Stack};
use std::io::BufRead;

/// So many functions of a stack are named.
const NAMED: usize = 4;

/// The runs of one guest.
#[derive(Debug, Default)]
pub(crate) struct GuestRuns {
    /// The last one without a failure.
    pub(crate) plain: Option<NthLine>,
    pub(crate) failed: Vec<FailedCall>,
    /// What the kernel reported, or how the guest died, and after which call had failed.
    pub(crate) findings: Vec<Finding>,
}

/// A run in which a call was to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailedCall {
    pub(crate) nth: u64,
    pub(crate) line: NthLine,
    /// The function and its callers, where the call was made.
    pub(crate) callers: Option<String>,
}

/// What came of a call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// Which call; none had failed before some.
    pub(crate) nth: Option<u64>,
    pub(crate) callers: Option<String>,
    pub(crate) what: String,
}

/// A call that failed, in the order of the recording.
struct SeenCall {
    guest_ns: Option<u64>,
    callers: String,
}

impl GuestRuns {
    /// Reads them.
    pub(crate) fn read(recording: impl BufRead) -> Result<Self, ReadError> {
        let mut reader = Reader::open(recording)?;
        let (mut lines, mut calls, mut splats) = (Vec::<NthLine>::new(), Vec::new(), Vec::new());
        while let Some(line) = reader.next()? {
            match line {
                Line::Nth(line) => lines.push(line),
                Line::Splat(splat) if splat.allowed.is_none() && splat.repeats == 0 => splats.push(*splat),
                Line::Hit(hit) => {
                    let probe = reader.probe(hit.event.probe.0);
                    let Some(probe) = probe.filter(|probe| probe.injected.is_some()) else { continue };
                    let callers = callers(&probe.place, hit.stack.as_ref());
                    calls.push(SeenCall { guest_ns: hit.event.guest_nanos, callers });
                }
                _ => {}
            }
        }
        let death = reader.end().map(|end| end.end.clone()).filter(|end| !is_orderly(end));
        Ok(Self::of(&lines, &calls, &splats, death))
    }

    fn of(lines: &[NthLine], calls: &[SeenCall], splats: &[SplatLine], death: Option<String>) -> Self {
        // One call fails in a run at most.
        let mut seen = calls.iter();
        let mut failed = Vec::new();
        let mut made = Vec::new();
        for line in lines {
            let Some(nth) = line.nth else { continue };
            let call = if line.injected { seen.next() } else { None };
            made.extend(call.map(|call| (nth, call)));
            failed.push(FailedCall { nth, line: *line, callers: call.map(|call| call.callers.clone()) });
        }
        let before = |at: u64| made.iter().rev().find(|(_, call)| call.guest_ns.is_none_or(|ns| ns <= at));
        let finding = |call: Option<&(u64, &SeenCall)>, what: String| Finding {
            nth: call.map(|(nth, _)| *nth),
            callers: call.map(|(_, call)| call.callers.clone()),
            what,
        };
        let mut findings: Vec<Finding> =
            splats.iter().map(|splat| finding(before(splat.guest_ns), splat.title.clone())).collect();
        findings.extend(death.map(|how| finding(made.last(), format!("the guest ended: {how}"))));
        Self { plain: lines.iter().rfind(|line| line.nth.is_none()).copied(), failed, findings }
    }

    /// The first finding after a call had failed.
    pub(crate) fn first_finding(&self) -> Option<u64> {
        self.findings.iter().filter_map(|finding| finding.nth).min()
    }

    /// Whether all calls have failed that the command makes.
    pub(crate) fn is_whole(&self) -> bool {
        let calls = self.plain.map_or(0, |plain| plain.calls);
        match self.failed.last() {
            Some(FailedCall { nth, line, .. }) => line.exit_code.is_some() && !line.injected && *nth >= calls,
            None => self.plain.is_some_and(|plain| plain.exit_code.is_some()),
        }
    }
}

fn is_orderly(end: &str) -> bool {
    ["powered off", "reset", "quit", "stopped"].contains(&end)
}

/// The function at `place`, and who has called it: `kmem_cache_alloc < getname_flags < do_sys_openat2`.
fn callers(place: &str, stack: Option<&Stack>) -> String {
    let plain = |name: &str| name.split(['+', '/']).next().unwrap_or_default().to_owned();
    let frames = stack.into_iter().flat_map(|stack| &stack.frames);
    let names = frames.filter_map(|frame| frame.name.as_deref()).map(plain);
    let names: Vec<String> = names.take(NAMED).collect();
    if names.is_empty() { place.to_owned() } else { names.join(" < ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(nth: Option<u64>, calls: u64, injected: bool, exit_code: Option<u8>) -> NthLine {
        NthLine { nth, calls, injected, exit_code }
    }

    fn call(guest_ns: u64, callers: &str) -> SeenCall {
        SeenCall { guest_ns: Some(guest_ns), callers: callers.to_owned() }
    }

    #[test]
    fn a_guest_that_dies_does_so_of_the_last_call_that_failed() {
        let lines =
            [line(None, 3, false, Some(0)), line(Some(1), 3, true, Some(1)), line(Some(2), 2, true, None)];
        let runs = GuestRuns::of(&lines, &[call(10, "a"), call(20, "b")], &[], Some("panicked".to_owned()));
        assert_eq!(
            runs.failed.iter().map(|call| call.callers.as_deref()).collect::<Vec<_>>(),
            [Some("a"), Some("b")]
        );
        let what = "the guest ended: panicked".to_owned();
        assert_eq!(runs.findings, [Finding { nth: Some(2), callers: Some("b".to_owned()), what }]);
        assert_eq!((runs.first_finding(), runs.is_whole()), (Some(2), false));
    }

    #[test]
    fn all_calls_have_failed_when_a_run_makes_fewer() {
        let lines = [
            line(None, 2, false, Some(0)),
            line(Some(1), 2, true, Some(1)),
            line(Some(2), 1, false, Some(0)),
        ];
        let runs = |lines: &[NthLine]| GuestRuns::of(lines, &[call(10, "a")], &[], None);
        assert!(runs(&lines).is_whole() && runs(&lines).findings.is_empty());
        assert!(!runs(&lines[..2]).is_whole());
        assert!(runs(&[line(None, 0, false, Some(0))]).is_whole());
        assert!(!runs(&[line(None, 0, false, None)]).is_whole() && !runs(&[]).is_whole());
        // A run that makes fewer calls than the one without a failure is not the last, unless others make as few.
        let (counted, short) = (line(None, 9, false, Some(0)), line(Some(3), 2, false, Some(0)));
        assert!(!runs(&[counted, short]).is_whole());
        assert!(runs(&[counted, line(None, 2, false, Some(0)), short]).is_whole());
    }
}
