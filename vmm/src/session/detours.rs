//! What detours can do for probes in this guest, and what they have been told to do.

mod suited;

use super::instance_exhaustion::InstanceExhaustion;
use super::reasons::{NoReturn, NoSpace};
use crate::events::DetouredProbe;
use crate::guest::Optimize;
use crate::memory::GuestRam;
use crate::probe::Active;
use crate::reserved::{DATA, Reserved};
use crate::vcpu::Detoured;
use probe_engine::addr::Gva;
use probe_engine::detour::instances::Instances;
use probe_engine::detour::layout::Rings;
use probe_engine::detour::stub::{Cpu, Guest, leave, trampolines};
use probe_engine::detour::work::{Calls, Work};
use probe_engine::linux::branches::{Branches, UnknownReturn};
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::nofault::Nofault;
use probe_engine::linux::per_cpu;
use probe_engine::probe::table::Attached;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// What all detours of a guest share.
pub(super) struct Detours {
    optimize: Optimize,
    /// The switch for all of them.
    is_on: bool,
    rings: Rings,
    guest: Option<Guest>,
    nofault: Option<Nofault>,
    /// `fault_in_readable`, where it was linked.
    fault_in: Option<Gva>,
    /// Whether a probe stands where detours read memory.
    is_watched: bool,
    known: HashMap<u32, DetouredProbe>,
    instances: Instances,
    /// Whether they can be used.
    follows_calls: bool,
    /// Why code of ours cannot return, if it cannot.
    returns: Result<(), NoReturn>,
    /// Where the instructions begin that it goes through when it does, or when it jumps.
    thunks: BTreeSet<Gva>,
    /// The probes that follow a limited number of calls, and have been told how many.
    limited: HashSet<u32>,
    exhausted: InstanceExhaustion,
}

impl Detours {
    pub(super) fn new(optimize: Optimize, falls_back: bool, cpus: u8, kernel: &Landmarks) -> Self {
        Self {
            optimize,
            is_on: true,
            rings: Rings::of(cpus),
            guest: None,
            nofault: kernel.nofault.clone(),
            fault_in: kernel.uprobes.as_ref().ok().and_then(|calls| calls.fault_in),
            is_watched: false,
            known: HashMap::new(),
            instances: Instances::new(DATA, cpus),
            follows_calls: false,
            returns: Err(NoReturn::NotStarted),
            thunks: BTreeSet::new(),
            limited: HashSet::new(),
            exhausted: InstanceExhaustion::new(falls_back),
        }
    }

    /// The guest's kernel runs `slide` bytes behind where it was linked.
    pub(super) fn advance(&mut self, kernel: &Landmarks, reserved: &Reserved, slide: u64) {
        let window = reserved.data().start;
        let trampolines = reserved.detours().start;
        let cpu = kernel.cpu_number.zip(kernel.task);
        let cpu = cpu.map(|(number, task)| Cpu {
            number: per_cpu::slid(number, slide),
            task: task.slid(slide),
            per_cpu: kernel.this_cpu_off.map(|offset| per_cpu::slid(offset, slide)),
        });
        let copies = self.nofault.as_ref().map(|nofault| nofault.copies.slid(slide));
        let branches = Branches::default();
        let fault_in = self.fault_in.map(|link| link.add(slide));
        let rings = self.rings;
        self.guest = Some(Guest { window, rings, cpu, slide, trampolines, copies, fault_in, branches });
    }

    /// Has our code branch as the guest does.
    pub(super) fn branch(
        &mut self,
        branches: Result<(Branches, BTreeSet<Gva>), UnknownReturn>,
        reserved: &Reserved,
        ram: &GuestRam,
    ) {
        let Some(guest) = &mut self.guest else { return };
        self.returns = branches.map_err(NoReturn::from).and_then(|(branches, thunks)| {
            guest.branches = branches;
            self.thunks = thunks;
            let code = leave(guest)?;
            Ok(reserved.write_leave(ram, &code)?)
        });
    }

    pub(super) fn instances(&self) -> &Instances {
        &self.instances
    }

    /// The calls that are followed, if any can be.
    pub(super) fn calls(&self, reserved: &Reserved) -> Option<Detoured> {
        let (instances, trampolines) = (self.instances, reserved.detours());
        self.follows_calls.then_some(Detoured { instances, trampolines })
    }

    /// The switch for all.
    pub(super) fn switch(&mut self, is_on: bool) {
        self.is_on = is_on;
    }

    /// Whose records there may be in the rings, by their numbers.
    pub(super) fn known(&self) -> &HashMap<u32, DetouredProbe> {
        &self.known
    }

    /// Looks which return probes have to fall back to traps.
    pub(super) fn look(&mut self, ram: &GuestRam) {
        let instances = &self.instances;
        self.exhausted.look(|end| instances.ran_out(ram, end));
    }

    /// Whether it is time to move probes to traps.
    pub(super) fn is_due(&self) -> bool {
        self.exhausted.is_due()
    }

    /// All probes stand where they have to.
    pub(super) fn done(&mut self) {
        self.exhausted.done();
    }

    /// A detour at `at` does `works` for `probes`: what the rings hold of theirs is understood from now on.
    pub(super) fn know(&mut self, at: Gva, probes: &[Attached<Arc<Active>>], works: Vec<Work>, slide: u64) {
        for (attached, work) in probes.iter().zip(works) {
            if work.record.is_some() {
                let known = DetouredProbe { probe: attached.probe.clone(), work, at, slide };
                self.known.insert(attached.probe.id.0, known);
            }
        }
    }

    /// What stubs are assembled for, once the kernel runs.
    pub(super) fn guest(&self) -> Result<Guest, NoSpace> {
        self.guest.ok_or(NoSpace::NotStarted)
    }

    /// Gets all ready that the calls need which `works` follow.
    pub(super) fn follow_calls(
        &mut self,
        works: &[Work],
        reserved: &Reserved,
        ram: &GuestRam,
    ) -> Result<(), NoSpace> {
        for Work { probe, calls, .. } in works {
            let Some(Calls { most, .. }) = calls else { continue };
            if !self.follows_calls {
                let prepared = self.instances.prepare(ram);
                let written = prepared.and_then(|()| reserved.write_detours(ram, &trampolines()));
                written?;
                self.follows_calls = true;
            }
            self.exhausted.follows(*probe);
            if let Some(most) = most.filter(|_| self.limited.insert(*probe)) {
                self.instances.limit(ram, *probe, most)?;
            }
        }
        Ok(())
    }
}
