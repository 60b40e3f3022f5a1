//! Calls that the guest makes of its own functions for somebody outside: who wants them, and who makes them.
//!
//! Whoever wants calls leaves an [`Errand`] here and waits on a thread of its own. The control thread sends for a worker of the
//! guest's kernel (`session/errands.rs`), which comes to the [gate](probe_engine::errand) and asks at each trap there what to do:
//! it goes through all errands that are waiting, one after the other, and then back to its kernel. One that sleeps in a call
//! keeps nobody waiting: another worker is sent for.
//!
//! A task that comes to a trap of ours where it may sleep makes calls as well before it goes on, where the control thread wants
//! that: nothing has to be sent for then.
//!
//! Nobody waits for the guest while the lock is held, and no handler waits for an errand: a guest whose vCPU is held does not
//! get on with it.

mod caller;
mod functions;
mod program_file;
mod programs;
mod read_file;
mod run_program;
mod switch;

pub(crate) use caller::Caller;
pub use functions::{Functions, NoFunction};
pub(crate) use program_file::FoundPlaces;
pub(crate) use programs::{Consumers, PlacePrograms, PlaceStep, Placed};
pub use read_file::ReadFile;
pub use run_program::{ProgramEnd, RunProgram};
pub(crate) use switch::{Registrations, Step, SwitchTracepoints};

use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::errand::{Call, Code, slot};
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many workers are under way or in calls at a time.
pub(crate) const WORKERS: usize = 16;
/// So many tasks that came by are in calls at a time.
const PASSERS: usize = 128;
/// So many of them at most make calls for themselves alone: whoever lets them sleep for long keeps no other from making calls.
const FOR_THEMSELVES: usize = 64;

/// A worker of the guest's kernel at the gate, between two calls. The guest's memory may be read and changed: what the kernel
/// has given it, or what it is to read.
pub struct Worker<'a> {
    /// What the last call has returned; `None` before the first one.
    pub returned: Option<u64>,
    /// The guest's memory.
    pub memory: VirtMemory<'a, GuestRam>,
}

/// An errand that is one call: what that returns comes of it.
pub(crate) fn one(call: Call) -> impl FnMut(&mut Worker<'_>) -> Next<u64> {
    move |worker| match worker.returned {
        None => Next::Call(call),
        Some(value) => Next::Done(value),
    }
}

/// What a worker does next.
pub enum Next<T> {
    /// Makes this call. Its function is named by the address at which it was linked.
    Call(Call),
    /// Nothing more: this is what came of the errand.
    Done(T),
}

type Ask = dyn FnMut(&mut Worker<'_>) -> Option<Call> + Send;

/// Calls that somebody wants.
struct Errand {
    /// Which call is next, if any.
    ask: Box<Ask>,
    /// Whether nobody waits for it any more.
    is_given_up: Arc<AtomicBool>,
    /// Whether it is of no interest to anybody but the task that makes the calls.
    is_for_itself: bool,
}

impl Errand {
    /// The next call. One that panics is over.
    fn ask(&mut self, worker: &mut Worker<'_>) -> Option<Call> {
        let is_given_up = self.is_given_up.load(Ordering::Relaxed);
        let ask = || catch_unwind(AssertUnwindSafe(|| (self.ask)(worker))).ok().flatten();
        (!is_given_up).then(ask).flatten()
    }
}

/// An errand that somebody waits for.
pub struct Wanted<T> {
    answered: Receiver<T>,
    is_given_up: Arc<AtomicBool>,
}

/// Nothing has come of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nothing {
    /// The time was over, or it is not.
    Overdue,
    /// It was dropped: no errand is taken any more, or this one has panicked.
    Dropped,
}

impl<T> Wanted<T> {
    /// What has come of it, once that is so. Nothing more is called when this returns.
    pub(crate) fn wait(self, within: Duration) -> Result<T, Nothing> {
        self.answered.recv_timeout(within).map_err(|error| match error {
            RecvTimeoutError::Timeout => Nothing::Overdue,
            RecvTimeoutError::Disconnected => Nothing::Dropped,
        })
    }

    /// It goes on, and nobody waits for it.
    fn leave(mut self) {
        self.is_given_up = Arc::default();
    }

    /// What has come of it, if anything has by now.
    #[must_use]
    pub fn look(&self) -> Option<T> {
        self.come_to().ok()
    }

    /// What has come of it by now, or why nothing has.
    pub(crate) fn come_to(&self) -> Result<T, Nothing> {
        self.answered.try_recv().map_err(|error| match error {
            TryRecvError::Empty => Nothing::Overdue,
            TryRecvError::Disconnected => Nothing::Dropped,
        })
    }
}

impl<T> Drop for Wanted<T> {
    fn drop(&mut self) {
        self.is_given_up.store(true, Ordering::Relaxed);
    }
}

/// Why no errand is taken any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Closed {
    /// The guest has ended.
    Ended,
    /// Its kernel panics.
    Panicked,
    /// It cannot be reached, for this reason.
    Unreachable(String),
}

/// The errands of a guest.
pub struct Errands {
    state: Mutex<State>,
    /// The tasks that are at the gate or in calls, 0 where there is none: of the workers, by their numbers, and of others behind them.
    tasks: [AtomicU64; WORKERS + PASSERS],
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Errand>,
    workers: [WorkerState; WORKERS],
    /// What tasks are to do that wait at a trap, by their vCPUs.
    passers: BTreeMap<usize, Errand>,
    /// Those in calls, by their stack pointers at the gate.
    calling: BTreeMap<u64, Calling>,
    place: Option<Place>,
    closed: Option<Closed>,
}

/// Where the guest has what errands need, once it has that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) code: Code,
    /// The slots of all workers.
    pub(crate) slots: Gva,
    /// What KASLR added to link-time addresses.
    pub(crate) slide: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum WorkerState {
    #[default]
    Free,
    /// On its way to the gate.
    SentFor,
    Arrived,
}

/// Who makes calls.
enum CallingTask {
    /// A worker that was sent for, by its number.
    Worker(usize),
    /// A task that came by, by its number behind the workers, with the registers with which it goes on, and whether the calls are
    /// for itself.
    Passer(usize, Box<Regs>, bool),
}

/// What a task does that is at the gate.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AtGate {
    /// It goes on with these registers.
    GoesOn(Regs),
    /// It has made its calls, and is with these registers where it came by.
    IsBack(Regs),
    /// The same, of calls that it has made for itself: it takes the trap with these registers once more.
    TakesTrap(Regs),
}

/// A task in a call.
struct Calling {
    task: Gva,
    caller: CallingTask,
    /// For whom, unless that is over.
    errand: Option<Errand>,
}

impl Default for Errands {
    fn default() -> Self {
        Self { state: Mutex::default(), tasks: [const { AtomicU64::new(0) }; WORKERS + PASSERS] }
    }
}

impl Errands {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those of a guest outside of any session, which has the gate at `code`, and whose first worker is on its way there: it comes
    /// with the address of the work in the first of the `slots`.
    #[must_use]
    pub fn on_their_own(code: Code, slots: Gva) -> Self {
        let errands = Self::default();
        errands.set_place(Place { code, slots, slide: 0 });
        errands.sent_for(0);
        errands
    }

    /// Takes an errand, of which `next` says the next call or what came of it.
    ///
    /// # Errors
    /// Why none is taken any more.
    pub fn want<T: Send + 'static>(
        &self,
        next: impl FnMut(&mut Worker<'_>) -> Next<T> + Send + 'static,
    ) -> Result<Wanted<T>, Closed> {
        self.take(next, |state, errand| state.waiting.push_back(errand))
    }

    /// Takes an errand of the task that waits at a trap of ours on `vcpu`, and makes its calls before it goes on.
    ///
    /// # Errors
    /// Why none is taken any more.
    pub(crate) fn want_of<T: Send + 'static>(
        &self,
        vcpu: usize,
        next: impl FnMut(&mut Worker<'_>) -> Next<T> + Send + 'static,
    ) -> Result<Wanted<T>, Closed> {
        self.take(next, |state, errand| {
            state.passers.insert(vcpu, errand);
        })
    }

    /// The same, for nobody else: what comes of it is of no interest.
    ///
    /// # Errors
    /// Why none is taken any more.
    pub(crate) fn want_for_itself(
        &self,
        vcpu: usize,
        next: impl FnMut(&mut Worker<'_>) -> Next<()> + Send + 'static,
    ) -> Result<(), Closed> {
        let keep = |state: &mut State, errand| {
            state.passers.insert(vcpu, Errand { is_for_itself: true, ..errand });
        };
        self.take(next, keep).map(Wanted::leave)
    }

    fn take<T: Send + 'static>(
        &self,
        mut next: impl FnMut(&mut Worker<'_>) -> Next<T> + Send + 'static,
        keep: impl FnOnce(&mut State, Errand),
    ) -> Result<Wanted<T>, Closed> {
        let (answer, answered) = mpsc::sync_channel(1);
        let is_given_up = Arc::new(AtomicBool::new(false));
        let ask = move |worker: &mut Worker<'_>| match next(worker) {
            Next::Call(call) => Some(call),
            Next::Done(result) => {
                let _ = answer.send(result);
                None
            }
        };
        let errand = Errand { ask: Box::new(ask), is_given_up: is_given_up.clone(), is_for_itself: false };
        let mut state = self.state();
        match &state.closed {
            Some(closed) => Err(closed.clone()),
            None => {
                keep(&mut state, errand);
                Ok(Wanted { answered, is_given_up })
            }
        }
    }

    /// Why none is taken any more.
    pub(crate) fn closed(&self) -> Option<Closed> {
        self.state().closed.clone()
    }

    /// None is taken any more, and none goes on. Workers in calls go back to their kernel.
    pub(crate) fn close(&self, why: Closed) {
        let mut state = self.state();
        state.closed.get_or_insert(why);
        state.waiting.clear();
        state.passers.clear();
        state.calling.values_mut().for_each(|calling| calling.errand = None);
    }

    /// Whether a worker is to be sent for: somebody waits, and nobody is on the way.
    pub(crate) fn wants_worker(&self) -> bool {
        let mut state = self.state();
        state.waiting.retain(|errand| !errand.is_given_up.load(Ordering::Relaxed));
        !state.waiting.is_empty() && !state.workers.contains(&WorkerState::SentFor)
    }

    /// The number of a worker that can be sent for.
    pub(crate) fn free_worker(&self) -> Option<usize> {
        self.state().workers.iter().position(|worker| *worker == WorkerState::Free)
    }

    /// It has been sent for.
    pub(crate) fn sent_for(&self, number: usize) {
        if let Some(worker) = self.state().workers.get_mut(number) {
            *worker = WorkerState::SentFor;
        }
    }

    pub(crate) fn place(&self) -> Option<Place> {
        self.state().place
    }

    pub(crate) fn set_place(&self, place: Place) {
        self.state().place = Some(place);
    }

    /// Whether anybody makes a call for us at this moment.
    pub(crate) fn has_workers(&self) -> bool {
        self.tasks.iter().any(|worker| worker.load(Ordering::Relaxed) != 0)
    }

    /// Whether `task` (GVA) makes a call for us at this moment.
    pub(crate) fn is_worker(&self, task: Gva) -> bool {
        self.tasks.iter().any(|worker| worker.load(Ordering::Relaxed) == task.0)
    }

    /// What a task does that is at the gate's trap with `regs`, in `task`. `None` where there is no gate.
    pub(crate) fn ask(&self, regs: &Regs, memory: VirtMemory<'_, GuestRam>, task: Gva) -> Option<AtGate> {
        let place = self.place()?;
        Some(match self.come(regs, &place, task) {
            None => AtGate::GoesOn(place.code.leave(regs)),
            Some(calling) => {
                let returned = calling.errand.is_some().then_some(regs.rax);
                self.next_call(&place, calling, returned, regs, memory)
            }
        })
    }

    /// The registers with which the task that waits at a trap with `regs` on `vcpu` makes its first call, if it is to make any.
    pub(crate) fn begin(
        &self,
        vcpu: usize,
        task: Gva,
        regs: &Regs,
        memory: VirtMemory<'_, GuestRam>,
    ) -> Option<Regs> {
        let errand = self.state().passers.remove(&vcpu)?;
        let place = self.place()?;
        let is_for_itself = errand.is_for_itself;
        let number = self.free_passer(task, is_for_itself)?;
        let caller = CallingTask::Passer(number, Box::new(*regs), is_for_itself);
        let calling = Calling { task, caller, errand: Some(errand) };
        let at_gate = place.code.from_entry(regs);
        match self.next_call(&place, calling, None, &at_gate, memory) {
            AtGate::GoesOn(regs) => Some(regs),
            AtGate::IsBack(_) | AtGate::TakesTrap(_) => None,
        }
    }

    /// What one does at the gate whose last call has returned this.
    fn next_call(
        &self,
        place: &Place,
        Calling { task, caller, mut errand }: Calling,
        mut returned: Option<u64>,
        regs: &Regs,
        memory: VirtMemory<'_, GuestRam>,
    ) -> AtGate {
        let is_worker = matches!(caller, CallingTask::Worker(_));
        let others = || if is_worker { self.state().waiting.pop_front() } else { None };
        while let Some(mut asked) = errand.take().or_else(others) {
            let mut worker = Worker { returned: returned.take(), memory };
            let Some(call) = asked.ask(&mut worker) else { continue };
            let call = Call { function: call.function.add(place.slide), ..call };
            // A task without a stack of its own goes nowhere.
            let Ok(regs) = place.code.call(&call, regs, &memory) else { continue };
            let key = place.code.rsp_at_trap(&regs);
            let mut state = self.state();
            if state.closed.is_some() {
                break;
            }
            // Who was there before has left the stack without a word.
            let stale = state.calling.insert(key, Calling { task, caller, errand: Some(asked) });
            drop(state);
            if let Some(stale) = stale {
                self.go(&stale.caller);
            }
            return AtGate::GoesOn(regs);
        }
        self.go(&caller);
        match caller {
            CallingTask::Worker(_) => AtGate::GoesOn(place.code.leave(regs)),
            CallingTask::Passer(_, regs, false) => AtGate::IsBack(*regs),
            CallingTask::Passer(_, regs, true) => AtGate::TakesTrap(*regs),
        }
    }

    /// A number for a task that came by, which is taken.
    fn free_passer(&self, task: Gva, is_for_itself: bool) -> Option<usize> {
        let is_taken = |own: &AtomicU64| {
            own.compare_exchange(0, task.0.max(1), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let last = WORKERS + PASSERS - FOR_THEMSELVES;
        let mut numbers = if is_for_itself { last..self.tasks.len() } else { WORKERS..last };
        numbers.find(|number| self.tasks.get(*number).is_some_and(is_taken))
    }

    /// A worker comes back to the gate from a call, or for the first time. `None` where it is nobody that was sent for.
    fn come(&self, regs: &Regs, place: &Place, task: Gva) -> Option<Calling> {
        let mut state = self.state();
        if state.calling.get(&regs.rsp).is_some_and(|calling| calling.task == task) {
            return state.calling.remove(&regs.rsp);
        }
        let offset = Gva(regs.rdi).offset_from(place.slots)?.checked_sub(slot::WORK)?;
        let number = usize::try_from(offset / slot::SIZE).ok().filter(|_| offset % slot::SIZE == 0)?;
        let worker = state.workers.get_mut(number).filter(|worker| **worker == WorkerState::SentFor)?;
        *worker = WorkerState::Arrived;
        self.tasks.get(number)?.store(task.0, Ordering::Relaxed);
        Some(Calling { task, caller: CallingTask::Worker(number), errand: None })
    }

    /// One makes no more calls: a worker goes back to its kernel.
    fn go(&self, caller: &CallingTask) {
        let (CallingTask::Worker(number) | CallingTask::Passer(number, ..)) = caller;
        if let Some(task) = self.tasks.get(*number) {
            task.store(0, Ordering::Relaxed);
        }
        if let Some(worker) = self.state().workers.get_mut(*number) {
            *worker = WorkerState::Free;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
