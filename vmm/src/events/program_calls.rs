//! Hits in programs: where the program was, and not its kernel, and how long its calls took.
//!
//! The guest's kernel says of a return neither which call it is of nor when that began. A probe at the entry tells that, of which nobody
//! else is told: a call returns where it was entered, one word further up the stack.

use super::{Event, Nanos, What};
use probe_engine::addr::Gva;
use probe_engine::probe::table::ProbeId;
use std::collections::HashMap;

/// A task has no more calls that have not returned, of which the innermost are kept.
const DEEPEST: usize = 256;
/// All tasks have no more that are remembered. Those of tasks that have done nothing for so many calls are forgotten first: a call that
/// never returns is one of them in the end.
const MOST: usize = 1 << 16;
/// What a call puts on the stack, in bytes: where it returns to.
const WORD: u64 = 8;

/// Where a task is, and its number: another one may follow there.
type TaskId = (Gva, u32);

/// The calls of programs that are under way.
#[derive(Default)]
pub(super) struct ProgramCalls {
    /// Of tasks that have called or returned lately.
    recent: TaskCalls,
    /// Of the others.
    earlier: TaskCalls,
}

/// The calls of tasks, the innermost last.
#[derive(Default)]
struct TaskCalls {
    tasks: HashMap<TaskId, Vec<OpenCall>>,
    open: usize,
}

impl TaskCalls {
    fn take(&mut self, task: TaskId) -> Option<Vec<OpenCall>> {
        let calls = self.tasks.remove(&task)?;
        self.open -= calls.len();
        Some(calls)
    }

    fn put(&mut self, task: TaskId, calls: Vec<OpenCall>) {
        if !calls.is_empty() {
            self.open += calls.len();
            self.tasks.insert(task, calls);
        }
    }
}

/// A call that has not returned.
struct OpenCall {
    /// As whose hit its return is told.
    told_as: ProbeId,
    /// The stack pointer when it was entered (GVA).
    stack: Gva,
    /// When that was, in nanoseconds since the guest was started.
    began: u64,
}

impl ProgramCalls {
    /// What `event` is, by the registers of its program where it is in one. `begins`: the probe whose returns are of calls that begin
    /// with this event, which is told to nobody then. A return of a call whose beginning was not seen is a hit.
    pub(super) fn follow(&mut self, event: Event, begins: Option<ProbeId>) -> Option<Event> {
        let Some((state, returns)) = event.captured.program() else {
            return Some(event).filter(|_| begins.is_none());
        };
        let task = event.task.as_ref().map(|task| (task.at, task.pid));
        if let Some(told_as) = begins {
            self.enter(task?, OpenCall { told_as, stack: state.sp, began: event.nanos });
            return None;
        }
        let began = task.filter(|_| returns).and_then(|task| self.leave(task, event.probe, state.sp));
        let what = match began {
            Some(began) => {
                let duration = Nanos(event.nanos.saturating_sub(began));
                What::Return { value: state.ax, duration }
            }
            None => What::Hit { args: state.args },
        };
        Some(Event { rip: state.ip, what, ..event })
    }

    /// The calls of a task that have not returned.
    fn take(&mut self, task: TaskId) -> Option<Vec<OpenCall>> {
        self.recent.take(task).or_else(|| self.earlier.take(task))
    }

    fn enter(&mut self, task: TaskId, call: OpenCall) {
        let mut calls = self.take(task).unwrap_or_default();
        if calls.len() >= DEEPEST {
            calls.remove(0);
        }
        calls.push(call);
        self.recent.put(task, calls);
        if self.recent.open >= MOST / 2 {
            self.earlier = std::mem::take(&mut self.recent);
        }
    }

    /// When the call began that returns now, if it is known.
    fn leave(&mut self, task: TaskId, told_as: ProbeId, stack: Gva) -> Option<u64> {
        let mut calls = self.take(task)?;
        let is_its = |call: &OpenCall| call.told_as == told_as && call.stack.add(WORD) == stack;
        let its = calls.iter().rposition(is_its).map(|its| {
            let own = calls.remove(its);
            // Those that it called and that have not returned were left by a jump. Others may have seen the same call.
            let mut behind = calls.split_off(its);
            behind.retain(|call| call.stack >= own.stack);
            calls.append(&mut behind);
            own
        });
        self.recent.put(task, calls);
        Some(its?.began)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: TaskId = (Gva(8), 7);
    const OUTER: ProbeId = ProbeId(0);
    const INNER: ProbeId = ProbeId(2);

    fn call(told_as: ProbeId, stack: u64, began: u64) -> OpenCall {
        OpenCall { told_as, stack: Gva(stack), began }
    }

    #[test]
    fn a_return_is_of_the_call_that_was_entered_there() {
        let mut calls = ProgramCalls::default();
        calls.enter(TASK, call(OUTER, 0x1000, 1));
        calls.enter(TASK, call(OUTER, 0xf00, 2));
        calls.enter(TASK, call(INNER, 0xe00, 3));
        // Another task has the same addresses.
        assert_eq!(calls.leave((Gva(8), 8), INNER, Gva(0xe08)), None);
        assert_eq!(calls.leave(TASK, INNER, Gva(0xe00)), None, "it is one word further up");
        assert_eq!(calls.leave(TASK, INNER, Gva(0xe08)), Some(3));
        assert_eq!(calls.leave(TASK, INNER, Gva(0xe08)), None, "it has returned");
        assert_eq!(
            (calls.leave(TASK, OUTER, Gva(0xf08)), calls.leave(TASK, OUTER, Gva(0x1008))),
            (Some(2), Some(1))
        );
        assert_eq!((calls.recent.open, calls.recent.tasks.len()), (0, 0));
    }

    #[test]
    fn a_call_that_several_have_seen_returns_to_each() {
        let mut calls = ProgramCalls::default();
        for seen in [OUTER, INNER] {
            calls.enter(TASK, call(seen, 0x1000, 1));
        }
        calls.enter(TASK, call(OUTER, 0xf00, 2));
        assert_eq!(calls.leave(TASK, OUTER, Gva(0x1008)), Some(1));
        assert_eq!(calls.leave(TASK, INNER, Gva(0x1008)), Some(1));
        assert_eq!((calls.recent.open, calls.recent.tasks.len()), (0, 0));
    }

    #[test]
    fn calls_that_a_jump_has_left_are_forgotten() {
        let mut calls = ProgramCalls::default();
        calls.enter(TASK, call(OUTER, 0x1000, 1));
        calls.enter(TASK, call(INNER, 0xf00, 2));
        calls.enter(TASK, call(INNER, 0xe00, 3));
        assert_eq!(calls.leave(TASK, OUTER, Gva(0x1008)), Some(1));
        assert_eq!((calls.leave(TASK, INNER, Gva(0xf08)), calls.recent.open), (None, 0));
    }

    #[test]
    fn a_guest_that_never_returns_does_not_fill_memory() {
        let mut calls = ProgramCalls::default();
        calls.enter(TASK, call(OUTER, 0x1000, 1));
        for n in 0..2 * MOST as u64 {
            calls.enter((Gva(n / 1000), 1), call(OUTER, n, n));
            let both = [&calls.recent, &calls.earlier];
            assert!(both.iter().map(|some| some.open).sum::<usize>() <= MOST);
            assert!(both.iter().flat_map(|some| some.tasks.values()).all(|calls| calls.len() <= DEEPEST));
        }
    }
}
