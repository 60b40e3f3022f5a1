//! Which call fails in which run of a command, all in one guest.

use crate::record::NthLine;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vmm::session::Injector;

/// No command is run more often in one guest.
const MOST: u64 = 100_000;

/// So many runs try to come to a call that was counted. What a kernel keeps saves a run some calls now and then.
const TRIES: usize = 3;

/// Has the command run twice without failures, and then once for each call of its own, which fails. The calls of the second
/// run are counted: the first one makes those whose results are kept for all others.
#[derive(Clone)]
pub(crate) struct NthSteps {
    injector: Arc<Injector>,
    /// The first call that is to fail.
    from: u64,
    /// Whether there is to be no further run.
    is_over: Arc<AtomicBool>,
    runs: Arc<Mutex<Runs>>,
}

#[derive(Default)]
struct Runs {
    ended: Vec<NthLine>,
    /// What the run of now is for.
    begun: Option<Purpose>,
    /// How many calls a run makes in which none fails.
    calls: u64,
    /// How many there were in each of the last runs that did not come to the call that was to fail.
    in_vain: Vec<u64>,
}

/// What a run of the command is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// What is kept for later runs is made.
    Prepare,
    /// Calls are counted, and none fails.
    Count,
    /// This call fails, from 1 on.
    Fail(u64),
}

impl Purpose {
    fn nth(self) -> Option<u64> {
        match self {
            Self::Prepare | Self::Count => None,
            Self::Fail(nth) => Some(nth),
        }
    }
}

impl NthSteps {
    /// From that call on, until `is_over`.
    pub(crate) fn new(injector: Arc<Injector>, from: u64, is_over: Arc<AtomicBool>) -> Self {
        // What else the guest does fails nothing.
        injector.restart(None);
        Self { injector, from: from.max(1), is_over, runs: Arc::default() }
    }

    fn runs(&self) -> MutexGuard<'_, Runs> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run before has ended with `code`, if there was one. Says whether there is to be another one.
    pub(crate) fn next(&self, code: Option<u8>) -> bool {
        let mut runs = self.runs();
        let (calls, injected) = self.injector.restart(None);
        let following = match (code, runs.begun.take()) {
            (None, _) => Some(Purpose::Prepare),
            (Some(_), None) => None,
            (Some(code), Some(purpose)) => {
                let line =
                    NthLine { nth: purpose.nth(), calls, injected: injected > 0, exit_code: Some(code) };
                runs.follow(purpose, self.from, line)
            }
        };
        let following = following.filter(|_| !self.is_over.load(Ordering::Relaxed));
        self.injector.restart(following.and_then(Purpose::nth));
        runs.begun = following;
        following.is_some()
    }

    /// All runs, and the one in which the guest has ended.
    pub(crate) fn finish(&self) -> Vec<NthLine> {
        let mut runs = self.runs();
        if let Some(purpose) = runs.begun.take() {
            let (calls, injected) = self.injector.restart(None);
            runs.ended.push(NthLine { nth: purpose.nth(), calls, injected: injected > 0, exit_code: None });
        }
        std::mem::take(&mut runs.ended)
    }
}

impl Runs {
    /// A run for `purpose` has ended. Says what the next one is for, if there is to be one; calls fail from number `from` on.
    fn follow(&mut self, purpose: Purpose, from: u64, line: NthLine) -> Option<Purpose> {
        let following = match purpose {
            Purpose::Prepare => return Some(Purpose::Count),
            Purpose::Count => {
                self.calls = line.calls;
                (from <= line.calls).then_some(from)
            }
            // A run with a failure may make more calls than one without.
            Purpose::Fail(nth) if line.injected => Some(nth.saturating_add(1)),
            Purpose::Fail(nth) if nth <= self.calls => {
                self.in_vain.push(line.calls);
                if self.in_vain.len() < TRIES {
                    return Some(Purpose::Fail(nth));
                }
                // None of these runs had a failure: the command makes fewer calls than were counted.
                self.calls = self.in_vain.iter().copied().max().unwrap_or_default();
                self.ended.push(NthLine { nth: None, calls: self.calls, ..line });
                None
            }
            Purpose::Fail(_) => None,
        };
        self.in_vain.clear();
        self.ended.push(line);
        following.filter(|nth| *nth <= MOST).map(Purpose::Fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The runs of a command of which these numbers of calls are made where none fails, one after the other.
    fn runs(calls: &[u64]) -> Vec<(Option<u64>, u64, bool)> {
        let mut runs = Runs::default();
        let mut purpose = Purpose::Prepare;
        for calls in calls {
            let injected = purpose.nth().is_some_and(|nth| nth <= *calls);
            let line = NthLine { nth: purpose.nth(), calls: *calls, injected, exit_code: Some(0) };
            let Some(following) = runs.follow(purpose, 1, line) else { break };
            purpose = following;
        }
        runs.ended.iter().map(|line| (line.nth, line.calls, line.injected)).collect()
    }

    #[test]
    fn each_call_fails_once_and_a_run_sees_that_there_are_no_more() {
        let of_two = [(None, 2, false), (Some(1), 2, true), (Some(2), 2, true), (Some(3), 2, false)];
        assert_eq!(runs(&[9, 2, 2, 2, 2, 2]), of_two);
        assert_eq!(runs(&[3, 0, 0]), [(None, 0, false)]);
    }

    #[test]
    fn a_run_that_does_not_come_to_its_call_is_made_again() {
        let of_two = [(None, 2, false), (Some(1), 2, true), (Some(2), 2, true), (Some(3), 2, false)];
        assert_eq!(runs(&[9, 2, 0, 0, 2, 1, 1, 2, 2, 2]), of_two);
    }

    #[test]
    fn a_command_makes_fewer_calls_than_were_counted_where_no_run_comes_to_them() {
        let of_one = [(None, 4, false), (Some(1), 1, true), (None, 1, false), (Some(2), 1, false)];
        assert_eq!(runs(&[9, 4, 1, 1, 0, 1, 9]), of_one);
    }
}
