//! Which trap stands where: what is wanted, compared with what is there.
//!
//! Everything that changes what is wanted (a probe is registered, disabled, moved; the guest frees text, loads a
//! module, or works on its own text) ends in one [`reconcile`](Arming::reconcile), in one stop of the world.

mod stale;
mod standing;
mod wanted;

use super::detours::{BehindNop, Detours, Tools};
use super::hooks::GuestHooks;
use super::reasons::{NoSpace, refusal};
use super::registry::Registry;
use super::report::ProbeState;
use super::stage::BootPhase;
use super::stop::Stop;
use super::text::{RunningKernel, Traps};
use super::watches;
use crate::probe::Active;
use crate::reserved::{Reserved, TRAMPOLINES};
use crate::vcpu::VcpuTables;
use probe_engine::addr::Gva;
use probe_engine::linux::branches::{Branches, UnknownReturn};
use probe_engine::linux::ftrace_site::FTRACE_SITE;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::probe::table::{Anchor, Attached, ProbeSet, Site};
use stale::Stale;
use standing::PlantedTrap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use wanted::Wanted;

/// The traps in the guest's text.
pub(super) struct Arming {
    kernel: Landmarks,
    phase: BootPhase,
    running: Option<RunningKernel>,
    traps: Traps,
    /// What stands, and how it is passed.
    standing: BTreeMap<Gva, PlantedTrap>,
    pub(super) detours: Detours,
    reserved: Result<Reserved, NoSpace>,
    stale: Stale,
    /// Instructions that were seen to access a device: the host cannot emulate them.
    device: BTreeSet<Gva>,
    pub(super) hooks: GuestHooks,
}

impl Arming {
    /// Nothing is armed yet. `all_modules`: also those are followed that have no probes.
    pub(super) fn new(kernel: Landmarks, all_modules: bool, detours: Detours) -> Self {
        Self {
            hooks: GuestHooks::new(&kernel, all_modules),
            kernel,
            phase: BootPhase::Unknown,
            running: None,
            traps: Traps::default(),
            standing: BTreeMap::new(),
            detours,
            stale: Stale::default(),
            device: BTreeSet::new(),
            reserved: Err(NoSpace::NotStarted),
        }
    }

    /// The kernel has come to `phase`, and is `running` there.
    pub(super) fn advance(&mut self, phase: BootPhase, running: RunningKernel, stop: &Stop<'_>) {
        self.phase = phase;
        self.running = Some(running);
        self.traps.forget_pages();
        if self.reserved.is_err() && phase > BootPhase::Start {
            let text = running.map.gva(self.kernel.text)..running.map.gva(self.kernel.text_end);
            let reserved = Reserved::map(stop.parked, stop.ram, running.space, &text);
            self.reserved = reserved.map_err(NoSpace::from);
            if let Ok(reserved) = &self.reserved {
                self.detours.advance(&self.kernel, reserved, running.map.slide());
            }
        }
        let branches = self.branches(&running, stop);
        if let Ok(reserved) = &self.reserved {
            self.detours.branch(branches, reserved, stop.ram);
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
        let branches =
            self.kernel.branches.branches(running.map.slide(), |at| self.text(running, stop, at))?;
        let thunks = branches.instructions(|at| self.text(running, stop, at))?;
        Ok((branches, thunks))
    }

    /// The first bytes of the guest's own text at `at`.
    fn text<const N: usize>(&self, running: &RunningKernel, stop: &Stop<'_>, at: Gva) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.traps.read(stop.ram, running, at, &mut bytes).ok().map(|()| bytes)
    }

    /// Whether the text is known, so that probes can be armed.
    pub(super) fn is_ready(&self) -> bool {
        self.phase == BootPhase::Late
    }

    /// The instruction at `at` accesses a device: from now on it runs from a copy.
    pub(super) fn run_from_copy(&mut self, at: Gva) {
        self.device.insert(at);
    }

    /// The running kernel.
    pub(super) fn running(&self) -> Option<&RunningKernel> {
        self.running.as_ref()
    }

    /// Makes the traps in the text those that are wanted, and tells each probe's state.
    pub(super) fn reconcile(&mut self, registry: &mut Registry, stop: &Stop<'_>, tables: &mut VcpuTables) {
        let Some(running) = self.running else { return };
        self.traps.forget_pages();
        let mut wanted = self.wanted(registry, &running, stop.ram);
        let slide = running.map.slide();
        tables.kernel.current = self.kernel.current.map(|current| current.slid(slide));
        tables.kernel.task = self.kernel.task.map(|task| task.slid(slide));
        tables.kernel.slide = slide;
        self.detours.look_at(wanted.keys());
        self.take_out(&wanted, registry, stop, &mut tables.sites);
        self.find_relocations(&mut wanted, registry, stop, &tables.sites);
        let places: BTreeSet<Gva> = wanted.keys().copied().collect();
        for (at, wanted) in &mut wanted {
            let probes = std::mem::take(&mut wanted.probes);
            wanted.function.next &= !places.contains(&at.add(FTRACE_SITE));
            if self.divert(*at, wanted, &probes, registry, stop, &mut tables.sites) {
                continue;
            }
            match self.put_in(*at, wanted, &probes, &running, stop, &mut tables.sites) {
                Ok(step) => tables.sites.insert(*at, Site { probes, internal: wanted.internal, step }),
                Err(reason) => {
                    tables.sites.remove(*at);
                    refuse(registry, &probes, &reason.to_string());
                }
            }
        }
        self.stale.forget(&mut tables.sites, stop);
        self.detours.done();
        self.follow_returns(registry, tables);
        if self.phase == BootPhase::Late {
            watches::set(registry, &running, stop.ram, tables);
            tables.settle(running.space);
        }
        registry.note_standing();
    }

    /// Finds out where several instructions can make room for a jump, and refuses what can only stand on one and
    /// cannot.
    fn find_relocations(
        &mut self,
        wanted: &mut BTreeMap<Gva, Wanted>,
        registry: &mut Registry,
        stop: &Stop<'_>,
        set: &ProbeSet<Arc<Active>>,
    ) {
        let (Some(running), Ok(reserved)) = (&self.running, &self.reserved) else { return };
        let detours = &mut self.detours;
        detours.relocations.retain(|at| wanted.contains_key(&at));
        let mut new = Vec::new();
        wanted.retain(|at, wanted| {
            if wanted.is_early
                || detours.stands(*at)
                || !detours.wants_relocation(wanted.internal, &wanted.probes)
            {
                return true;
            }
            let is_required = detours.is_required();
            match detours.relocations.verdict(*at, &wanted.function, &self.traps, running, stop) {
                Err(reason) if is_required => {
                    refuse(registry, &wanted.probes, &refusal(reason));
                    return false;
                }
                Err(_) => {}
                Ok(()) => new.push(*at),
            }
            true
        });
        detours.relocations.look(&new, |range| is_taken(wanted, range), reserved, set, stop);
    }

    /// Whether it is time to do what could not be done before, or had not to be.
    pub(super) fn is_due(&self) -> bool {
        self.detours.is_due()
    }

    /// Takes out what is not wanted any more.
    fn take_out(
        &mut self,
        wanted: &BTreeMap<Gva, Wanted>,
        registry: &mut Registry,
        stop: &Stop<'_>,
        set: &mut ProbeSet<Arc<Active>>,
    ) {
        let goes: Vec<Gva> = self.standing.keys().copied().filter(|at| !wanted.contains_key(at)).collect();
        let moved: BTreeSet<Gva> =
            wanted.values().flat_map(|wanted| &wanted.probes).filter_map(behind).collect();
        let is_wanted = |range: &Range<Gva>| {
            wanted.contains_key(&range.start) && !is_taken(wanted, &(range.start.add(1)..range.end))
        };
        for at in self.detours.unwanted(is_wanted) {
            let mut tools = Tools { traps: &mut self.traps, reserved: &mut self.reserved, set, stop };
            if !self.detours.take_down(at, moved.contains(&at), &mut tools) {
                registry.overwritten(at);
            }
        }
        for at in goes {
            set.remove(at);
            self.device.remove(&at);
            if !self.take_down(at, stop) {
                registry.overwritten(at);
            }
        }
    }

    /// Has `probes` served by a detour at `at`, if they can be. Otherwise none stands there afterwards.
    fn divert(
        &mut self,
        at: Gva,
        wanted: &Wanted,
        probes: &[Attached<Arc<Active>>],
        registry: &mut Registry,
        stop: &Stop<'_>,
        set: &mut ProbeSet<Arc<Active>>,
    ) -> bool {
        let Some(running) = self.running.filter(|_| !wanted.is_early) else { return false };
        let works = self.detours.works(at, wanted.internal, probes, registry);
        if works.is_some() && self.standing.contains_key(&at) {
            set.remove(at);
            self.take_down(at, stop);
        }
        let mut tools = Tools { traps: &mut self.traps, reserved: &mut self.reserved, set, stop };
        let late = self.phase == BootPhase::Late;
        let next = wanted.function.next.then_some(BehindNop { late });
        match works.map(|works| self.detours.divert(at, works, probes, next, &running, &mut tools)) {
            Some(Ok(())) => {
                probes.iter().for_each(|p| registry.set_state(p.probe.id, ProbeState::Optimized(at)));
                return true;
            }
            Some(Err(reason)) => {
                probes.iter().for_each(|p| registry.stays_trapped(p.probe.id, reason.clone()));
            }
            None => {}
        }
        // What the guest has written there is found when the trap is planted.
        self.detours.take_down(at, false, &mut tools);
        false
    }

    /// Tells the vCPUs whose return trampolines are whose.
    fn follow_returns(&self, registry: &mut Registry, tables: &mut VcpuTables) {
        registry.release_trampolines();
        let Ok(reserved) = &self.reserved else { return };
        tables.trampolines = reserved.trampoline(0);
        tables.detoured = self.detours.calls(reserved);
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
        let set = &mut ProbeSet::default();
        for at in self.detours.unwanted(|_| false) {
            let mut tools = Tools { traps: &mut self.traps, reserved: &mut self.reserved, set, stop };
            if !self.detours.take_down(at, false, &mut tools) {
                registry.overwritten(at);
            }
        }
        let all: Vec<Gva> = self.standing.keys().copied().collect();
        for at in all {
            if !self.take_down(at, stop) {
                registry.overwritten(at);
            }
        }
    }
}

/// Whether something is wanted in `range`.
fn is_taken(wanted: &BTreeMap<Gva, Wanted>, range: &Range<Gva>) -> bool {
    wanted.range(range.clone()).next().is_some()
}

/// The nop that this probe has left.
fn behind(attached: &Attached<Arc<Active>>) -> Option<Gva> {
    match attached.anchor {
        Anchor::Behind(nop) => Some(nop),
        Anchor::Firm | Anchor::Nop => None,
    }
}

fn refuse(registry: &mut Registry, probes: &[Attached<Arc<Active>>], reason: &str) {
    for attached in probes {
        registry.set_state(attached.probe.id, ProbeState::Refused(reason.to_owned()));
    }
}
