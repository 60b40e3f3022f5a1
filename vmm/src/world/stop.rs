//! The stop itself: which vCPUs run, and the proof that none does.

use probe_engine::addr::Gva;
use probe_engine::paging::AddressSpace;
use probe_engine::regs::Regs;
use probe_engine::system_regs::SystemRegs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq)]
enum VcpuState {
    Running,
    Parked,
    /// Parked as well, for whoever reads the events.
    Waits,
    /// Waits for the answer to its request.
    Held,
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Parking,
    Ending,
}

struct State {
    phase: Phase,
    vcpus: Vec<VcpuState>,
    positions: Vec<VcpuPosition>,
    /// Whether nobody runs between two stops either.
    is_frozen: bool,
    /// The vCPU that does so all the same.
    alone: Option<usize>,
    /// Whether a stop is under way.
    is_stop: bool,
    /// The registers with which vCPUs go on, where they are not those with which they have stopped.
    changed: Vec<Option<Regs>>,
}

/// Where a vCPU stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VcpuPosition {
    /// Where it goes on (GVA).
    pub rip: Gva,
    /// Whether it waits for what no interrupt brings: it is halted with interrupts off, or was never started.
    pub is_halted: bool,
    /// Its registers, where it is between two instructions of the guest.
    pub at: Option<(Regs, SystemRegs)>,
}

impl VcpuPosition {
    /// Its address space, where that is known.
    #[must_use]
    pub fn space(&self) -> Option<AddressSpace> {
        self.at.map(|(_, system)| system.space())
    }
}

/// How a vCPU goes on after it stood still.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Resumed {
    Running,
    Ending,
}

/// Which vCPUs run, and whether they may.
pub(super) struct StopState {
    attention: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// How many stops there have been, of all worlds.
static STOPS: AtomicU64 = AtomicU64::new(0);

impl StopState {
    /// So many vCPUs, all of them running.
    pub(super) fn new(cpus: usize) -> Self {
        let state = State {
            phase: Phase::Running,
            vcpus: vec![VcpuState::Running; cpus],
            positions: vec![VcpuPosition::default(); cpus],
            is_frozen: false,
            alone: None,
            is_stop: false,
            changed: vec![None; cpus],
        };
        Self { attention: AtomicBool::new(false), state: Mutex::new(state), changed: Condvar::new() }
    }

    // What vCPU threads call.

    pub(super) fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// See [`World::rest`](super::World::rest).
    pub(super) fn rest(&self, id: usize, position: VcpuPosition) -> Resumed {
        let mut state = self.lock();
        state.is_at(id, position);
        state.becomes(id, VcpuState::Parked);
        self.stand(state, id)
    }

    /// Holds vCPU `id` until it is [released](Parked::release). `announce` says that it is held: nobody releases it before.
    pub(super) fn hold(&self, id: usize, position: VcpuPosition, announce: impl FnOnce()) -> Resumed {
        let mut state = self.lock();
        state.is_at(id, position);
        state.becomes(id, VcpuState::Held);
        announce();
        self.stand(state, id)
    }

    /// See [`World::pause`](super::World::pause), and for one that `waits` [`World::wait`](super::World::wait).
    pub(super) fn pause(&self, id: usize, position: VcpuPosition, time: Duration, waits: bool) -> Resumed {
        let mut state = self.lock();
        state.is_at(id, position);
        state.becomes(id, if waits { VcpuState::Waits } else { VcpuState::Parked });
        self.changed.notify_all();
        // What began before the pause is not announced again. Others who begin theirs do not end it.
        let waited = self.changed.wait_timeout_while(state, time, |state| state.phase == Phase::Running);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.becomes(id, VcpuState::Parked);
        self.stand(state, id)
    }

    /// Says that the thread of vCPU `id` is about to end.
    pub(super) fn ended(&self, id: usize) {
        self.lock().becomes(id, VcpuState::Ended);
        self.changed.notify_all();
    }

    /// Stands still until vCPU `id` may go on.
    fn stand(&self, mut state: MutexGuard<'_, State>, id: usize) -> Resumed {
        self.changed.notify_all();
        loop {
            match state.phase {
                Phase::Ending => return Resumed::Ending,
                phase
                    if state.vcpus.get(id) != Some(&VcpuState::Held)
                        && (phase == Phase::Running || state.runs_alone(id)) =>
                {
                    state.becomes(id, VcpuState::Running);
                    return Resumed::Running;
                }
                Phase::Running | Phase::Parking => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    // What the control thread calls.

    /// See [`World::park`](super::World::park).
    pub(super) fn park(&self, kick: impl Fn(usize)) -> Parked<'_> {
        self.lock().is_stop = true;
        let state = self.gather(Phase::Parking, &kick, |s| s == VcpuState::Running);
        drop(state);
        Parked { stops: self, stop: STOPS.fetch_add(1, Ordering::Relaxed) }
    }

    pub(super) fn has_waiting(&self) -> bool {
        self.lock().vcpus.contains(&VcpuState::Waits)
    }

    /// See [`World::freeze`](super::World::freeze).
    pub(super) fn freeze(&self, kick: impl Fn(usize)) {
        self.park(kick).freeze();
    }

    /// See [`World::begin_frozen`](super::World::begin_frozen).
    pub(super) fn begin_frozen(&self) {
        let mut state = self.lock();
        (state.phase, state.is_frozen) = (Phase::Parking, true);
        self.attention.store(true, Ordering::Release);
    }

    pub(super) fn thaw(&self) {
        let mut state = self.lock();
        (state.is_frozen, state.alone) = (false, None);
        self.go_on(state);
    }

    /// The registers with which vCPU `id` goes on, where they are others than those with which it has stopped.
    pub(super) fn take_regs(&self, id: usize) -> Option<Regs> {
        self.lock().changed.get_mut(id)?.take()
    }

    fn go_on(&self, mut state: MutexGuard<'_, State>) {
        state.is_stop = false;
        if state.phase == Phase::Parking && !state.is_frozen {
            state.phase = Phase::Running;
            self.attention.store(false, Ordering::Release);
        }
        self.changed.notify_all();
    }

    /// See [`World::end`](super::World::end).
    pub(super) fn end(&self, kick: impl Fn(usize)) {
        drop(self.gather(Phase::Ending, &kick, |s| s != VcpuState::Ended));
    }

    /// Enters `phase` and kicks every vCPU that is `outstanding` until none is.
    fn gather(
        &self,
        phase: Phase,
        kick: &impl Fn(usize),
        outstanding: impl Fn(VcpuState) -> bool,
    ) -> MutexGuard<'_, State> {
        /// How long a kicked vCPU may take before it is kicked again.
        const AGAIN: Duration = Duration::from_millis(1);
        let mut state = self.lock();
        // Who has been told to end never runs again.
        if state.phase != Phase::Ending {
            state.phase = phase;
        }
        self.attention.store(true, Ordering::Release);
        self.changed.notify_all();
        loop {
            let waiting: Vec<usize> =
                (0..).zip(&state.vcpus).filter(|(_, s)| outstanding(**s)).map(|(id, _)| id).collect();
            if waiting.is_empty() {
                return state;
            }
            waiting.into_iter().for_each(kick);
            (state, _) = self.changed.wait_timeout(state, AGAIN).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether vCPU `id` runs while all others stand still.
    fn runs_alone(&self, id: usize) -> bool {
        self.phase == Phase::Parking && self.is_frozen && self.alone == Some(id) && !self.is_stop
    }

    fn is_at(&mut self, id: usize, position: VcpuPosition) {
        if let Some(at) = self.positions.get_mut(id) {
            *at = position;
        }
    }

    fn becomes(&mut self, id: usize, state: VcpuState) {
        if let Some(vcpu) = self.vcpus.get_mut(id) {
            *vcpu = state;
        }
    }
}

/// Proof that no vCPU runs. The world goes on when it is dropped, unless it [ends](Self::end) or is
/// [frozen](super::World::freeze).
pub struct Parked<'a> {
    stops: &'a StopState,
    stop: u64,
}

impl Parked<'_> {
    /// The number of this stop, which no other one has.
    #[must_use]
    pub fn stop(&self) -> u64 {
        self.stop
    }

    /// Where each vCPU stands.
    #[must_use]
    pub fn positions(&self) -> Vec<VcpuPosition> {
        self.stops.lock().positions.clone()
    }

    /// Where each vCPU goes on (GVA).
    #[must_use]
    pub fn rips(&self) -> Vec<Gva> {
        self.stops.lock().positions.iter().map(|position| position.rip).collect()
    }

    /// Makes every vCPU thread end instead of going on.
    pub fn end(&self) {
        self.stops.lock().phase = Phase::Ending;
    }

    /// Nobody runs either when this stop is over, until the world [thaws](Self::thaw).
    pub fn freeze(&self) {
        let mut state = self.stops.lock();
        (state.is_frozen, state.alone) = (true, None);
    }

    /// When this stop is over, vCPU `id` alone goes on, in a world that is [frozen](Self::freeze).
    pub fn let_alone(&self, id: usize) {
        self.stops.lock().alone = Some(id);
    }

    /// The world goes on when this stop is over.
    pub fn thaw(&self) {
        let mut state = self.stops.lock();
        (state.is_frozen, state.alone) = (false, None);
    }

    /// vCPU `id` goes on with these registers.
    pub fn set_regs(&self, id: usize, regs: Regs) {
        let mut state = self.stops.lock();
        if let Some((at, changed)) = state.positions.get(id).copied().zip(state.changed.get_mut(id)) {
            *changed = Some(regs);
            let at = VcpuPosition { rip: Gva(regs.rip), at: at.at.map(|(_, system)| (regs, system)), ..at };
            state.is_at(id, at);
        }
    }

    /// Lets the held vCPU `id` go on when the stop is over.
    pub fn release(&self, id: usize) {
        self.stops.lock().becomes(id, VcpuState::Parked);
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.stops.go_on(self.stops.lock());
    }
}
