//! Which call fails in which run of a command, all in one guest.

use crate::record::NthLine;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vmm::session::Injector;

/// No command is run more often in one guest.
const MOST: u64 = 100_000;

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
    /// How many calls the run has made in which they were counted.
    calls: u64,
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
        let (Some(code), Some(purpose)) = (code, runs.begun.take()) else {
            self.injector.restart(None);
            runs.begun = Some(Purpose::Prepare);
            return code.is_none();
        };
        let following = match purpose {
            Purpose::Prepare => Purpose::Count,
            Purpose::Count => Purpose::Fail(self.from),
            Purpose::Fail(nth) => Purpose::Fail(nth.saturating_add(1)),
        };
        let (calls, injected) = self.injector.restart(following.nth());
        if purpose == Purpose::Count {
            runs.calls = calls;
        }
        if purpose != Purpose::Prepare {
            let line = NthLine { nth: purpose.nth(), calls, injected: injected > 0, exit_code: Some(code) };
            runs.ended.push(line);
        }
        // A run may make fewer calls than another one.
        let is_wanted = following.nth().is_none_or(|nth| nth <= MOST && (nth <= runs.calls || injected > 0));
        if !is_wanted || self.is_over.load(Ordering::Relaxed) {
            self.injector.restart(None);
            return false;
        }
        runs.begun = Some(following);
        true
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
