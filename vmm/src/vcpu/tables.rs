//! What vCPUs go by between two stops, and for what they stop by themselves.

use crate::clock::Clock;
use crate::errands::Errands;
use crate::gate::Gates;
use crate::kernel_view::KernelView;
use crate::kvm::{Breakpoints, Shared};
use crate::memory::GuestRam;
use crate::probe::{Active, Command, HitContext};
use crate::stack::{Callers, FRAMES, Stack, Walked};
use crate::trap::Int3Handlers;
use crate::world;
use probe_engine::addr::Gva;
use probe_engine::detour::behind::behind;
use probe_engine::detour::instances::Instances;
use probe_engine::detour::layout::TRAMPOLINE;
use probe_engine::detour::stub::LEAVE;
use probe_engine::gate;
use probe_engine::paging::{AddressSpace, Spaces, window};
use probe_engine::probe::table::{Anchor, Internal, ProbeId, ProbeSet, Site, StepMethod};
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;
use std::ops::Range;
use std::sync::Arc;

/// Where the vCPUs of a guest meet the control thread.
pub type World = world::World<VcpuTables, Cause>;
/// A vCPU of it stopped by itself.
pub type VcpuRequest = world::VcpuRequest<Cause>;
/// What a vCPU of it does after it stood still.
pub(super) type AfterStop = world::AfterStop<VcpuTables>;

/// What the vCPUs go by between two stops.
#[derive(Clone, Default)]
pub struct VcpuTables {
    /// The armed sites.
    pub sites: ProbeSet<Arc<Active>>,
    /// The return probes that follow calls.
    pub returns: Vec<Arc<Active>>,
    /// The first return trampoline, with which all code begins that the guest does not know.
    pub trampolines: Gva,
    /// Where the data window begins.
    pub window: Gva,
    /// `fault_in_readable(address, size)`, where it was linked.
    pub fault_in: Option<Gva>,
    /// The calls that detours follow, once they may.
    pub detoured: Option<Detoured>,
    /// What is known of the guest's kernel.
    pub kernel: KernelView,
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
    /// Where tasks are held.
    pub gates: Gates,
    /// What the guest is to call for us.
    pub errands: Arc<Errands>,
    /// The vCPU that is to execute one instruction, while all others stand still.
    pub stepping: Option<usize>,
}

/// What a vCPU stopped at.
pub enum Cause {
    /// A hardware breakpoint of ours.
    Breakpoint,
    /// An internal site.
    Internal(Internal),
    /// A task is back at an internal site, where it was to make calls.
    Called,
    /// A probed instruction that accesses a device: it has to run from a copy.
    Device,
    /// What a handler wants to have done before the vCPU goes on.
    Commands(Vec<Command>),
    /// A probe at which the guest is to stand still, before its instruction, or behind the access that it watches.
    Stop(ProbeId),
    /// The one instruction is executed that the vCPU was to execute.
    Stepped,
}

/// Calls that detours follow.
#[derive(Clone)]
pub struct Detoured {
    /// Their instances.
    pub instances: Instances,
    /// Their trampolines.
    pub trampolines: Range<Gva>,
}

impl VcpuTables {
    /// The stack at `regs`, of the task at `task` (its `task_struct`) where that is known.
    pub(crate) fn stack(
        &self,
        memory: &VirtMemory<'_, GuestRam>,
        regs: &Regs,
        task: Option<Gva>,
    ) -> Option<Stack> {
        Stack::of_walk(Walked { view: &self.kernel, callers: self, memory, regs, task }, FRAMES)
    }

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

    /// What all probes share of a hit: the vCPU that took it, with its memory and its per-CPU area, and when it did, in ticks of
    /// a clock.
    pub(super) fn context<'a>(
        &'a self,
        memory: &'a VirtMemory<'a, GuestRam>,
        vcpu: usize,
        (ticks, clock): (u64, &'a Clock),
        area: Option<Gva>,
    ) -> HitContext<'a> {
        let (kernel, errands) = (&self.kernel, &*self.errands);
        HitContext { memory, vcpu, ticks, clock, kernel, callers: self, errands, area }
    }

    /// The page tables of a vCPU at an exit, of which `system` is.
    pub fn spaces<'a>(&self, user: &'a dyn Fn() -> AddressSpace) -> Spaces<'a> {
        match self.kernel_space {
            Some(kernel) => Spaces::Halves { kernel, user },
            None => Spaces::One(user()),
        }
    }

    /// Whether code is there that the guest does not know: trampolines, copies, detours, and where tasks are held.
    pub(super) fn is_own(&self, at: Gva) -> bool {
        self.trampolines != Gva(0) && at.is_in(&(self.trampolines..self.trampolines.add(window::CODE)))
    }

    /// What `at` stands for, if it is in a copy.
    pub(crate) fn shown(&self, at: Gva) -> Gva {
        self.sites.original(at).unwrap_or(at)
    }

    /// The registers with which a task goes on that is at `regs`: where it is held at a gate, those behind that.
    pub(crate) fn behind_gates(&self, regs: Regs, memory: &VirtMemory<'_, GuestRam>) -> Regs {
        let behind = |regs: &Regs| {
            let mut codes = self.gates.0.values().flat_map(|gate| gate.codes());
            codes.find_map(|code| code.form.past(regs, code.entry, memory).ok().flatten())
        };
        gate::behind_all(regs, behind)
    }

    /// The registers with which a CPU goes on that is at `regs`: where it is in a detour, those behind that.
    pub(crate) fn behind_detours(&self, regs: Regs, memory: &VirtMemory<'_, GuestRam>) -> Regs {
        self.behind(&regs, memory).unwrap_or(regs)
    }

    /// Whether a CPU that is at `at` is in code of ours which stands for no instruction of the guest's.
    pub(crate) fn is_amid_own(&self, at: Gva) -> bool {
        self.is_own(at) && self.sites.original(at).is_none()
    }

    /// Whether a call returns there that is followed, by a trap or by a detour.
    pub(super) fn is_trampoline(&self, at: Gva) -> bool {
        let is_detours = |detoured: &Detoured| at.is_in(&detoured.trampolines);
        self.sites.is_trampoline(at) || self.detoured.as_ref().is_some_and(is_detours)
    }

    /// Puts back what return addresses are in the guest's own words, among `bytes` of its memory that lie at `at`.
    pub(crate) fn hide_trampolines(&self, at: Gva, bytes: &mut [u8], ram: &GuestRam) {
        let first = (at.0.wrapping_neg() % 8) as usize;
        let (words, _) = bytes.get_mut(first..).unwrap_or_default().as_chunks_mut::<8>();
        for word in words {
            let back = Gva(u64::from_le_bytes(*word));
            if self.is_own(back) && self.is_trampoline(back) {
                *word = self.caller(back, ram).0.to_le_bytes();
            }
        }
    }

    /// Where a call that returns to `back` really returns to, behind the trampolines of other return probes.
    pub(super) fn caller(&self, back: Gva, ram: &GuestRam) -> Gva {
        /// So many probes on one function show their caller.
        const MOST: usize = 64;
        let mut at = back;
        for _ in 0..MOST {
            let by_detour = |Detoured { instances, trampolines }: &Detoured| {
                let offset = at.offset_from(trampolines.start).filter(|_| at.is_in(trampolines))?;
                instances.caller(ram, offset / TRAMPOLINE)
            };
            let by_trap = || self.sites.owner(at).and_then(|(number, owner)| owner.pool()?.back(number));
            match self.detoured.as_ref().and_then(by_detour).or_else(by_trap) {
                Some(next) => at = next,
                None => break,
            }
        }
        at
    }
}

impl Callers for VcpuTables {
    fn real(&self, at: Gva, ram: &GuestRam) -> Option<Gva> {
        if !self.is_own(at) {
            return None;
        }
        if self.is_trampoline(at) {
            return Some(self.caller(at, ram));
        }
        self.sites.original(at)
    }

    fn behind(&self, regs: &Regs, memory: &VirtMemory<'_, GuestRam>) -> Option<Regs> {
        if !self.is_own(Gva(regs.rip)) {
            return None;
        }
        let own = |at| self.is_own(at).then(|| instruction(at, memory).unwrap_or_default());
        let original = |at| self.sites.copied_from(at).or_else(|| self.real(at, memory.phys));
        let trampolines = self.detoured.as_ref().map_or(Gva(0), |detoured| detoured.trampolines.end);
        behind(regs, memory, own, &(trampolines..trampolines.add(LEAVE as u64)), original)
    }
}

/// The bytes of the instruction at `at`, and what is behind, as far as that is in its page.
fn instruction(at: Gva, memory: &VirtMemory<'_, GuestRam>) -> Option<Vec<u8>> {
    /// The longest instruction has 15 bytes, the smallest page 4096.
    const LONGEST: u64 = 15;
    let length = LONGEST.min(4096 - at.0 % 4096);
    let mut bytes = vec![0; LONGEST as usize];
    if memory.read(at, &mut bytes).is_err() {
        bytes.truncate(length as usize);
        memory.read(at, &mut bytes).ok()?;
    }
    Some(bytes)
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
