//! What several looks at the memory of one guest have found. A thing that is there twice is found; one that was there once may be the
//! kernel's own, which changes at the moment.

use probe_engine::scan::Checked;
use probe_engine::scan::finding::{Check, Finding};
use std::collections::{BTreeMap, BTreeSet};

/// So often in a row is memory looked at again: a guest can change it all the time.
const MOST_AGAIN: u32 = 3;
/// So many things are known.
const MOST_KNOWN: usize = 10_000;
/// A check that has failed so often in all has failed, also if not twice in a row.
const MOST_FAILURES: u32 = 8;

/// What was found so far.
#[derive(Default)]
pub(super) struct Sightings {
    /// What is known to be there, and was told.
    known: Vec<(Check, Finding)>,
    /// What was there in the last look, and is not known.
    suspected: Vec<(Check, Finding)>,
    /// Which checks could not be made in the last look.
    failing: BTreeSet<Check>,
    /// How often each could not be made.
    failures: BTreeMap<Check, u32>,
    /// Of which that was told.
    failed: BTreeSet<Check>,
    /// How often memory was looked at again since it was looked at last because it was time.
    again: u32,
    /// How many things came too fast to be told, at most.
    untold: u64,
}

/// What has come of a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    /// Whether another look is to tell what is there.
    pub(super) is_unsure: bool,
    /// Whether a check cannot be made.
    pub(super) has_failed: bool,
}

impl Sightings {
    /// Keeps of `checks` what is to be told.
    pub(super) fn look(&mut self, checks: &mut [Checked]) -> Seen {
        let before = std::mem::take(&mut self.suspected);
        // What is somewhere else in each look is no list that is being changed.
        let is_last = self.again == MOST_AGAIN;
        let failing = std::mem::take(&mut self.failing);
        let mut has_failed = false;
        for Checked { check, findings, failure, untold, .. } in checks.iter_mut() {
            let is_again = |all: &[(Check, Finding)], finding: &Finding| {
                all.iter().any(|(of, known)| of == check && known.is_still(finding))
            };
            findings.retain(|finding| {
                if is_again(&self.known, finding) {
                    return false;
                }
                let is_confirmed = is_last || is_again(&before, finding);
                if !is_confirmed {
                    self.suspected.push((*check, finding.clone()));
                }
                is_confirmed
            });
            self.untold = self.untold.max(std::mem::take(untold));
            if failure.is_some() {
                self.failing.insert(*check);
                let failures = self.failures.entry(*check).or_default();
                *failures = failures.saturating_add(1);
                let has_now_failed = failing.contains(check) || *failures >= MOST_FAILURES;
                let is_new = has_now_failed && self.failed.insert(*check);
                has_failed |= is_new;
                if !is_new {
                    *failure = None;
                }
            }
        }
        self.tell(checks);
        let is_new =
            !self.suspected.is_empty() || self.failing.iter().any(|check| !self.failed.contains(check));
        self.again = if is_new { self.again + 1 } else { 0 };
        let is_unsure = is_new && self.again <= MOST_AGAIN;
        if !is_unsure {
            self.again = 0;
        }
        Seen { is_unsure, has_failed }
    }

    /// Keeps of `checks` what was not told yet: nothing changes any more.
    pub(super) fn last(&mut self, checks: &mut [Checked]) {
        for Checked { check, findings, untold, .. } in checks.iter_mut() {
            findings.retain(|finding| {
                !self.known.iter().any(|(of, known)| of == check && known.is_still(finding))
            });
            self.untold = self.untold.max(*untold);
        }
        self.tell(checks);
    }

    /// How many things were found.
    pub(super) fn found(&self) -> u64 {
        self.known.len() as u64 + self.untold
    }

    /// What is kept is told; there is an end to that.
    fn tell(&mut self, checks: &mut [Checked]) {
        for Checked { check, findings, .. } in checks {
            let room = MOST_KNOWN.saturating_sub(self.known.len());
            self.untold += findings.len().saturating_sub(room) as u64;
            findings.truncate(room);
            self.known.extend(findings.iter().map(|finding| (*check, finding.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::scan::finding::What;

    fn checked(places: &[u64], failure: Option<&str>) -> Vec<Checked> {
        let finding = |at: &u64| Finding { at: Gva(*at), what: What::Disguised };
        vec![Checked {
            check: Check::Modules,
            looked_at: 1,
            findings: places.iter().map(finding).collect(),
            untold: 0,
            failure: failure.map(str::to_owned),
        }]
    }

    fn told(checks: &[Checked]) -> Vec<u64> {
        checks.iter().flat_map(|made| made.findings.iter().map(|finding| finding.at.0)).collect()
    }

    #[test]
    fn what_is_there_twice_is_told_once() {
        let mut sightings = Sightings::default();
        for (there, expected, is_unsure) in [
            (&[1, 2][..], &[][..], true),
            (&[2, 3], &[2], true),
            (&[2, 3], &[3], false),
            (&[2, 3], &[], false),
            (&[], &[], false),
            (&[1], &[], true),
        ] {
            let mut checks = checked(there, None);
            let seen = sightings.look(&mut checks);
            assert_eq!((told(&checks), seen), (expected.to_vec(), Seen { is_unsure, has_failed: false }));
        }
        assert_eq!(sightings.found(), 2);
        let mut checks = checked(&[2, 4], None);
        sightings.last(&mut checks);
        assert_eq!((told(&checks), sightings.found()), (vec![4], 3), "what is there at the end is there");
    }

    #[test]
    fn what_is_elsewhere_in_each_look_is_told_and_not_looked_for_all_the_time() {
        let mut sightings = Sightings::default();
        let mut looks = (0..8).map(|n| {
            let mut checks = checked(&[n], None);
            let is_unsure = sightings.look(&mut checks).is_unsure;
            (told(&checks), is_unsure)
        });
        for n in [3, 7] {
            for _ in 0..3 {
                assert_eq!(looks.next(), Some((vec![], true)));
            }
            assert_eq!(looks.next(), Some((vec![n], false)));
        }
    }

    #[test]
    fn a_check_that_fails_twice_has_failed() {
        let mut sightings = Sightings::default();
        let mut look = |failure| {
            let mut checks = checked(&[], failure);
            let seen = sightings.look(&mut checks);
            (checks[0].failure.is_some(), seen.has_failed, seen.is_unsure)
        };
        assert_eq!(look(Some("a list does not end")), (false, false, true));
        assert_eq!(look(None), (false, false, false));
        assert_eq!(look(Some("a list does not end")), (false, false, true));
        assert_eq!(look(Some("a list does not end")), (true, true, false));
        assert_eq!(look(Some("a list does not end")), (false, false, false), "that was told");
    }

    #[test]
    fn a_check_that_fails_in_every_second_look_has_failed() {
        let mut sightings = Sightings::default();
        let mut failed = Vec::new();
        for n in 0..20 {
            let failure = (n % 2 == 0).then_some("a list does not end");
            if sightings.look(&mut checked(&[], failure)).has_failed {
                failed.push(n);
            }
        }
        assert_eq!(failed, [14]);
    }

    #[test]
    fn there_is_an_end_to_what_is_told() {
        let mut sightings = Sightings::default();
        let places: Vec<u64> = (0..MOST_KNOWN as u64 + 5).collect();
        sightings.look(&mut checked(&places, None));
        let mut checks = checked(&places, None);
        sightings.look(&mut checks);
        assert_eq!((told(&checks).len(), sightings.found()), (MOST_KNOWN, MOST_KNOWN as u64 + 5));
    }
}
