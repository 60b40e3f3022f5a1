//! Stopping the world: guest text and the table of sites change only while every vCPU is parked.
//!
//! The control thread raises `attention` and signals each running vCPU until it has stopped; a vCPU looks at
//! `attention` before each KVM_RUN. A signal that arrives between the look and KVM_RUN is lost, so the control
//! thread signals again until all have answered. A vCPU can also stop by itself with a [`VcpuRequest`] and is held
//! until the control thread has answered it. Nothing here is touched by a hit, except one load of `attention`.

use crate::code::GuestCode;
use crate::kvm::{Breakpoints, Shared};
use crate::probe::Active;
use crate::session::Command;
use probe_engine::addr::Gva;
use probe_engine::detour::instances::Instances;
use probe_engine::linux::current::CurrentTask;
use probe_engine::linux::task::TaskLayout;
use probe_engine::paging::{AddressSpace, Spaces};
use probe_engine::probe::table::{Anchor, Internal, ProbeSet, Site, StepMethod};
use probe_engine::regs::Regs;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use vmm_sys_util::eventfd::EventFd;

/// What the vCPUs go by between two stops.
#[derive(Clone, Default)]
pub struct VcpuTables {
    /// The armed sites.
    pub sites: ProbeSet<Arc<Active>>,
    /// The return probes that follow calls.
    pub returns: Vec<Arc<Active>>,
    /// The first return trampoline.
    pub trampolines: Gva,
    /// The calls that detours follow, once they may.
    pub detoured: Option<Detoured>,
    /// How the task of a vCPU is found.
    pub current: Option<CurrentTask>,
    /// How to read about it.
    pub task: Option<TaskLayout>,
    /// What KASLR added to the kernel's link-time addresses.
    pub slide: u64,
    /// What is known of the guest's code.
    pub code: GuestCode,
    /// The debug registers of every vCPU.
    pub breakpoints: Breakpoints,
    /// Whose they are, where they watch for a probe.
    pub watches: [Option<Arc<Active>>; 4],
    /// The guest's entries for vector 3, when breakpoints stand on them because #BP is not intercepted.
    pub int3_handlers: Int3Handlers,
    /// The kernel's own page tables, once it goes on with them.
    pub kernel_space: Option<AddressSpace>,
    /// What vCPUs see at an exit without a system call.
    pub shared: Shared,
}

impl VcpuTables {
    /// Whatever sites there are, from now on vCPUs see what these need: the kernel goes on with its page tables `kernel`.
    pub fn settle(&mut self, kernel: AddressSpace) {
        self.kernel_space = Some(kernel);
        self.shared = Shared {
            general: true,
            system: self.is_watching()
                || self.sites.iter().any(needs_system)
                || self.returns.iter().any(|probe| looks_far(probe)),
            events: self.is_watching() || self.sites.iter().any(needs_events),
        };
    }

    /// Whether debug registers may bring an exit from anywhere.
    fn is_watching(&self) -> bool {
        self.watches.iter().any(Option::is_some) || self.int3_handlers.iter().any(Option::is_some)
    }

    /// The page tables of a vCPU at an exit, of which `system` is.
    pub fn spaces<'a>(&self, user: &'a dyn Fn() -> AddressSpace) -> Spaces<'a> {
        match self.kernel_space {
            Some(kernel) => Spaces::Halves { kernel, user },
            None => Spaces::One(user()),
        }
    }
}

/// Whether system registers are of use at each hit there.
fn needs_system(site: &Site<Arc<Active>>) -> bool {
    let has_base = matches!(&site.step, StepMethod::Emulate(emulation) if emulation.has_base());
    has_base || site.probes.iter().any(|attached| looks_far(&attached.probe))
}

/// Whether a hit of this probe reads what may be memory of a process.
fn looks_far(probe: &Active) -> bool {
    probe.plan.stack().is_some() || probe.plan.capture.follows_pointers()
}

/// Whether a hit there leaves an interrupt shadow, or may find the one that another has left. No other site is in one:
/// [`Refusal::Shadow`](probe_engine::insn::plan::Refusal::Shadow).
fn needs_events(site: &Site<Arc<Active>>) -> bool {
    let opens = matches!(&site.step, StepMethod::Emulate(emulation) if emulation.opens_shadow());
    opens || site.probes.iter().any(|attached| attached.anchor != Anchor::Firm)
}

/// Entries of the guest for vector 3 (GVA): early in its boot it changes from one to another.
pub type Int3Handlers = [Option<Gva>; 2];

/// Calls that detours follow.
#[derive(Clone)]
pub struct Detoured {
    /// Their instances.
    pub instances: Instances,
    /// Their trampolines.
    pub trampolines: Range<Gva>,
}

/// A vCPU stopped by itself and waits for the control thread.
pub struct VcpuRequest {
    /// Who.
    pub vcpu: usize,
    /// At what.
    pub cause: Cause,
    /// Its general registers there; RIP is on the instruction that it stopped at.
    pub regs: Regs,
    /// Its address space there.
    pub space: AddressSpace,
    /// Where its interrupt descriptor table is.
    pub idt: Gva,
}

/// What a vCPU stopped at.
pub enum Cause {
    /// A hardware breakpoint of ours.
    Breakpoint,
    /// An internal site.
    Internal(Internal),
    /// A probed instruction that accesses a device: it has to run from a copy.
    Device,
    /// What a handler wants to have done before the vCPU goes on.
    Commands(Vec<Command>),
}

/// What a vCPU does after it stood still.
pub enum AfterStop {
    /// Goes on by these tables.
    Run(Arc<VcpuTables>),
    /// Ends its thread.
    End,
}

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
enum StopPhase {
    Running,
    Parking,
    Ending,
}

struct WorldState {
    phase: StopPhase,
    tables: Arc<VcpuTables>,
    vcpus: Vec<VcpuState>,
    stands: Vec<VcpuPosition>,
    requests: Vec<VcpuRequest>,
    /// Whether nobody runs between two stops either.
    is_frozen: bool,
}

/// Where a vCPU stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VcpuPosition {
    /// Where it goes on (GVA).
    pub rip: Gva,
    /// Whether it waits for what no interrupt brings: it is halted with interrupts off, or was never started.
    pub is_halted: bool,
    /// Its registers and its address space, where it is between two instructions of the guest.
    pub at: Option<(Regs, AddressSpace)>,
}

impl WorldState {
    fn stands_at(&mut self, id: usize, stand: VcpuPosition) {
        if let Some(at) = self.stands.get_mut(id) {
            *at = stand;
        }
    }
}

/// Where the control thread and the vCPU threads meet.
pub struct World {
    attention: AtomicBool,
    state: Mutex<WorldState>,
    changed: Condvar,
    /// Wakes the control thread when a request waits for it.
    wake_control: Arc<EventFd>,
}

impl World {
    /// A world of `cpus` running vCPUs.
    #[must_use]
    pub fn new(cpus: usize, tables: VcpuTables, wake_control: Arc<EventFd>) -> Self {
        let state = WorldState {
            phase: StopPhase::Running,
            tables: Arc::new(tables),
            vcpus: vec![VcpuState::Running; cpus],
            stands: vec![VcpuPosition::default(); cpus],
            requests: Vec::new(),
            is_frozen: false,
        };
        Self {
            attention: AtomicBool::new(false),
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake_control,
        }
    }

    /// The tables that vCPUs go by now.
    #[must_use]
    pub fn tables(&self) -> Arc<VcpuTables> {
        self.lock().tables.clone()
    }

    // What vCPU threads call.

    /// Whether the vCPU has to [`rest`](Self::rest) before it may run on.
    pub fn wants_attention(&self) -> bool {
        self.attention.load(Ordering::Acquire)
    }

    /// Parks vCPU `id`, which stands so, until the stop is over.
    pub fn rest(&self, id: usize, at: VcpuPosition) -> AfterStop {
        let mut state = self.lock();
        state.stands_at(id, at);
        self.stand(state, id, VcpuState::Parked)
    }

    /// Holds the vCPU of `request` until the control thread has answered.
    pub fn hold(&self, request: VcpuRequest) -> AfterStop {
        let mut state = self.lock();
        let vcpu = request.vcpu;
        state.stands_at(
            vcpu,
            VcpuPosition {
                rip: Gva(request.regs.rip),
                is_halted: false,
                at: Some((request.regs, request.space)),
            },
        );
        state.requests.push(request);
        // The control thread reads the queue after the wake-up, so a full counter loses nothing.
        let _ = self.wake_control.write(1);
        self.stand(state, vcpu, VcpuState::Held)
    }

    /// Counts vCPU `id`, which goes on at `rip`, as parked for at most `time`, because it waits for something other
    /// than a stop.
    pub fn pause(&self, id: usize, rip: Gva, time: Duration) -> AfterStop {
        self.stay(id, rip, time, VcpuState::Parked)
    }

    /// The same, because it [waits](Self::has_waiting) for whoever reads the events.
    pub fn wait(&self, id: usize, rip: Gva, time: Duration) -> AfterStop {
        self.stay(id, rip, time, VcpuState::Waits)
    }

    fn stay(&self, id: usize, rip: Gva, time: Duration, how: VcpuState) -> AfterStop {
        let mut state = self.lock();
        state.stands_at(id, VcpuPosition { rip, ..VcpuPosition::default() });
        if let Some(standing) = state.vcpus.get_mut(id) {
            *standing = how;
        }
        self.changed.notify_all();
        // What began before the pause is not announced again. Others who begin theirs do not end it.
        let waited = self.changed.wait_timeout_while(state, time, |state| state.phase == StopPhase::Running);
        (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        self.stand(state, id, VcpuState::Parked)
    }

    /// Says that the thread of vCPU `id` is about to end.
    pub fn ended(&self, id: usize) {
        if let Some(standing) = self.lock().vcpus.get_mut(id) {
            *standing = VcpuState::Ended;
        }
        self.changed.notify_all();
    }

    fn stand(&self, mut state: MutexGuard<'_, WorldState>, id: usize, how: VcpuState) -> AfterStop {
        if let Some(standing) = state.vcpus.get_mut(id) {
            *standing = how;
        }
        self.changed.notify_all();
        loop {
            let standing = state.vcpus.get(id).copied();
            match state.phase {
                StopPhase::Ending => return AfterStop::End,
                StopPhase::Running if standing != Some(VcpuState::Held) => {
                    if let Some(standing) = state.vcpus.get_mut(id) {
                        *standing = VcpuState::Running;
                    }
                    return AfterStop::Run(state.tables.clone());
                }
                StopPhase::Running | StopPhase::Parking => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    // What the control thread calls.

    /// The requests since the last call.
    pub fn take_requests(&self) -> Vec<VcpuRequest> {
        std::mem::take(&mut self.lock().requests)
    }

    /// Stops every vCPU. `kick(id)` interrupts that vCPU's KVM_RUN; it is repeated until the vCPU has answered.
    pub fn park(&self, kick: impl Fn(usize)) -> Parked<'_> {
        let state = self.gather(StopPhase::Parking, &kick, |s| s == VcpuState::Running);
        drop(state);
        Parked { world: self, stop: STOPS.fetch_add(1, Ordering::Relaxed) }
    }

    /// Whether a vCPU [waits](Self::wait) for whoever reads the events.
    pub fn has_waiting(&self) -> bool {
        self.lock().vcpus.contains(&VcpuState::Waits)
    }

    /// Stops every vCPU as [`park`](Self::park) does, until [`thaw`](Self::thaw): what is done in stops can be done
    /// meanwhile, and nobody runs between them.
    pub fn freeze(&self, kick: impl Fn(usize)) {
        self.lock().is_frozen = true;
        drop(self.park(kick));
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        let mut state = self.lock();
        state.is_frozen = false;
        self.go_on(state);
    }

    fn go_on(&self, mut state: MutexGuard<'_, WorldState>) {
        if state.phase == StopPhase::Parking && !state.is_frozen {
            state.phase = StopPhase::Running;
            self.attention.store(false, Ordering::Release);
        }
        self.changed.notify_all();
    }

    /// Makes every vCPU thread end, and returns when all have.
    pub fn end(&self, kick: impl Fn(usize)) {
        drop(self.gather(StopPhase::Ending, &kick, |s| s != VcpuState::Ended));
    }

    /// Enters `phase` and kicks every vCPU that is `outstanding` until none is.
    fn gather(
        &self,
        phase: StopPhase,
        kick: &impl Fn(usize),
        outstanding: impl Fn(VcpuState) -> bool,
    ) -> MutexGuard<'_, WorldState> {
        /// How long a kicked vCPU may take before it is kicked again.
        const AGAIN: Duration = Duration::from_millis(1);
        let mut state = self.lock();
        // Who has been told to end never runs again.
        if state.phase != StopPhase::Ending {
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

    fn lock(&self) -> MutexGuard<'_, WorldState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many stops there have been, of all worlds.
static STOPS: AtomicU64 = AtomicU64::new(0);

/// Proof that no vCPU runs. The world goes on when it is dropped, unless it [ends](Self::end) or is
/// [frozen](World::freeze).
pub struct Parked<'a> {
    world: &'a World,
    stop: u64,
}

impl Parked<'_> {
    /// Gives all vCPUs new tables.
    pub fn set_tables(&self, tables: VcpuTables) {
        self.world.lock().tables = Arc::new(tables);
    }

    /// The number of this stop, which no other one has.
    #[must_use]
    pub fn stop(&self) -> u64 {
        self.stop
    }

    /// Where each vCPU stands.
    #[must_use]
    pub fn stands(&self) -> Vec<VcpuPosition> {
        self.world.lock().stands.clone()
    }

    /// Where each vCPU goes on (GVA).
    #[must_use]
    pub fn rips(&self) -> Vec<Gva> {
        self.world.lock().stands.iter().map(|stand| stand.rip).collect()
    }

    /// Makes every vCPU thread end instead of going on.
    pub fn end(&self) {
        self.world.lock().phase = StopPhase::Ending;
    }

    /// Lets the held vCPU `id` go on when the stop is over.
    pub fn release(&self, id: usize) {
        if let Some(standing) = self.world.lock().vcpus.get_mut(id) {
            *standing = VcpuState::Parked;
        }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        self.world.go_on(self.world.lock());
    }
}

#[cfg(test)]
mod tests;
