//! Calls of the guest's functions that fail because someone wants them to.

use probe_engine::addr::Gva;
use probe_engine::linux::task::Task;
use probe_engine::probe::inject::{Inject, InjectionId, Turns};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Counts the calls of one injection, on all vCPUs together, and says which fail.
#[derive(Default)]
pub struct Injector {
    turns: OnceLock<Turns>,
    /// The call that fails instead, from 1 on; 0 where there is none.
    nth: AtomicU64,
    /// Says whether a task (GVA of its `task_struct`) makes a call below which calls count.
    under: OnceLock<Box<dyn Fn(Gva) -> bool + Send + Sync>>,
    calls: AtomicU64,
    injected: AtomicU64,
    /// What they were at the last [`restart`](Self::restart).
    before: [AtomicU64; 2],
}

/// The injectors of a session, by their numbers.
pub(crate) type Injectors = BTreeMap<InjectionId, Arc<Injector>>;

/// What an injection came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InjectionReport {
    /// Its number.
    pub injection: InjectionId,
    /// How many calls there were that could have failed.
    pub calls: u64,
    /// How many have.
    pub injected: u64,
}

impl Injector {
    /// Of a probe that is in no session.
    pub(crate) fn of(inject: Inject) -> Arc<Self> {
        let injector = Self::default();
        if let Inject::Fail { turns, .. } = inject {
            injector.set_turns(turns);
        }
        Arc::new(injector)
    }

    /// Says which calls fail, unless that was said before.
    pub(crate) fn set_turns(&self, turns: Turns) {
        let _ = self.turns.set(turns);
    }

    /// Only calls count that a task makes of which `is_under` says that it makes another one.
    pub(crate) fn set_under(&self, is_under: impl Fn(Gva) -> bool + Send + Sync + 'static) {
        let _ = self.under.set(Box::new(is_under));
    }

    /// Counts from the beginning: call number `nth` fails, from 1 on, and no other one. Gives how many calls there have been
    /// since the last time, and how many have failed.
    pub fn restart(&self, nth: Option<u64>) -> (u64, u64) {
        let since = |before: &AtomicU64, count: &AtomicU64| {
            let count = count.load(Ordering::Relaxed);
            count.saturating_sub(before.swap(count, Ordering::Relaxed))
        };
        let [calls, injected] = &self.before;
        let ended = (since(calls, &self.calls), since(injected, &self.injected));
        self.nth.store(nth.unwrap_or(u64::MAX), Ordering::Release);
        ended
    }

    /// `task` makes a call that could fail: counts it, and says whether it does.
    pub(crate) fn takes(&self, task: Option<&Task>, under: bool) -> bool {
        if under && !task.is_some_and(|task| self.is_under(task)) {
            return false;
        }
        let nth = self.nth.load(Ordering::Acquire);
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if nth != 0 {
            let [before, _] = &self.before;
            let is_due = call.wrapping_sub(before.load(Ordering::Relaxed)).wrapping_add(1) == nth;
            self.injected.fetch_add(is_due.into(), Ordering::Relaxed);
            return is_due;
        }
        let turns = self.turns.get().copied().unwrap_or_default();
        let more = |injected: u64| turns.times.is_none_or(|times| injected < times).then(|| injected + 1);
        turns.has(call) && self.injected.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn is_under(&self, task: &Task) -> bool {
        self.under.get().is_some_and(|is_under| is_under(task.at))
    }

    pub(crate) fn report(&self, injection: InjectionId) -> InjectionReport {
        let [calls, injected] = [&self.calls, &self.injected].map(|count| count.load(Ordering::Relaxed));
        InjectionReport { injection, calls, injected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn injector(turns: Turns) -> Injector {
        let injector = Injector::default();
        injector.set_turns(turns);
        injector
    }

    fn failing(injector: &Injector, calls: u64) -> Vec<u64> {
        (1..=calls).filter(|_| injector.takes(None, false)).collect()
    }

    #[test]
    fn so_many_calls_fail_as_were_asked_for() {
        let every = injector(Turns { every: 2, after: 1, times: Some(2), seed: None });
        assert_eq!(failing(&every, 10), [3, 5]);
        let report = every.report(InjectionId(4));
        assert_eq!(report, InjectionReport { injection: InjectionId(4), calls: 10, injected: 2 });
    }

    #[test]
    fn one_call_after_the_other_fails_where_counting_begins_again() {
        let injector = injector(Turns::default());
        injector.restart(None);
        assert!(failing(&injector, 3).is_empty());
        assert_eq!(injector.restart(Some(1)), (3, 0));
        assert_eq!(failing(&injector, 3), [1]);
        assert_eq!(injector.restart(Some(3)), (3, 1));
        assert_eq!(failing(&injector, 4), [3]);
        assert_eq!(injector.restart(Some(9)), (4, 1));
        assert!(failing(&injector, 2).is_empty());
        assert_eq!(injector.restart(None), (2, 0));
    }

    #[test]
    fn no_call_is_under_one_that_nobody_follows() {
        let injector = injector(Turns::default());
        assert!(!injector.takes(None, true));
        assert_eq!(injector.report(InjectionId(0)).calls, 0);
    }

    #[test]
    fn no_more_fail_on_several_cpus_than_were_asked_for() {
        let injector = injector(Turns { times: Some(50), ..Turns::default() });
        let failed: usize = std::thread::scope(|scope| {
            let all: Vec<_> = (0..3).map(|_| scope.spawn(|| failing(&injector, 1000).len())).collect();
            all.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((failed, injector.report(InjectionId(0)).calls), (50, 3000));
    }
}
