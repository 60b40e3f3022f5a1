//! Which call fails in which run of a command, all in one guest.

use crate::record::NthLine;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vmm::session::Injector;

/// No command is run more often in one guest.
const MOST: u64 = 100_000;

/// Has the command run once without failures, and then once for each call of its own, which fails.
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
    /// Which call is to fail in the run of now.
    begun: Option<Option<u64>>,
    /// How many calls the first run has made.
    calls: u64,
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
        let (Some(code), Some(nth)) = (code, runs.begun.take()) else {
            self.injector.restart(None);
            runs.begun = Some(None);
            return code.is_none();
        };
        let following = nth.map_or(self.from, |nth| nth.saturating_add(1));
        let (calls, injected) = self.injector.restart(Some(following));
        runs.ended.push(NthLine { nth, calls, injected: injected > 0, exit_code: Some(code) });
        if nth.is_none() {
            runs.calls = calls;
        }
        // A run may make fewer calls than another one.
        let is_wanted = following <= runs.calls || injected > 0;
        if !is_wanted || following > MOST || self.is_over.load(Ordering::Relaxed) {
            self.injector.restart(None);
            return false;
        }
        runs.begun = Some(Some(following));
        true
    }

    /// All runs, and the one in which the guest has ended.
    pub(crate) fn finish(&self) -> Vec<NthLine> {
        let mut runs = self.runs();
        if let Some(nth) = runs.begun.take() {
            let (calls, injected) = self.injector.restart(None);
            runs.ended.push(NthLine { nth, calls, injected: injected > 0, exit_code: None });
        }
        std::mem::take(&mut runs.ended)
    }
}
