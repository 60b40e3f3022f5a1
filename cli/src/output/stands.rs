//! Where the guest stood, with names.

use super::names::GuestNames;
use crate::record::{Address, LockLine, SleeperLine, StoodLine, StoodStack};
use vmm::session::{AwaitedLock, Sleeper, Stood};
use vmm::stack::Stack;

/// The line of a CPU.
pub(crate) fn cpu(stood: &Stood, names: &GuestNames) -> StoodLine {
    let Stood { rip, regs: _, system: _, is_halted, stack, task, lock } = stood;
    StoodLine {
        rip: Address(rip.0),
        name: names.symbol(*rip),
        halted: *is_halted,
        task: *task,
        lock: lock.map(|lock| named_lock(lock, names)),
        stack: named_stack(stack.as_ref(), names),
    }
}

/// The line of a task that slept.
pub(crate) fn sleeper(sleeper: &Sleeper, names: &GuestNames) -> SleeperLine {
    let Sleeper { task, stack, lock } = sleeper;
    SleeperLine {
        task: Some(*task),
        lock: lock.map(|lock| named_lock(lock, names)),
        stack: named_stack(stack.as_ref(), names),
    }
}

/// The words for a lock.
pub(crate) fn named_lock(AwaitedLock { at, kind, owner }: AwaitedLock, names: &GuestNames) -> LockLine {
    LockLine { kind: kind.name().to_owned(), address: Address(at.0), name: names.variable(at), owner }
}

pub(super) fn named_stack(stack: Option<&Stack>, names: &GuestNames) -> StoodStack {
    StoodStack::new(stack.and_then(|stack| names.stack(stack)))
}
