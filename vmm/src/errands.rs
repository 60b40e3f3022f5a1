//! Calls that the guest makes of its own functions for somebody outside: who wants them, and who makes them.
//!
//! Whoever wants calls leaves an [`Errand`] here and waits on a thread of its own. The control thread sends for a worker of the
//! guest's kernel (`session/errands.rs`), which comes to the [gate](probe_engine::errand) and asks at each trap there what to do:
//! it goes through all errands that are waiting, one after the other, and then back to its kernel. One that sleeps in a call
//! keeps nobody waiting: another worker is sent for.
//!
//! Nobody waits for the guest while the lock is held, and no handler waits for an errand: a guest whose vCPU is held does not
//! get on with it.

mod functions;
mod read_file;
mod run_program;

pub use functions::{Functions, NoFunction};
pub use read_file::ReadFile;
pub use run_program::{ProgramEnd, RunProgram};

use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::errand::{Call, Code, slot};
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// So many workers are under way or in calls at a time.
pub(crate) const WORKERS: usize = 16;

/// A worker of the guest's kernel at the gate, between two calls. The guest's memory may be read and changed: what the kernel
/// has given it, or what it is to read.
pub struct Worker<'a> {
    /// What the last call has returned; `None` before the first one.
    pub returned: Option<u64>,
    /// The guest's memory.
    pub memory: VirtMemory<'a, GuestRam>,
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
    /// The time was over.
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

    /// What has come of it, if anything has by now.
    #[must_use]
    pub fn look(&self) -> Option<T> {
        self.answered.try_recv().ok()
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
#[derive(Default)]
pub struct Errands {
    state: Mutex<State>,
    /// The tasks of the workers that are at the gate or in calls, 0 where there is none.
    tasks: [AtomicU64; WORKERS],
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Errand>,
    workers: [WorkerState; WORKERS],
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

/// A worker in a call.
struct Calling {
    number: usize,
    /// For whom, unless that is over.
    errand: Option<Errand>,
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
        mut next: impl FnMut(&mut Worker<'_>) -> Next<T> + Send + 'static,
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
        let errand = Errand { ask: Box::new(ask), is_given_up: is_given_up.clone() };
        let mut state = self.state();
        match &state.closed {
            Some(closed) => Err(closed.clone()),
            None => {
                state.waiting.push_back(errand);
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

    /// The registers with which a worker goes on that is at the gate's trap with `regs`, in `task`. `None` where there is no gate.
    pub(crate) fn ask(&self, regs: &Regs, memory: VirtMemory<'_, GuestRam>, task: Gva) -> Option<Regs> {
        let place = self.place()?;
        let Some(Calling { number, mut errand }) = self.come(regs, &place, task) else {
            return Some(place.code.leave(regs));
        };
        let mut returned = errand.is_some().then_some(regs.rax);
        loop {
            let Some(mut asked) = errand.take().or_else(|| self.state().waiting.pop_front()) else {
                break;
            };
            let mut worker = Worker { returned: returned.take(), memory };
            let Some(call) = asked.ask(&mut worker) else { continue };
            let call = Call { function: call.function.add(place.slide), ..call };
            // A worker without a stack of its own goes nowhere.
            let Ok(regs) = place.code.call(&call, regs, &memory) else { continue };
            let key = place.code.rsp_at_trap(&regs);
            let mut state = self.state();
            if state.closed.is_some() {
                break;
            }
            state.calling.insert(key, Calling { number, errand: Some(asked) });
            return Some(regs);
        }
        self.go(number);
        Some(place.code.leave(regs))
    }

    /// A worker comes back to the gate from a call, or for the first time. `None` where it is nobody that was sent for.
    fn come(&self, regs: &Regs, place: &Place, task: Gva) -> Option<Calling> {
        let mut state = self.state();
        if let Some(calling) = state.calling.remove(&regs.rsp) {
            return Some(calling);
        }
        let offset = Gva(regs.rdi).offset_from(place.slots)?.checked_sub(slot::WORK)?;
        let number = usize::try_from(offset / slot::SIZE).ok().filter(|_| offset % slot::SIZE == 0)?;
        let worker = state.workers.get_mut(number).filter(|worker| **worker == WorkerState::SentFor)?;
        *worker = WorkerState::Arrived;
        self.tasks.get(number)?.store(task.0, Ordering::Relaxed);
        Some(Calling { number, errand: None })
    }

    /// A worker goes back to its kernel.
    fn go(&self, number: usize) {
        if let Some(task) = self.tasks.get(number) {
            task.store(0, Ordering::Relaxed);
        }
        if let Some(worker) = self.state().workers.get_mut(number) {
            *worker = WorkerState::Free;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use probe_engine::addr::Gpa;
    use probe_engine::memory::PhysMemory;
    use probe_engine::paging::AddressSpace;

    const PLACE: Place = Place { code: Code(Gva(0x4000)), slots: Gva(0x5000), slide: 0x10 };
    const TASK: Gva = Gva(0xabc0);

    /// A guest whose RAM, 1 MiB of it, is mapped where it lies.
    pub(crate) fn mapped() -> GuestRam {
        let ram = GuestRam::new(1 << 20).unwrap();
        for (table, entry) in [(0x1000_u64, 0x2003_u64), (0x2000, 0x3003), (0x3000, 0x83)] {
            ram.write(Gpa(table), &entry.to_le_bytes()).unwrap();
        }
        ram
    }

    /// Its memory.
    pub(crate) fn memory(ram: &GuestRam) -> VirtMemory<'_, GuestRam> {
        VirtMemory::new(ram, AddressSpace::new(0x1000, 0))
    }

    /// Such a guest, and errands in it.
    fn guest() -> (GuestRam, Errands) {
        let ram = mapped();
        let errands = Errands::default();
        errands.set_place(PLACE);
        (ram, errands)
    }

    fn ask(errands: &Errands, ram: &GuestRam, regs: &Regs) -> Regs {
        errands.ask(regs, memory(ram), TASK).unwrap()
    }

    /// Worker `number` at the gate, with a stack of its own.
    fn arriving(number: u64) -> Regs {
        let rdi = PLACE.slots.add(number * slot::SIZE + slot::WORK).0;
        Regs { rip: PLACE.code.trap().0, rsp: 0x8000 + 0x1000 * number, rdi, ..Regs::default() }
    }

    /// Wants so many calls of `function`, and then says what they returned.
    fn want(errands: &Errands, function: u64, calls: usize) -> Wanted<Vec<u64>> {
        let mut returned = Vec::new();
        let next = move |worker: &mut Worker<'_>| {
            returned.extend(worker.returned);
            match returned.len() < calls {
                true => Next::Call(Call::new(Gva(function), &[returned.len() as u64])),
                false => Next::Done(returned.clone()),
            }
        };
        errands.want(next).unwrap()
    }

    #[test]
    fn a_worker_makes_the_calls_of_all_who_wait_and_goes() {
        let (ram, errands) = guest();
        let first = want(&errands, 0x100, 2);
        let second = want(&errands, 0x200, 1);
        assert!(errands.wants_worker());
        assert_eq!(errands.free_worker(), Some(0));
        errands.sent_for(0);
        assert!(!errands.wants_worker() && errands.free_worker() == Some(1));
        let at_gate = arriving(0);
        let mut regs = ask(&errands, &ram, &at_gate);
        assert!(errands.is_worker(TASK) && errands.has_workers());
        let mut calls = Vec::new();
        while regs.rip != PLACE.code.leave(&at_gate).rip {
            calls.push((regs.rip, regs.rdi));
            regs = ask(&errands, &ram, &Regs { rax: regs.rip + regs.rdi, rdi: 0, ..at_gate });
        }
        assert_eq!(calls, [(0x110, 0), (0x110, 1), (0x210, 0)]);
        assert_eq!([first, second].map(|wanted| wanted.look().unwrap()), [vec![0x110, 0x111], vec![0x210]]);
        assert_eq!(regs.rsp, at_gate.rsp);
        assert!(!errands.wants_worker() && !errands.has_workers() && errands.free_worker() == Some(0));
    }

    #[test]
    fn another_worker_is_sent_for_while_one_is_in_a_call() {
        let (ram, errands) = guest();
        let first = want(&errands, 0x100, 1);
        errands.sent_for(0);
        ask(&errands, &ram, &arriving(0));
        let second = want(&errands, 0x200, 1);
        assert!(errands.wants_worker() && errands.free_worker() == Some(1));
        errands.sent_for(1);
        for number in [1, 0] {
            ask(&errands, &ram, &arriving(number));
            ask(&errands, &ram, &Regs { rax: number, ..arriving(number) });
        }
        assert_eq!([first, second].map(|wanted| wanted.look().unwrap()), [vec![0], vec![1]]);
    }

    #[test]
    fn nobody_makes_calls_that_were_given_up() {
        let (ram, errands) = guest();
        let wanted = want(&errands, 0x100, 2);
        errands.sent_for(0);
        let regs = ask(&errands, &ram, &arriving(0));
        assert_eq!(regs.rip, 0x110);
        assert_eq!(wanted.wait(Duration::ZERO), Err(Nothing::Overdue));
        let left = ask(&errands, &ram, &arriving(0));
        assert_eq!(left.rip, PLACE.code.leave(&left).rip);
        assert_eq!(errands.free_worker(), Some(0));
        drop(want(&errands, 0x100, 2));
        assert!(!errands.wants_worker());
    }

    #[test]
    fn nothing_goes_on_once_it_is_over() {
        let (ram, errands) = guest();
        let called = want(&errands, 0x100, 2);
        errands.sent_for(0);
        ask(&errands, &ram, &arriving(0));
        let waiting = want(&errands, 0x100, 1);
        errands.close(Closed::Panicked);
        errands.close(Closed::Ended);
        assert!(
            [called, waiting].map(|it| it.wait(Duration::MAX))
                == [Err(Nothing::Dropped), Err(Nothing::Dropped)]
        );
        assert!(!errands.wants_worker());
        assert_eq!(errands.closed(), Some(Closed::Panicked));
        let left = ask(&errands, &ram, &arriving(0));
        assert_eq!(left.rip, PLACE.code.leave(&left).rip);
        assert_eq!(errands.want(|_| Next::Done(())).err(), Some(Closed::Panicked));
    }

    #[test]
    fn whoever_comes_unasked_and_whoever_panics_goes_back() {
        let (ram, errands) = guest();
        let is_left = |regs: &Regs| ask(&errands, &ram, regs).rip == PLACE.code.leave(regs).rip;
        let strangers = [
            arriving(3),
            arriving(99),
            Regs { rdi: 5, ..arriving(0) },
            Regs { rdi: arriving(0).rdi + 8, ..arriving(0) },
            Regs { rdi: u64::MAX, rsp: u64::MAX, ..arriving(0) },
        ];
        errands.sent_for(0);
        assert!(strangers.iter().all(is_left) && !errands.is_worker(TASK));
        let panics =
            errands.want(|_| -> Next<()> { std::panic::resume_unwind(Box::new("a panic")) }).unwrap();
        let nowhere = want(&errands, 0x100, 1);
        assert!(is_left(&Regs { rsp: 1 << 30, ..arriving(0) }), "no stack to call with");
        assert_eq!(panics.wait(Duration::ZERO), Err(Nothing::Dropped));
        assert!(nowhere.look().is_none() && errands.free_worker() == Some(0));
    }
}
