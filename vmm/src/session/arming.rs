//! When what is armed: the boot's phases, the guest's hooks, and what is wanted in its text at this moment.

mod wanted;

use super::detours::Detours;
use super::hooks::GuestHooks;
use super::patches::{Hidden, Patches};
use super::reasons::NoSpace;
use super::registry::Registry;
use super::sites::Sites;
use super::stage::BootPhase;
use super::stop::{Stop, StoppedGuest};
use super::text::GuestText;
use super::watches;
use crate::probe::Active;
use crate::reserved::{Reserved, TRAMPOLINES};
use crate::vcpu::VcpuTables;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::errand::{CODE, Code};
use probe_engine::linux::branches::{Branches, UnknownReturn};
use probe_engine::linux::errands::ErrandLayout;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::running::RunningKernel;
use probe_engine::probe::table::ProbeSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// What is armed in a guest.
pub(super) struct Arming {
    kernel: Landmarks,
    phase: BootPhase,
    running: Option<RunningKernel>,
    patches: Patches,
    reserved: Result<Reserved, NoSpace>,
    pub(super) sites: Sites,
    pub(super) hooks: GuestHooks,
}

impl Arming {
    /// The bytes of ours in the text, by where they are in guest-physical memory.
    pub(super) fn hidden(&self) -> BTreeMap<Gpa, Hidden> {
        self.patches.in_memory()
    }

    /// Those of them that are in `memory`.
    pub(super) fn hidden_in(&self, memory: &Range<Gpa>) -> BTreeMap<Gpa, Hidden> {
        self.patches.within(memory)
    }

    /// Nothing is armed yet, and the kernel tells by `hooks` what it does.
    pub(super) fn new(kernel: Landmarks, hooks: GuestHooks, detours: Detours) -> Self {
        Self {
            hooks,
            sites: Sites::new(&kernel, detours),
            kernel,
            phase: BootPhase::Unknown,
            running: None,
            patches: Patches::default(),
            reserved: Err(NoSpace::NotStarted),
        }
    }

    /// The kernel has come to `phase`, and is `running` there.
    pub(super) fn advance(&mut self, phase: BootPhase, running: RunningKernel, stop: &Stop<'_>) {
        self.phase = phase;
        self.running = Some(running);
        self.patches.forget_pages();
        if self.reserved.is_err() && phase > BootPhase::Start {
            let text = running.map.gva(self.kernel.text)..running.map.gva(self.kernel.text_end);
            let reserved = Reserved::map(stop.parked, stop.ram, running.space, &text);
            self.reserved = reserved.map_err(NoSpace::from);
            if let Ok(reserved) = &self.reserved {
                self.sites.detours.advance(&self.kernel, reserved, running.map.slide());
            }
        }
        let branches = self.branches(&running, stop);
        if let Ok(reserved) = &self.reserved {
            self.sites.detours.branch(branches, reserved, stop.ram);
        }
    }

    /// How the guest branches, and the instructions that it goes through for that. While it boots that is not known, and no
    /// process runs that could profit.
    fn branches(
        &self,
        running: &RunningKernel,
        stop: &Stop<'_>,
    ) -> Result<(Branches, BTreeSet<Gva>), UnknownReturn> {
        if self.phase < BootPhase::Late {
            return Ok(<_>::default());
        }
        let text = GuestText { ram: stop.ram, running, patches: &self.patches };
        let branches = self.kernel.branches.branches(running.map.slide(), |at| text.first(at))?;
        let thunks = branches.instructions(|at| text.first(at))?;
        Ok((branches, thunks))
    }

    /// Whether the text is known, so that probes can be armed.
    pub(super) fn is_ready(&self) -> bool {
        self.phase == BootPhase::Late
    }

    /// The running kernel.
    pub(super) fn running(&self) -> Option<&RunningKernel> {
        self.running.as_ref()
    }

    /// Where the data window begins (GVA), once the guest has it.
    pub(super) fn data_window(&self) -> Option<Gva> {
        self.reserved.as_ref().ok().map(|reserved| reserved.data().start)
    }

    /// Makes the traps in the text those that are wanted, and tells each probe's state.
    pub(super) fn reconcile(&mut self, registry: &mut Registry, stop: &Stop<'_>, tables: &mut VcpuTables) {
        let Some(running) = self.running else { return };
        self.patches.forget_pages();
        let slide = running.map.slide();
        tables.kernel.current = self.kernel.current.map(|current| current.slid(slide));
        tables.kernel.preemption = self.kernel.preemption.map(|preemption| preemption.slid(slide));
        tables.kernel.task = self.kernel.task.map(|task| task.slid(slide));
        (tables.kernel.mappings, tables.kernel.uretprobes) = (self.kernel.mappings, self.kernel.uretprobes);
        (tables.kernel.is_found, tables.kernel.slide) = (true, slide);
        let text = GuestText { ram: stop.ram, running: &running, patches: &self.patches };
        let wanted = self.wanted(registry, &text);
        if let Some((sites, mut guest)) = self.stopped(stop, &mut tables.sites) {
            sites.settle(wanted, registry, &mut guest);
        }
        self.follow_returns(registry, tables);
        if self.phase == BootPhase::Late {
            watches::set(registry, &running, stop.ram, tables);
            tables.settle(running.space);
        }
        registry.note_standing();
    }

    /// The sites, and the guest in this stop with all that changing them takes, once its kernel runs.
    fn stopped<'a>(
        &'a mut self,
        stop: &Stop<'a>,
        table: &'a mut ProbeSet<Arc<Active>>,
    ) -> Option<(&'a mut Sites, StoppedGuest<'a>)> {
        let Self { running, patches, reserved, sites, .. } = self;
        let running = (*running)?;
        Some((sites, StoppedGuest { stop: *stop, running, patches, reserved, table }))
    }

    /// Puts the code there by which the guest makes calls for us. Returns where it is, where the data window is, and by how much
    /// the kernel was moved; or why not.
    pub(super) fn place_call_gate(
        &mut self,
        layout: Option<&ErrandLayout>,
        stop: &Stop<'_>,
        tables: &mut VcpuTables,
    ) -> Result<(Code, Gva, u64), NoSpace> {
        let (sites, mut guest) = self.stopped(stop, &mut tables.sites).ok_or(NoSpace::NotStarted)?;
        let slide = guest.running.map.slide();
        let slots = guest.allocate(CODE, sites.detours.instances())?;
        let reserved = guest.reserved()?;
        let (code, data) = (Code(reserved.address(slots)), reserved.data().start);
        // The window is near the text.
        let bytes = code.bytes(layout, slide).ok_or(NoSpace::Full)?;
        reserved.write(stop.ram, slots, &bytes)?;
        guest.table.add_call_gate(code.trap());
        Ok((code, data, slide))
    }

    /// Forgets what stood at `lost`: the text that it was in is no more.
    pub(super) fn forget(&mut self, lost: &[Gva], stop: &Stop<'_>, tables: &mut VcpuTables) {
        if let Some((sites, mut guest)) = self.stopped(stop, &mut tables.sites) {
            sites.forget(lost, &mut guest);
        }
    }

    /// Takes out what of ours stands in this memory, which is about to change. What is wanted there is put in anew, as the text is
    /// then, when that is [reconciled](Self::reconcile).
    pub(super) fn lift_over(
        &mut self,
        memory: Range<Gpa>,
        registry: &mut Registry,
        stop: &Stop<'_>,
        tables: &mut VcpuTables,
    ) {
        let ours = self.patches.at(memory);
        if let Some((sites, mut guest)) = self.stopped(stop, &mut tables.sites).filter(|_| !ours.is_empty()) {
            sites.lift(&ours, registry, &mut guest);
        }
    }

    /// Tells the vCPUs whose return trampolines are whose.
    fn follow_returns(&self, registry: &mut Registry, tables: &mut VcpuTables) {
        registry.release_trampolines();
        let Ok(reserved) = &self.reserved else { return };
        tables.trampolines = reserved.trampoline(0);
        tables.window = reserved.data().start;
        tables.detoured = self.sites.detours.calls(reserved);
        tables.sites.set_trampolines(reserved.trampoline(0)..reserved.trampoline(TRAMPOLINES));
        tables.sites.disown_all();
        tables.returns = registry.returns().cloned().collect();
        for active in &tables.returns {
            if let Some(pool) = active.pool() {
                tables.sites.own(pool.numbers(), active);
            }
        }
    }

    /// Restores all text at the end. A site that the guest has changed is left as it is, and reported.
    pub(super) fn disarm(&mut self, registry: &mut Registry, stop: &Stop<'_>) {
        if let Some((sites, mut guest)) = self.stopped(stop, &mut ProbeSet::default()) {
            sites.restore(registry, &mut guest);
        }
    }
}
