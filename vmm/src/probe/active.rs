//! A registered probe as vCPU threads see it.

use super::command::Waiting;
use super::{
    Data, Handler, HandlerRequest, Handlers, Hit, InstructionHandlers, Probe, ReturnHandlers, WatchHandler,
};
use crate::gate::Gate;
use crate::imposed::ImposedOrder;
use crate::injector::Injector;
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::detour::layout;
use probe_engine::detour::unsuited::Unsuited;
use probe_engine::detour::work::Work;
use probe_engine::linux::scope::Scope;
use probe_engine::linux::task::Task;
use probe_engine::probe::inject::Inject;
use probe_engine::probe::pace::{Delay, HoldMode};
use probe_engine::probe::plan::ProbePlan;
use probe_engine::probe::returns::Pool;
use probe_engine::probe::table::ProbeId;
use probe_engine::regs::Regs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What is attached to a site.
pub struct Active {
    pub(crate) id: ProbeId,
    /// As whose hits its own are told: its own, unless it is one of several that a probe stands for.
    pub(crate) told_as: ProbeId,
    /// What it does.
    pub(crate) plan: Arc<ProbePlan>,
    pub(crate) kind: Kind,
    /// Whether it has had its only hit, where only the first one counts.
    spent: Arc<AtomicBool>,
    /// A handler panicked: none of them is called again.
    broken: Arc<AtomicBool>,
    /// It was unregistered: calls that it follows still return, without its handler.
    retired: AtomicBool,
    misses: [AtomicU64; 3],
    /// How many passes were not in its scope.
    outside: AtomicU64,
    pacing: Option<Pacing>,
    injector: Option<Arc<Injector>>,
    /// The number of its consumer, if the guest's kernel calls it for a place in a program.
    consumer: Option<u32>,
}

/// For whom a probe is there.
#[derive(Clone, Copy)]
pub(crate) enum Kin<'a> {
    /// For whoever has asked for it.
    Nobody,
    /// It is at one of the places that this one stands for, and its hits are told as those of that.
    PartOf(&'a Active),
    /// It sees when the calls began whose returns are the hits of this one.
    BeginningOf(&'a Active),
}

impl Kin<'_> {
    /// The other one.
    pub(crate) fn other(self) -> Option<ProbeId> {
        match self {
            Self::Nobody => None,
            Self::PartOf(other) | Self::BeginningOf(other) => Some(other.id),
        }
    }
}

/// What its hits do to the order in which vCPUs go on.
pub(crate) enum Pacing {
    /// They are held at this gate, so long at most, and their CPUs do this meanwhile.
    Hold(Arc<Gate>, Duration, HoldMode),
    /// They open it.
    Open(Arc<Gate>),
    /// They wait, each for its time; so many have.
    Delay(Delay, AtomicU64),
    /// They wait for their turns, so long at most.
    Turn(Arc<ImposedOrder>, Duration),
    /// All vCPUs stand still.
    Stop,
}

/// The user's handlers, and what belongs to each kind of probe.
pub(crate) enum Kind {
    Instruction(InstructionHandlers),
    /// With the calls that are followed.
    Return(ReturnHandlers, Pool<Data>),
    Watch(Watching),
}

/// Why a probe cannot be served by a detour.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoDetour {
    /// A detour calls no handler.
    #[error("a handler on the host sees its hits")]
    Handler,
    /// What it does.
    #[error(transparent)]
    Unsuited(#[from] Unsuited),
}

/// What is done when watched memory is accessed, and what it held.
pub(crate) struct Watching {
    pub(crate) handler: Option<Handler>,
    last: AtomicU64,
}

impl Watching {
    pub(crate) fn new(handler: WatchHandler) -> Self {
        Self { handler: handler.0, last: AtomicU64::new(0) }
    }

    /// What the memory held when it was last looked at.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Relaxed)
    }

    /// The memory holds `new`: gives what it held before.
    pub(crate) fn replace(&self, new: u64) -> u64 {
        self.last.swap(new, Ordering::Relaxed)
    }
}

/// Why a hit is missed, where that is known on the spot.
#[derive(Clone, Copy)]
pub(crate) enum Miss {
    /// A return probe follows as many calls as it may.
    NoInstance,
    /// The return address could not be replaced.
    NoStack,
    /// The call came back on another stack or in another task than it began in.
    Stray,
}

impl Active {
    /// A probe outside of any session. A return probe has no trampolines there, and follows no call.
    #[must_use]
    pub fn on_its_own(id: ProbeId, probe: impl Into<Probe>) -> Self {
        let Probe { plan, handlers, .. } = probe.into();
        let kind = match handlers {
            Handlers::Instruction(handlers) => Kind::Instruction(handlers),
            Handlers::Watch(handler) => Kind::Watch(Watching::new(handler)),
            Handlers::Return(handlers) => Kind::Return(handlers, Pool::new(0, 0, 1)),
        };
        let injector = plan.inject.map(Injector::of);
        Self::new(id, Arc::new(plan), kind).injecting(injector)
    }

    pub(crate) fn new(id: ProbeId, plan: Arc<ProbePlan>, kind: Kind) -> Self {
        Self {
            id,
            told_as: id,
            plan,
            kind,
            spent: Arc::default(),
            broken: Arc::default(),
            retired: AtomicBool::new(false),
            misses: [const { AtomicU64::new(0) }; 3],
            outside: AtomicU64::new(0),
            pacing: None,
            injector: None,
            consumer: None,
        }
    }

    /// The same, whose hits do this to the order in which vCPUs go on.
    pub(crate) fn paced(self, pacing: Option<Pacing>) -> Self {
        Self { pacing, ..self }
    }

    /// The same, of whose calls this says which fail.
    pub(crate) fn injecting(self, injector: Option<Arc<Injector>>) -> Self {
        Self { injector, ..self }
    }

    /// The same, which the guest's kernel calls for this consumer.
    pub(crate) fn called_for(self, consumer: Option<u32>) -> Self {
        Self { consumer, ..self }
    }

    /// The same, which is there for another one, if it is: it is over when that is, whether that has had its only hit or a handler has
    /// panicked.
    pub(crate) fn of(self, kin: Kin<'_>) -> Self {
        let (Kin::PartOf(other) | Kin::BeginningOf(other)) = kin else { return self };
        let told_as = if matches!(kin, Kin::PartOf(_)) { other.told_as } else { self.told_as };
        Self { told_as, spent: other.spent.clone(), broken: other.broken.clone(), ..self }
    }

    /// The number of its consumer, if the guest's kernel calls it for a place in a program.
    pub(crate) fn consumer(&self) -> Option<u32> {
        self.consumer
    }

    /// Whether a pass with these registers is for it: consumers lie in the data window at `window`.
    pub(crate) fn is_called(&self, regs: &Regs, window: Gva) -> bool {
        self.consumer.is_none_or(|number| regs.rdi == window.add(layout::consumer(number)).0)
    }

    /// What the caller gets of the call that `task` makes now, where that is to fail.
    pub(crate) fn injected(&self, task: Option<&Task>) -> Option<u64> {
        match (self.plan.inject, &self.injector) {
            (Some(Inject::Fail { value, under, .. }), Some(injector)) => {
                injector.takes(task, under).then_some(value)
            }
            _ => None,
        }
    }

    /// Whether its hits are calls that fail.
    pub(crate) fn injects(&self) -> bool {
        matches!(self.plan.inject, Some(Inject::Fail { .. }))
    }

    /// The gates at which its hits are held, and what their CPUs do meanwhile.
    pub(crate) fn gates(&self) -> impl Iterator<Item = (&Gate, HoldMode)> {
        let (gates, mode) = match &self.pacing {
            Some(Pacing::Hold(gate, _, mode)) => (std::slice::from_ref(gate), *mode),
            Some(Pacing::Turn(order, _)) => (order.gates(), HoldMode::Cpu),
            Some(Pacing::Open(_) | Pacing::Delay(..) | Pacing::Stop) | None => (&[][..], HoldMode::Cpu),
        };
        gates.iter().map(move |gate| (&**gate, mode))
    }

    /// The order in which its hits have their turns, and how long they wait for these.
    pub(crate) fn turns(&self) -> Option<(&ImposedOrder, Duration)> {
        match &self.pacing {
            Some(Pacing::Turn(order, within)) => Some((order, *within)),
            Some(Pacing::Hold(..) | Pacing::Open(_) | Pacing::Delay(..) | Pacing::Stop) | None => None,
        }
    }

    /// Whether the guest is to stand still at its hits.
    pub(crate) fn stops_guest(&self) -> bool {
        matches!(self.pacing, Some(Pacing::Stop)) && !self.is_broken() && !self.is_retired()
    }

    /// Whether a hit may have to wait in front of its instruction.
    pub(crate) fn stands(&self) -> bool {
        let waits = matches!(self.pacing, Some(Pacing::Hold(..) | Pacing::Delay(..)));
        waits && matches!(self.kind, Kind::Instruction(_))
    }

    /// `vcpu` has taken a hit that counts, in `task`: who is held for it goes on, or it is to wait itself.
    pub(crate) fn pace(
        &self,
        vcpu: usize,
        task: Option<Task>,
        ram: &GuestRam,
        requests: &mut Vec<HandlerRequest>,
    ) {
        match &self.pacing {
            // A hit of a turn has waited before it was one, and so has one at which the guest stood still.
            None | Some(Pacing::Turn(..) | Pacing::Stop) => {}
            Some(Pacing::Open(gate)) => gate.open(vcpu, task.as_ref(), ram),
            Some(Pacing::Hold(gate, within, mode)) => {
                let (gate, within, mode, probe) = (gate.clone(), *within, *mode, self.told_as);
                requests.push(HandlerRequest::Stand(Waiting::Gate { gate, within, mode, probe, task }));
            }
            Some(Pacing::Delay(delay, hits)) => {
                let time = delay.of(self.id.0, hits.fetch_add(1, Ordering::Relaxed));
                if !time.is_zero() {
                    requests.push(HandlerRequest::Stand(Waiting::Time(time)));
                }
            }
        }
    }

    /// Whether whoever meets its trap may put the text back: that is its hit, whoever it is, and for nobody else. Otherwise the trap stays until
    /// the control thread finds its hit taken.
    pub(crate) fn is_put_back(&self) -> bool {
        self.plan.once && self.plan.scope == Scope::Boot && self.consumer.is_none()
    }

    /// Whether that hit was.
    pub(crate) fn is_spent(&self) -> bool {
        self.spent.load(Ordering::Relaxed)
    }

    /// Whether this hit counts: false for all but the first of a one-shot probe, and when it is broken.
    pub(crate) fn takes_hit(&self) -> bool {
        let was_spent = || self.plan.once && self.spent.swap(true, Ordering::Relaxed);
        !self.is_broken() && !was_spent()
    }

    /// Whether a handler of it panicked.
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Whether it was unregistered.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether something is done after the instruction.
    pub(crate) fn has_post(&self) -> bool {
        matches!(&self.kind, Kind::Instruction(InstructionHandlers { post: Some(_), .. }))
    }

    /// What a detour has to do for it.
    ///
    /// # Errors
    /// Why none can: it has to stand on a trap.
    pub fn detour(&self) -> Result<Work, NoDetour> {
        match &self.kind {
            Kind::Instruction(InstructionHandlers { pre: None, post: None, fault: None })
            | Kind::Return(ReturnHandlers { entry: None, handler: None, .. }, _)
            | Kind::Watch(_) => Ok(Work::of(self.id.0, &self.plan)?.of_consumer(self.consumer)),
            Kind::Instruction(_) | Kind::Return(..) => Err(NoDetour::Handler),
        }
    }

    /// Counts a pass that is not in its scope.
    pub(crate) fn pass_outside(&self) {
        self.outside.fetch_add(1, Ordering::Relaxed);
    }

    /// How many were not, at traps.
    pub(crate) fn outside(&self) -> u64 {
        self.outside.load(Ordering::Relaxed)
    }

    /// The instances of a return probe.
    pub(crate) fn pool(&self) -> Option<&Pool<Data>> {
        match &self.kind {
            Kind::Return(_, pool) => Some(pool),
            Kind::Instruction(_) | Kind::Watch(_) => None,
        }
    }

    /// What a watch knows of its memory.
    pub(crate) fn watching(&self) -> Option<&Watching> {
        match &self.kind {
            Kind::Watch(watching) => Some(watching),
            Kind::Instruction(_) | Kind::Return(..) => None,
        }
    }

    pub(crate) fn miss(&self, miss: Miss) {
        // Several vCPUs may write, and none of them often.
        if let Some(count) = self.misses.get(miss as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn missed(&self, miss: Miss) -> u64 {
        self.misses.get(miss as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Calls a handler. One that panics breaks its probe, and nothing that it wanted is done.
    pub(crate) fn call<T>(&self, hit: &mut Hit<'_>, handler: impl FnOnce(&mut Hit<'_>) -> T) -> Option<T> {
        if self.is_broken() {
            return None;
        }
        let (regs, requests) = (hit.regs, hit.requests.len());
        match catch_unwind(AssertUnwindSafe(|| handler(hit))) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.broken.store(true, Ordering::Relaxed);
                hit.regs = regs;
                hit.requests.truncate(requests);
                let words = panic
                    .downcast_ref::<String>()
                    .map(String::as_str)
                    .or_else(|| panic.downcast_ref::<&str>().copied())
                    .unwrap_or("no message");
                hit.requests.push(HandlerRequest::Broken(self.told_as, words.to_owned()));
                None
            }
        }
    }

    /// Where the guest is redirected to by the pre handler; RIP is unchanged where it is not.
    pub(crate) fn pre(&self, hit: &mut Hit<'_>) {
        if let Kind::Instruction(InstructionHandlers { pre: Some(pre), .. }) = &self.kind {
            self.call(hit, |hit| pre(hit));
        }
    }

    pub(crate) fn post(&self, hit: &mut Hit<'_>) {
        if let Kind::Instruction(InstructionHandlers { post: Some(post), .. }) = &self.kind {
            self.call(hit, |hit| post(hit));
        }
    }

    pub(crate) fn fault(&self, hit: &mut Hit<'_>, fault: &super::Fault) {
        if let Kind::Instruction(InstructionHandlers { fault: Some(handler), .. }) = &self.kind {
            self.call(hit, |hit| handler(hit, fault));
        }
    }
}
