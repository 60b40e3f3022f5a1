//! Tracepoints of the guest's, which its own functions switch on and off: one after the other.

use super::functions::error;
use super::{Next, Worker};
use probe_engine::addr::Gva;
use probe_engine::errand::Call;
use probe_engine::linux::modules::is_string;
use probe_engine::linux::tracepoints::TracepointCalls;
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A tracepoint that is to be switched. Addresses are those of the running kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// `struct tracepoint`, whose first member is the address of its name.
    pub(crate) tracepoint: Gva,
    /// What its name must be.
    pub(crate) name: String,
    /// Whom it is to call.
    pub(crate) function: Gva,
    /// Whether it is switched on.
    pub(crate) on: bool,
}

/// For which tracepoints the guest has registered a function for us: errands of several tasks may be about the same one.
#[derive(Debug, Default)]
pub(crate) struct Registrations(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    registered: BTreeSet<Gva>,
    /// Those that a task is just switching.
    busy: BTreeSet<Gva>,
    /// Those whose module goes, or has gone.
    gone: BTreeSet<Gva>,
    /// When a step began or was over last.
    moved: Option<Instant>,
}

impl Registrations {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the guest has registered a function of ours for the tracepoint at `tracepoint`.
    pub(crate) fn is_registered(&self, tracepoint: Gva) -> bool {
        self.known().registered.contains(&tracepoint)
    }

    /// When a task began with a step, or was done with one, last.
    pub(crate) fn moved(&self) -> Option<Instant> {
        self.known().moved
    }

    /// These are switched on no more.
    pub(crate) fn gone(&self, tracepoints: &[Gva]) {
        self.known().gone.extend(tracepoints);
    }

    /// These are there, whatever was there before.
    pub(crate) fn come(&self, tracepoints: impl IntoIterator<Item = Gva>) {
        let mut known = self.known();
        for tracepoint in tracepoints {
            known.gone.remove(&tracepoint);
        }
    }

    /// What is to be done about a step that nobody works at: nothing any more, or its calls. `None` while another task works at it.
    fn take(&self, step: &Step) -> Option<Result<(), Result<(), Errno>>> {
        let mut known = self.known();
        if known.busy.contains(&step.tracepoint) {
            return None;
        }
        if step.on && known.gone.contains(&step.tracepoint) {
            return Some(Err(Err(Errno::NOENT)));
        }
        if step.on == known.registered.contains(&step.tracepoint) {
            return Some(Err(Ok(())));
        }
        known.busy.insert(step.tracepoint);
        known.moved = Some(Instant::now());
        Some(Ok(()))
    }

    /// A step is over.
    fn give_back(&self, step: &Step, result: Result<(), Errno>) {
        let mut known = self.known();
        known.busy.remove(&step.tracepoint);
        known.moved = Some(Instant::now());
        match (step.on, result) {
            (true, Ok(())) => known.registered.insert(step.tracepoint),
            (true, Err(_)) => false,
            (false, _) => known.registered.remove(&step.tracepoint),
        };
    }
}

/// An errand that switches tracepoints.
pub(crate) struct SwitchTracepoints {
    calls: TracepointCalls,
    steps: Vec<Step>,
    registrations: Arc<Registrations>,
    doing: Doing,
    results: Vec<Result<(), Errno>>,
}

/// What the last call did for the first step without a result.
#[derive(Clone, Copy)]
enum Doing {
    /// Nothing.
    Nothing,
    /// It waited for another task.
    Waiting,
    /// It registered the function with this one of the data.
    Registering(usize),
    /// It unregistered it, and what comes of the step.
    Unregistering(usize, Result<(), Errno>),
}

impl Drop for SwitchTracepoints {
    /// What was being done is over, as far as anybody knows.
    fn drop(&mut self) {
        if let Some(step) = self.steps.get(self.results.len())
            && matches!(self.doing, Doing::Registering(_) | Doing::Unregistering(..))
        {
            self.registrations.give_back(step, Err(Errno::CANCELED));
        }
    }
}

/// How long a task sleeps until it looks again what another one does, in milliseconds.
const PAUSE: u64 = 1;

impl SwitchTracepoints {
    pub(crate) fn new(calls: TracepointCalls, steps: Vec<Step>, registrations: Arc<Registrations>) -> Self {
        Self { calls, steps, registrations, doing: Doing::Nothing, results: Vec::new() }
    }

    /// What is next. In the end there is a result for each step.
    pub(crate) fn next(&mut self, worker: &mut Worker<'_>) -> Next<Vec<Result<(), Errno>>> {
        let returned = match worker.returned.map(|returned| returned as u32) {
            // It is an int.
            Some(returned) => error(i64::from(returned.cast_signed()).cast_unsigned()).map_or(Ok(()), Err),
            None => Ok(()),
        };
        loop {
            let Some(step) = self.steps.get(self.results.len()) else {
                return Next::Done(std::mem::take(&mut self.results));
            };
            match self.behind(step, returned, worker) {
                Ok(doing) => {
                    self.doing = doing;
                    return Next::Call(self.call(step, doing));
                }
                Err(result) => {
                    if matches!(self.doing, Doing::Registering(_) | Doing::Unregistering(..)) {
                        self.registrations.give_back(step, result);
                    }
                    self.doing = Doing::Nothing;
                    self.results.push(result);
                }
            }
        }
    }

    /// What is done for a step behind a call that has returned so, or what has come of the step.
    fn behind(
        &self,
        step: &Step,
        returned: Result<(), Errno>,
        worker: &Worker<'_>,
    ) -> Result<Doing, Result<(), Errno>> {
        let last = self.calls.callee.data().len().saturating_sub(1);
        match (self.doing, returned) {
            (Doing::Nothing | Doing::Waiting, _) if !is_called(step, worker) => Err(Err(Errno::NOENT)),
            (Doing::Nothing | Doing::Waiting, _) => match self.registrations.take(step) {
                None if self.calls.sleep.is_some() => Ok(Doing::Waiting),
                None => Err(Err(Errno::BUSY)),
                Some(Err(result)) => Err(result),
                Some(Ok(())) if step.on => Ok(Doing::Registering(0)),
                Some(Ok(())) => Ok(Doing::Unregistering(last, Ok(()))),
            },
            (Doing::Registering(n), Ok(())) if n < last => Ok(Doing::Registering(n + 1)),
            (Doing::Registering(0), result) | (Doing::Registering(_), result @ Ok(())) => Err(result),
            (Doing::Registering(n), result) => Ok(Doing::Unregistering(n - 1, result)),
            (Doing::Unregistering(0, so_far), result) => Err(so_far.and(result)),
            (Doing::Unregistering(n, so_far), result) => Ok(Doing::Unregistering(n - 1, so_far.and(result))),
        }
    }

    fn call(&self, step: &Step, doing: Doing) -> Call {
        let (function, number) = match doing {
            Doing::Registering(n) => (self.calls.register, n),
            Doing::Unregistering(n, _) => (self.calls.unregister, n),
            Doing::Nothing | Doing::Waiting => {
                return Call::new(self.calls.sleep.unwrap_or(self.calls.unregister), &[PAUSE]);
            }
        };
        let data = self.calls.callee.data().get(number).copied().unwrap_or(0);
        Call::new(function, &[step.tracepoint.0, step.function.0, data])
    }
}

/// Whether the tracepoint has its name: something else may be there by now.
fn is_called(step: &Step, worker: &Worker<'_>) -> bool {
    let name = worker.memory.read_u64(step.tracepoint);
    name.is_ok_and(|at| is_string(&worker.memory, Gva(at), &step.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errands::tests::{mapped, memory};
    use crate::memory::GuestRam;
    use probe_engine::addr::Gpa;
    use probe_engine::linux::tracepoints::{Callee, TAG};
    use probe_engine::memory::PhysMemory;

    const NAME: &str = "sched_switch";
    const TRACEPOINT: Gva = Gva(0x8000);

    fn ram() -> GuestRam {
        let ram = mapped();
        ram.write(Gpa(TRACEPOINT.0), &0x9000_u64.to_le_bytes()).unwrap();
        ram.write(Gpa(0x9000), b"sched_switch\0").unwrap();
        ram
    }

    fn step(name: &str, on: bool) -> Step {
        Step { tracepoint: TRACEPOINT, name: name.to_owned(), function: Gva(0x77), on }
    }

    /// Calls, by function and data, and what comes of each step.
    type Made = (Vec<(u64, u64)>, Vec<Result<(), Errno>>);

    /// What is done where these calls return so.
    fn carried_out(callee: Callee, steps: Vec<Step>, returned: &[i32]) -> Made {
        let (register, unregister) = (Gva(1), Gva(2));
        let (drivers, module_notify, sleep) = (None, None, Some(Gva(3)));
        let calls = TracepointCalls { register, unregister, callee, drivers, module_notify, sleep };
        let registrations = Arc::new(Registrations::default());
        let (ram, mut errand) = (ram(), SwitchTracepoints::new(calls, steps, registrations));
        let mut made = Vec::new();
        let mut returns = returned.iter();
        let mut last = None;
        loop {
            match errand.next(&mut Worker { returned: last, memory: memory(&ram) }) {
                Next::Call(call) => {
                    assert_eq!(call.args[..2], [TRACEPOINT.0, 0x77]);
                    made.push((call.function.0, call.args[2] - TAG));
                    last = Some(u64::from(returns.next().copied().unwrap_or(0).cast_unsigned()));
                }
                Next::Done(results) => return (made, results),
            }
        }
    }

    #[test]
    fn each_is_registered_and_unregistered() {
        let both = || vec![step(NAME, true), step(NAME, false)];
        let (made, results) = carried_out(Callee::Own, both(), &[]);
        assert_eq!((made, results), (vec![(1, 0), (2, 0)], vec![Ok(()), Ok(())]));
        let (made, results) = carried_out(Callee::Shared(Gva(0x77)), both(), &[]);
        assert_eq!((made, results), (vec![(1, 0), (1, 1), (2, 1), (2, 0)], vec![Ok(()), Ok(())]));
    }

    /// Two tasks are about the same tracepoint: one waits for the other, and finds it done.
    #[test]
    fn one_task_waits_for_another() {
        let (register, unregister, sleep) = (Gva(1), Gva(2), Some(Gva(3)));
        let callee = Callee::Own;
        let calls =
            TracepointCalls { register, unregister, callee, drivers: None, module_notify: None, sleep };
        let (ram, registrations) = (ram(), Arc::new(Registrations::default()));
        let errand = |on| SwitchTracepoints::new(calls, vec![step(NAME, on)], registrations.clone());
        let called = |errand: &mut SwitchTracepoints, returned| match errand
            .next(&mut Worker { returned, memory: memory(&ram) })
        {
            Next::Call(call) => Ok(call.function.0),
            Next::Done(results) => Err(results),
        };
        let (mut first, mut second, mut third) = (errand(true), errand(true), errand(false));
        assert_eq!(called(&mut first, None), Ok(1));
        assert_eq!([called(&mut second, None), called(&mut third, None)], [Ok(3), Ok(3)]);
        let begun = registrations.moved();
        assert_eq!(called(&mut first, Some(0)), Err(vec![Ok(())]));
        assert!(begun.is_some() && registrations.moved() > begun);
        assert!(registrations.is_registered(TRACEPOINT));
        assert_eq!(called(&mut second, Some(0)), Err(vec![Ok(())]), "it is on already");
        // Its module goes: it is switched off, and never on again by those that come late.
        registrations.gone(&[TRACEPOINT]);
        assert_eq!(called(&mut third, Some(0)), Ok(2));
        let mut late = errand(true);
        assert_eq!(called(&mut late, None), Ok(3));
        assert_eq!(called(&mut third, Some(0)), Err(vec![Ok(())]));
        assert_eq!(called(&mut late, Some(0)), Err(vec![Err(Errno::NOENT)]));
        assert_eq!(called(&mut errand(false), None), Err(vec![Ok(())]), "it is off already");
        registrations.come([TRACEPOINT]);
        let mut dropped = errand(true);
        assert_eq!(called(&mut dropped, None), Ok(1));
        drop(dropped);
        assert_eq!(called(&mut errand(true), None), Ok(1), "nobody works at it any more");
    }

    #[test]
    fn what_fails_leaves_nothing_behind_and_the_others_go_on() {
        let steps = || vec![step(NAME, true), step(NAME, true)];
        let noent = Err(Errno::NOENT);
        let (made, results) = carried_out(Callee::Own, steps(), &[-2, 0]);
        assert_eq!((made, results), (vec![(1, 0), (1, 0)], vec![noent, Ok(())]));
        let (made, results) = carried_out(Callee::Shared(Gva(0x77)), steps(), &[0, -12, 0, -2]);
        let expected = vec![(1, 0), (1, 1), (2, 0), (1, 0)];
        assert_eq!((made, results), (expected, vec![Err(Errno::NOMEM), noent]));
        let (made, results) = carried_out(Callee::Own, vec![step("sched_swatch", true)], &[]);
        assert_eq!((made, results), (vec![], vec![noent]));
    }
}
