//! What is said of each report, and what all of them come to.

use super::allow::{self, AllowedSplat};
use super::policy::{SplatMode, SplatPolicy};
use crate::record::SplatLine;
use regex::Regex;
use std::collections::BTreeMap;
use vmm::session::AfterSplat;

/// So many fingerprints are known again: a guest may make as many as it likes.
const MOST_KNOWN: usize = 1000;

/// The reports of a run, as they come.
#[derive(Default)]
pub(crate) struct SplatVerdicts {
    mode: SplatMode,
    allowed: Vec<(Regex, AllowedSplat)>,
    /// How often each fingerprint came.
    known: BTreeMap<String, u64>,
    number: u64,
    has_forbidden: bool,
    has_stopped: bool,
    has_impossible: bool,
}

impl SplatVerdicts {
    pub(crate) fn new(policy: SplatPolicy) -> Self {
        // All of them were looked at when the file was read.
        let rule = |allowed: AllowedSplat| Some((allow::regex(&allowed.pattern).ok()?, allowed));
        let allowed = policy.allowed.into_iter().filter_map(rule).collect();
        Self { mode: policy.mode, allowed, ..Self::default() }
    }

    /// Notes on the line of a report what is thought of it.
    pub(crate) fn judge(&mut self, line: SplatLine) -> SplatLine {
        self.number += 1;
        let has_room = self.known.len() < MOST_KNOWN;
        let repeats = match self.known.get_mut(&line.fingerprint) {
            Some(count) => {
                *count += 1;
                *count - 1
            }
            None if has_room => {
                self.known.insert(line.fingerprint.clone(), 1);
                0
            }
            None => 0,
        };
        let fits = |(pattern, _): &&(Regex, AllowedSplat)| {
            pattern.is_match(&line.title) || pattern.is_match(&line.fingerprint)
        };
        let mut fitting = self.allowed.iter().filter(fits).map(|(_, allowed)| allowed);
        let first = fitting.clone().next();
        let allowed = fitting.find(|allowed| !allowed.is_expired);
        self.has_forbidden |= allowed.is_none();
        self.has_impossible |= line.impossible.is_some();
        let text = if repeats == 0 { line.text } else { Vec::new() };
        SplatLine {
            number: self.number,
            repeats,
            expired: allowed.is_none() && first.is_some(),
            until: allowed.or(first).and_then(|allowed| allowed.until.clone()),
            allowed: allowed.map(|allowed| allowed.reason.clone()),
            text,
            ..line
        }
    }

    /// What follows from a report of which this is thought: the guest stands still at what is not allowed. What comes again has been
    /// looked at, and its memory is kept once.
    pub(crate) fn after(&mut self, line: &SplatLine) -> AfterSplat {
        let is_new = line.allowed.is_none() && line.repeats == 0;
        let stops = is_new
            && match self.mode {
                SplatMode::Hold => true,
                SplatMode::Dump => !self.has_stopped,
                SplatMode::Fail | SplatMode::Report | SplatMode::Ignore => false,
            };
        self.has_stopped |= stops;
        if stops { AfterSplat::Stop } else { AfterSplat::GoOn }
    }

    /// Whether the guest stands still at reports until somebody has looked.
    pub(crate) fn hold(&self) -> bool {
        self.mode == SplatMode::Hold
    }

    /// The fingerprints that came more than once, and how often.
    pub(crate) fn repeated(&self) -> impl Iterator<Item = (&str, u64)> {
        self.known
            .iter()
            .filter(|(_, count)| **count > 1)
            .map(|(fingerprint, count)| (fingerprint.as_str(), *count))
    }

    /// Whether the kernel was interrupted where no processor does that, so that the run says nothing about it.
    pub(crate) fn are_of_the_machine(&self) -> bool {
        self.has_impossible
    }

    /// Whether the run fails because of them.
    pub(crate) fn have_failed(&self) -> bool {
        self.mode == SplatMode::Fail && self.has_forbidden
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(title: &str, fingerprint: &str) -> SplatLine {
        let text = format!(
            "{{\"type\":\"splat\",\"number\":1,\"time_ns\":1,\"guest_ns\":1,\"kind\":\"oops\",\"title\":\"{title}\",\
             \"fingerprint\":\"{fingerprint}\",\"frames\":[],\"expired\":false,\"repeats\":0,\"text\":[\"a\"]}}"
        );
        serde_json::from_str(&text).unwrap()
    }

    fn verdicts(mode: SplatMode, allowed: &[(&str, bool)]) -> SplatVerdicts {
        let allowed = allowed.iter().map(|(pattern, is_expired)| AllowedSplat {
            pattern: (*pattern).to_owned(),
            reason: format!("because of {pattern}"),
            until: Some("2026-06".to_owned()),
            is_expired: *is_expired,
        });
        SplatVerdicts::new(SplatPolicy { mode, allowed: allowed.collect(), recent: None })
    }

    #[test]
    fn what_is_allowed_fails_nothing_until_it_expires() {
        let judged = |mode, allowed: &[(&str, bool)]| {
            let mut all = verdicts(mode, allowed);
            let line = all.judge(line("BUG: x", "oops:f,g"));
            (line.allowed, line.expired, all.have_failed())
        };
        let reason = |text: &str| Some(text.to_owned());
        assert_eq!(judged(SplatMode::Fail, &[]), (None, false, true));
        assert_eq!(judged(SplatMode::Report, &[]), (None, false, false));
        assert_eq!(
            judged(SplatMode::Fail, &[("^BUG: .$", false)]),
            (reason("because of ^BUG: .$"), false, false)
        );
        assert_eq!(
            judged(SplatMode::Fail, &[("oops:f,", false)]),
            (reason("because of oops:f,"), false, false)
        );
        assert_eq!(judged(SplatMode::Fail, &[("BUG", true)]), (None, true, true));
        assert_eq!(
            judged(SplatMode::Fail, &[("BUG", true), ("x", false)]),
            (reason("because of x"), false, false)
        );
        assert_eq!(judged(SplatMode::Fail, &[("y", false)]), (None, false, true));
    }

    #[test]
    fn the_guest_stands_still_at_what_is_new_and_not_allowed() {
        let stops = |mode, allowed: &[(&str, bool)]| {
            let mut all = verdicts(mode, allowed);
            ["a", "b", "a"].map(|print| {
                let line = all.judge(line("t", print));
                all.after(&line) == AfterSplat::Stop
            })
        };
        assert_eq!(stops(SplatMode::Hold, &[]), [true, true, false]);
        assert_eq!(stops(SplatMode::Hold, &[("^a$", false)]), [false, true, false]);
        assert_eq!(stops(SplatMode::Dump, &[]), [true, false, false]);
        assert_eq!(stops(SplatMode::Dump, &[("^a$", false)]), [false, true, false]);
        for mode in [SplatMode::Fail, SplatMode::Report, SplatMode::Ignore] {
            assert_eq!(stops(mode, &[]), [false; 3]);
        }
    }

    #[test]
    fn an_interrupt_that_cannot_be_is_the_machines() {
        let mut all = verdicts(SplatMode::Report, &[]);
        all.judge(line("BUG: x", "oops:f"));
        assert!(!all.are_of_the_machine());
        all.judge(SplatLine {
            impossible: Some("asm_common_interrupt".to_owned()),
            ..line("BUG: y", "oops:g")
        });
        assert!(all.are_of_the_machine());
    }

    #[test]
    fn what_repeats_is_counted_and_its_text_is_kept_once() {
        let mut all = verdicts(SplatMode::Report, &[]);
        let lines: Vec<_> = ["a", "b", "a"].map(|print| all.judge(line("t", print))).into();
        let shown: Vec<_> = lines.iter().map(|line| (line.number, line.repeats, line.text.len())).collect();
        assert_eq!(shown, [(1, 0, 1), (2, 0, 1), (3, 1, 0)]);
        assert_eq!(all.repeated().collect::<Vec<_>>(), [("a", 2)]);
    }
}
