//! Calls of programs' functions that are followed: from hits at their entries and returns to returns that have taken a time.
//!
//! The guest's kernel says of a return neither which call it is of nor when that began. A call returns where it was entered, one word
//! further up the stack.

use probe_engine::addr::Gva;
use probe_engine::capture::Value;
use probe_engine::probe::table::ProbeId;
use probe_engine::request::{ProbeRequest, Style};
use std::collections::{BTreeMap, HashMap};
use vmm::events::{Event, Nanos, What};

/// What a followed call reads: the stack pointer, and at its return what it has returned.
pub(crate) const STACK: &str = "sp";
pub(crate) const VALUE: &str = "value";

/// A task has no more calls that have not returned, of which the innermost are kept.
const DEEPEST: usize = 256;
/// All tasks have no more. When there are more, all are forgotten, and their returns take no time.
const MOST: usize = 1 << 16;
/// What a call puts on the stack, in bytes: where it returns to.
const WORD: u64 = 8;

/// Where a task is, and its number: another one may follow there.
type TaskId = (Gva, u32);

/// The calls that are under way.
#[derive(Default)]
pub(super) struct ProgramCalls {
    /// What the hits of probes are.
    sides: BTreeMap<ProbeId, Side>,
    tasks: HashMap<TaskId, Vec<OpenCall>>,
    open: usize,
}

#[derive(Clone, Copy)]
enum Side {
    Entry,
    /// Of calls that this probe has seen begin.
    Return(ProbeId),
}

/// A call that has not returned.
struct OpenCall {
    entry: ProbeId,
    /// The stack pointer when it was entered.
    stack: u64,
    /// When that was, in nanoseconds since the guest was started.
    began: u64,
}

impl ProgramCalls {
    /// Those that `probes` follow, which are registered in this order: a return behind its entry.
    pub(super) fn of(probes: &[ProbeRequest]) -> Self {
        let follows = |probe: &ProbeRequest| probe.style == Style::Graph && probe.plan.program.is_some();
        let mut sides = BTreeMap::new();
        for (id, pair) in (0..).map(ProbeId).zip(probes.windows(2)) {
            let [entry, back] = pair else { continue };
            if follows(entry) && follows(back) && back.is_return_of_program() && !entry.is_return_of_program()
            {
                sides.insert(id, Side::Entry);
                sides.insert(ProbeId(id.0 + 1), Side::Return(id));
            }
        }
        Self { sides, ..Self::default() }
    }

    /// The return that `event` is, if it is one of a call whose beginning was seen.
    pub(super) fn follow(&mut self, event: &Event) -> Option<Event> {
        let side = *self.sides.get(&event.probe)?;
        let (task, stack) = (event.task.as_ref()?, number(event.get(STACK)?)?);
        let task = (task.at, task.pid);
        match side {
            Side::Entry => {
                self.enter(task, OpenCall { entry: event.probe, stack, began: event.nanos });
                None
            }
            Side::Return(entry) => {
                let began = self.leave(task, entry, stack)?;
                let duration = Nanos(event.nanos.saturating_sub(began));
                let value = event.get(VALUE).and_then(number).unwrap_or_default();
                Some(Event { what: What::Return { value, duration }, ..event.clone() })
            }
        }
    }

    fn enter(&mut self, task: TaskId, call: OpenCall) {
        if self.open >= MOST {
            self.tasks.clear();
            self.open = 0;
        }
        let calls = self.tasks.entry(task).or_default();
        if calls.len() >= DEEPEST {
            calls.remove(0);
            self.open -= 1;
        }
        calls.push(call);
        self.open += 1;
    }

    /// When the call began that `entry` has seen and that returns now, if it is known.
    fn leave(&mut self, task: TaskId, entry: ProbeId, stack: u64) -> Option<u64> {
        let calls = self.tasks.get_mut(&task)?;
        let is_its = |call: &OpenCall| call.entry == entry && call.stack.wrapping_add(WORD) == stack;
        let its = calls.iter().rposition(is_its)?;
        let began = calls.get(its)?.began;
        // Those that it called and that have not returned were left by a jump.
        self.open -= calls.len() - its;
        calls.truncate(its);
        if calls.is_empty() {
            self.tasks.remove(&task);
        }
        Some(began)
    }
}

/// A register's value.
fn number(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Bytes(bytes) => Some(u64::from_le_bytes(bytes.try_into().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: TaskId = (Gva(8), 7);
    const OUTER: ProbeId = ProbeId(0);
    const INNER: ProbeId = ProbeId(2);

    fn call(entry: ProbeId, stack: u64, began: u64) -> OpenCall {
        OpenCall { entry, stack, began }
    }

    #[test]
    fn a_return_is_of_the_call_that_was_entered_there() {
        let mut calls = ProgramCalls::default();
        calls.enter(TASK, call(OUTER, 0x1000, 1));
        calls.enter(TASK, call(OUTER, 0xf00, 2));
        calls.enter(TASK, call(INNER, 0xe00, 3));
        // Another task has the same addresses.
        assert_eq!(calls.leave((Gva(8), 8), INNER, 0xe08), None);
        assert_eq!(calls.leave(TASK, INNER, 0xe00), None, "it is one word further up");
        assert_eq!(calls.leave(TASK, INNER, 0xe08), Some(3));
        assert_eq!(calls.leave(TASK, INNER, 0xe08), None, "it has returned");
        assert_eq!((calls.leave(TASK, OUTER, 0xf08), calls.leave(TASK, OUTER, 0x1008)), (Some(2), Some(1)));
        assert_eq!((calls.open, calls.tasks.len()), (0, 0));
    }

    #[test]
    fn calls_that_a_jump_has_left_are_forgotten() {
        let mut calls = ProgramCalls::default();
        calls.enter(TASK, call(OUTER, 0x1000, 1));
        calls.enter(TASK, call(INNER, 0xf00, 2));
        calls.enter(TASK, call(INNER, 0xe00, 3));
        assert_eq!(calls.leave(TASK, OUTER, 0x1008), Some(1));
        assert_eq!((calls.leave(TASK, INNER, 0xf08), calls.open), (None, 0));
    }

    #[test]
    fn a_guest_that_never_returns_does_not_fill_memory() {
        let mut calls = ProgramCalls::default();
        for n in 0..2 * MOST as u64 {
            calls.enter((Gva(n / 1000), 1), call(OUTER, n, n));
            assert!(calls.open <= MOST && calls.tasks.values().all(|calls| calls.len() <= DEEPEST));
        }
    }
}
