//! Which probes are served by detours instead of traps, and where those stand.

mod live;
mod suited;

pub(super) use live::BehindNop;

use super::instance_exhaustion::InstanceExhaustion;
use super::reasons::{NoReturn, NoSpace, OnTrap};
use super::relocation::Relocations;
use super::stop::{Stop, allocate};
use super::text::{RunningKernel, Traps};
use crate::events::DetouredProbe;
use crate::guest::Optimize;
use crate::memory::GuestRam;
use crate::probe::Active;
use crate::reserved::{DATA, Reserved, Slots};
use crate::vcpu::Detoured;
use live::{live, live_nop};
use probe_engine::addr::Gva;
use probe_engine::detour::instances::Instances;
use probe_engine::detour::layout::Rings;
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::detour::stub::{Cpu, Guest, Stub, leave, trampolines};
use probe_engine::detour::work::{Calls, Work};
use probe_engine::insn::copy::jump;
use probe_engine::linux::branches::{Branches, UnknownReturn};
use probe_engine::linux::ftrace_site::FTRACE_SITE;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::nofault::Nofault;
use probe_engine::linux::per_cpu;
use probe_engine::probe::table::{Anchor, Attached, ProbeSet};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The detours in the guest's text.
pub(super) struct Detours {
    optimize: Optimize,
    /// The switch for all of them.
    is_on: bool,
    rings: Rings,
    guest: Option<Guest>,
    standing: BTreeMap<Gva, Detour>,
    pub(super) relocations: Relocations,
    nofault: Option<Nofault>,
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

struct Detour {
    slots: Slots,
    stub: Stub,
    works: Vec<Work>,
    /// What its jump takes the place of, where that is not ftrace's nop.
    relocated: Option<RelocatedCode>,
    /// The instruction behind ftrace's nop, where it runs in the stub.
    next: Option<RelocatedCode>,
}

/// What it takes to change text in a stop.
pub(super) struct Tools<'a> {
    pub(super) traps: &'a mut Traps,
    pub(super) reserved: &'a mut Result<Reserved, NoSpace>,
    pub(super) set: &'a mut ProbeSet<Arc<Active>>,
    pub(super) stop: &'a Stop<'a>,
}

impl Detours {
    pub(super) fn new(optimize: Optimize, falls_back: bool, cpus: u8, kernel: &Landmarks) -> Self {
        Self {
            optimize,
            is_on: true,
            rings: Rings::of(cpus),
            guest: None,
            standing: BTreeMap::new(),
            relocations: Relocations::new(kernel),
            nofault: kernel.nofault.clone(),
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
        self.guest = Some(Guest { window, rings: self.rings, cpu, slide, trampolines, copies, branches });
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

    /// Where detours stand that are not `wanted` any more, in place of the text in a range.
    pub(super) fn unwanted(&self, wanted: impl Fn(&Range<Gva>) -> bool) -> Vec<Gva> {
        let range = |(at, detour): (&Gva, &Detour)| match (&detour.relocated, &detour.next) {
            (Some(relocated), _) => relocated.range(),
            (None, Some(next)) => *at..next.end(),
            (None, None) => *at..at.add(FTRACE_SITE),
        };
        self.standing.iter().map(range).filter(|range| !wanted(range)).map(|range| range.start).collect()
    }

    /// Whether one stands at `at`.
    pub(super) fn stands(&self, at: Gva) -> bool {
        self.standing.contains_key(&at)
    }

    /// Looks which return probes have to fall back to traps.
    pub(super) fn look(&mut self, ram: &GuestRam) {
        let instances = &self.instances;
        self.exhausted.look(|end| instances.ran_out(ram, end));
    }

    /// Whether it is time to try again what could not be done before, or to move probes to traps.
    pub(super) fn is_due(&self) -> bool {
        self.relocations.is_due() || self.exhausted.is_due()
    }

    /// All probes stand where they have to.
    pub(super) fn done(&mut self) {
        self.exhausted.done();
    }

    /// Has `probes` served by a detour at `at` that does `works`: in place of ftrace's nop, or of instructions that are
    /// known to make [room](Relocations::open).
    ///
    /// # Errors
    /// Why not. Nothing of ours stands there then.
    pub(super) fn divert(
        &mut self,
        at: Gva,
        works: Vec<Work>,
        probes: &[Attached<Arc<Active>>],
        next: Option<BehindNop>,
        running: &RunningKernel,
        tools: &mut Tools<'_>,
    ) -> Result<(), OnTrap> {
        if self.standing.get(&at).is_none_or(|detour| detour.works != works) {
            // The old stub stays as it is: who is inside is counted there.
            if !self.take_down(at, false, tools) {
                return Err(OnTrap::Written);
            }
            let is_nop = probes.iter().any(|attached| attached.anchor == Anchor::Nop);
            self.stand(at, is_nop, &works, next.filter(|_| is_nop), running, tools)?;
        }
        let slide = running.map.slide();
        for (attached, work) in probes.iter().zip(works) {
            if work.record.is_some() {
                let known = DetouredProbe { probe: attached.probe.clone(), work, at, slide };
                self.known.insert(attached.probe.id.0, known);
            }
        }
        Ok(())
    }

    /// Leads the guest from `at`, ftrace's nop or more, to a new stub.
    fn stand(
        &mut self,
        at: Gva,
        is_nop: bool,
        works: &[Work],
        next: Option<BehindNop>,
        running: &RunningKernel,
        tools: &mut Tools<'_>,
    ) -> Result<(), OnTrap> {
        let Tools { traps, reserved, set, stop } = tools;
        let guest = self.guest.ok_or(NoSpace::NotStarted)?;
        let reserved = reserved.as_mut().map_err(|reason| reason.clone())?;
        self.follow_calls(works, reserved, stop.ram)?;
        let candidate =
            if is_nop { None } else { Some(self.relocations.open(at).ok_or(OnTrap::NotLookedAt)?) };
        let original = match candidate {
            Some(candidate) => live(candidate, traps, stop, running)?,
            None => live_nop(at, traps, stop, running)?,
        };
        let relocated = candidate.map(|candidate| &candidate.relocated);
        let next = next.filter(|_| self.relocations.sees_faults());
        let next = next.and_then(|next| next.read(at.add(FTRACE_SITE), traps, stop, running));
        let next = next.filter(|next| self.may_run(next).is_ok());
        let length = relocated
            .map_or_else(|| Stub::most_bytes(works), |relocated| Stub::most_bytes_over(relocated, works));
        let slots = allocate(reserved, length, &self.instances, stop, set)?;
        let entry = reserved.address(slots);
        let stub = match relocated {
            Some(relocated) => Stub::over(&guest, entry, relocated, works),
            None => Stub::assemble(&guest, entry, at, at.add(FTRACE_SITE), next.as_ref(), works),
        };
        let written = stub.map_err(OnTrap::from).and_then(|stub| {
            reserved.write(stop.ram, slots, &stub.code).map_err(NoSpace::from)?;
            let jump = jump(at, entry)?;
            let there = traps.replace(stop.parked, stop.ram, running, at, original, jump);
            there?;
            Ok(stub)
        });
        match written {
            Ok(stub) => {
                let slots = reserved.shrink(slots, stub.code.len());
                let relocated = relocated.cloned();
                set.add_waits(stub.waits(entry));
                set.add_moved(
                    relocated.iter().chain(&next).flat_map(|relocated| stub.moved(entry, relocated)),
                );
                self.standing.insert(at, Detour { slots, stub, works: works.to_vec(), relocated, next });
                Ok(())
            }
            Err(reason) => {
                reserved.retire(slots);
                Err(reason)
            }
        }
    }

    /// Gets all ready that the calls need which `works` follow.
    fn follow_calls(&mut self, works: &[Work], reserved: &Reserved, ram: &GuestRam) -> Result<(), NoSpace> {
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

    /// Takes the detour at `at` out, if there is one. Where its probes `move` behind the nop, who has not been counted in it
    /// yet is counted there, and who has is not. False when the guest has written over it.
    pub(super) fn take_down(&mut self, at: Gva, moves: bool, tools: &mut Tools<'_>) -> bool {
        let Tools { traps, reserved, set, stop } = tools;
        let (Some(detour), Ok(reserved)) = (self.standing.remove(&at), reserved.as_mut()) else {
            return true;
        };
        if moves {
            let (gate, shut) = detour.stub.shut();
            // It can be written: it was.
            let _ = reserved.overwrite(stop.ram, detour.slots, gate, &shut);
            for passed in detour.stub.passed(reserved.address(detour.slots)) {
                set.leave(passed, at);
            }
        }
        if let Some(relocated) = detour.relocated.as_ref().or(detour.next.as_ref()) {
            let entry = reserved.address(detour.slots);
            self.relocations.leave(entry..entry.add(detour.stub.code.len() as u64), relocated);
        }
        reserved.retire(detour.slots);
        traps.lift(stop.parked, stop.ram, at, FTRACE_SITE)
    }
}
