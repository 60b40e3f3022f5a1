//! Tracepoints of the guest's, which its own functions switch on and off: one after the other.

use super::functions::error;
use super::{Next, Worker};
use probe_engine::addr::Gva;
use probe_engine::errand::Call;
use probe_engine::linux::tracepoints::TracepointCalls;
use rustix::io::Errno;

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

/// An errand that switches tracepoints.
pub(crate) struct SwitchTracepoints {
    calls: TracepointCalls,
    steps: Vec<Step>,
    doing: Doing,
    results: Vec<Result<(), Errno>>,
}

/// What the last call did for the first step without a result.
#[derive(Clone, Copy)]
enum Doing {
    /// Nothing.
    Nothing,
    /// It registered the function with this one of the data.
    Registering(usize),
    /// It unregistered it, and what comes of the step.
    Unregistering(usize, Result<(), Errno>),
}

impl SwitchTracepoints {
    pub(crate) fn new(calls: TracepointCalls, steps: Vec<Step>) -> Self {
        Self { calls, steps, doing: Doing::Nothing, results: Vec::new() }
    }

    /// What is next. In the end there is a result for each step.
    pub(crate) fn next(&mut self, worker: &mut Worker<'_>) -> Next<Vec<Result<(), Errno>>> {
        let returned = match worker.returned.map(|returned| returned as u32) {
            // It is an int.
            Some(returned) => error(i64::from(returned.cast_signed()).cast_unsigned()).map_or(Ok(()), Err),
            None => Ok(()),
        };
        let last = self.calls.callee.data().len().saturating_sub(1);
        loop {
            let Some(step) = self.steps.get(self.results.len()) else {
                return Next::Done(std::mem::take(&mut self.results));
            };
            let next = match (self.doing, returned) {
                (Doing::Nothing, _) if !is_called(step, worker) => Err(Err(Errno::NOENT)),
                (Doing::Nothing, _) if step.on => Ok(Doing::Registering(0)),
                (Doing::Nothing, _) => Ok(Doing::Unregistering(last, Ok(()))),
                (Doing::Registering(n), Ok(())) if n < last => Ok(Doing::Registering(n + 1)),
                (Doing::Registering(0), result) | (Doing::Registering(_), result @ Ok(())) => Err(result),
                (Doing::Registering(n), result) => Ok(Doing::Unregistering(n - 1, result)),
                (Doing::Unregistering(0, so_far), result) => Err(so_far.and(result)),
                (Doing::Unregistering(n, so_far), result) => {
                    Ok(Doing::Unregistering(n - 1, so_far.and(result)))
                }
            };
            match next {
                Ok(doing) => {
                    self.doing = doing;
                    return Next::Call(self.call(step, doing));
                }
                Err(result) => {
                    self.doing = Doing::Nothing;
                    self.results.push(result);
                }
            }
        }
    }

    fn call(&self, step: &Step, doing: Doing) -> Call {
        let (function, number) = match doing {
            Doing::Registering(n) => (self.calls.register, n),
            Doing::Nothing => (self.calls.unregister, 0),
            Doing::Unregistering(n, _) => (self.calls.unregister, n),
        };
        let data = self.calls.callee.data().get(number).copied().unwrap_or(0);
        Call::new(function, &[step.tracepoint.0, step.function.0, data])
    }
}

/// Whether the tracepoint has its name: something else may be there by now.
fn is_called(step: &Step, worker: &Worker<'_>) -> bool {
    let Ok(at) = worker.memory.read_u64(step.tracepoint) else { return false };
    let wanted = step.name.bytes().chain([0]);
    (0..).zip(wanted).all(|(n, byte)| {
        let mut found = [0];
        worker.memory.read(Gva(at).add(n), &mut found).is_ok() && found == [byte]
    })
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
        let calls = TracepointCalls { register, unregister, callee, drivers: None, module_notify: None };
        let (ram, mut errand) = (ram(), SwitchTracepoints::new(calls, steps));
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
