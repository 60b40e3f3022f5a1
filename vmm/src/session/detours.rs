//! Which probes are served by detours instead of traps, and where those stand.

use super::instance_exhaustion::InstanceExhaustion;
use super::registry::Registry;
use super::relocation::{Candidate, Relocations};
use super::stop::{Stop, allocate};
use super::text::{RunningKernel, Traps};
use crate::events::DetouredProbe;
use crate::guest::Optimize;
use crate::memory::GuestRam;
use crate::probe::Active;
use crate::reserved::{DATA, Reserved, Slots};
use crate::vcpu::Detoured;
use probe_engine::addr::Gva;
use probe_engine::detour::instances::Instances;
use probe_engine::detour::layout::Rings;
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::detour::stub::{Cpu, Guest, Stub, leave, trampolines};
use probe_engine::detour::work::{Calls, Work};
use probe_engine::insn::copy::{JUMP, jump};
use probe_engine::linux::branches::{Branches, LONGEST, UnknownReturn};
use probe_engine::linux::ftrace_site::{FTRACE_SITE, ftrace_nop};
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::nofault::Nofault;
use probe_engine::linux::per_cpu;
use probe_engine::probe::table::{Anchor, Attached, Internal, ProbeId, ProbeSet};
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
    returns: Result<(), String>,
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

/// The instruction behind ftrace's nop may run in a stub.
#[derive(Debug, Clone, Copy)]
pub(super) struct BehindNop {
    /// Whether the guest has done with branches, which it rewrites while it boots.
    pub(super) late: bool,
}

/// What it takes to change text in a stop.
pub(super) struct Tools<'a> {
    pub(super) traps: &'a mut Traps,
    pub(super) reserved: &'a mut Result<Reserved, String>,
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
            returns: Err("the kernel has not started".to_owned()),
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
        self.returns = branches.map_err(|error| error.to_string()).and_then(|(branches, thunks)| {
            guest.branches = branches;
            self.thunks = thunks;
            let code = leave(guest).map_err(|error| error.to_string())?;
            reserved.write_leave(ram, &code).map_err(|error| error.to_string())
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

    /// Probes are wanted at these places.
    pub(super) fn look_at<'a>(&mut self, mut wanted: impl Iterator<Item = &'a Gva>) {
        self.is_watched = wanted.any(|at| self.reads_by(*at) || self.returns_by(*at));
    }

    /// Whether detours read memory by what stands at `at`.
    fn reads_by(&self, at: Gva) -> bool {
        let link = self.guest.map(|guest| Gva(at.0.wrapping_sub(guest.slide)));
        link.zip(self.nofault.as_ref()).is_some_and(|(link, nofault)| nofault.run(link))
    }

    /// Whether our code runs through what a jump at `at` takes the place of, when it returns or jumps as the guest does.
    fn returns_by(&self, at: Gva) -> bool {
        // A region ends with the instruction that the jump's last byte is in.
        let taken = at..at.add((JUMP - 1 + LONGEST) as u64);
        self.thunks.range(taken).next().is_some()
    }

    /// What stands in the way of what `work` reads of memory.
    fn may_read(&self, work: Work) -> Result<Work, String> {
        let reason = match work.reads.is_empty() {
            true => None,
            false if self.nofault.is_none() => {
                Some("it reads memory, and this kernel has no functions for that which survive a fault")
            }
            false => self
                .is_watched
                .then_some("it reads memory, and a probe stands in the guest's functions that would do so"),
        };
        reason.map_or(Ok(work), |reason| Err(reason.to_owned()))
    }

    /// What stands in the way of following the calls that `work` follows.
    fn may_follow(&self, work: Work) -> Result<Work, String> {
        match (&work.calls, &self.returns) {
            (Some(_), Err(reason)) => Err(format!("it follows calls to their return, and {reason}")),
            (None, _) | (_, Ok(())) => Ok(work),
        }
    }

    /// What stands in the way of running `region` in a stub.
    fn may_run(&self, relocated: &RelocatedCode) -> Result<(), String> {
        let reason = self.returns.as_ref().err().filter(|_| relocated.returns());
        reason.map_or(Ok(()), |reason| Err(format!("a return would be moved, and {reason}")))
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

    /// What a detour has to do for a probe, as long as one can.
    fn work(&self, probe: &Active) -> Result<Work, String> {
        match self.exhausted.has_fallen(probe.id.0) {
            true => Err("no instance was left to follow a call of it".to_owned()),
            false => probe.detour().map_err(|reason| reason.to_string()),
        }
    }

    /// Why a probe has to be refused: no detour can serve it, and nothing else will do.
    pub(super) fn refuses(&self, probe: &Active) -> Option<String> {
        self.is_required().then(|| probe.detour().err()).flatten().map(refusal)
    }

    /// Whether a probe is refused that no detour can serve.
    pub(super) fn is_required(&self) -> bool {
        self.optimize == Optimize::Require
    }

    /// Whether several instructions have to make room for a detour that serves `probes`, as far as they can be served.
    pub(super) fn wants_relocation(
        &self,
        internal: Option<Internal>,
        probes: &[Attached<Arc<Active>>],
    ) -> bool {
        let is_served = |p: &Attached<Arc<Active>>| p.anchor == Anchor::Firm && self.work(&p.probe).is_ok();
        let is_possible = self.optimize != Optimize::Off && self.is_on && self.guest.is_some();
        is_possible && internal.is_none() && !probes.is_empty() && probes.iter().all(is_served)
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
    ) -> Result<(), String> {
        if self.standing.get(&at).is_none_or(|detour| detour.works != works) {
            // The old stub stays as it is: who is inside is counted there.
            if !self.take_down(at, false, tools) {
                return Err("the guest has written there".to_owned());
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

    /// What is to be done for all of `probes` at `at`; `None` if any of them needs a trap, and each is told why.
    pub(super) fn works(
        &self,
        at: Gva,
        internal: Option<Internal>,
        probes: &[Attached<Arc<Active>>],
        registry: &mut Registry,
    ) -> Option<Vec<Work>> {
        if self.optimize == Optimize::Off || probes.is_empty() {
            return None;
        }
        let mut works = Vec::new();
        let at_site = match internal {
            _ if !self.is_on => Err("detours are switched off"),
            _ if self.guest.is_none() => {
                Err("this kernel does not say how a CPU finds its number and its task")
            }
            Some(_) => Err("a trap of our own stands here"),
            // A detour that ends where it begins never ends.
            None if self.returns_by(at) => {
                Err("detours themselves return or jump by the guest's thunks here")
            }
            None => Ok(()),
        };
        for attached in probes {
            let anchor = match attached.anchor {
                Anchor::Nop | Anchor::Firm => Ok(()),
                Anchor::Behind(_) => Err("the guest's ftrace has wanted the entry"),
            };
            let work = at_site.and(anchor).map_err(str::to_owned).and_then(|()| self.work(&attached.probe));
            let work = work.and_then(|work| self.may_read(work)).and_then(|work| self.may_follow(work));
            let relocatable = |work| match attached.anchor {
                Anchor::Firm if let Some(reason) = self.relocations.why_not(at) => Err(reason.to_owned()),
                Anchor::Firm if let Some(candidate) = self.relocations.open(at) => {
                    self.may_run(&candidate.relocated).map(|()| work)
                }
                Anchor::Firm | Anchor::Nop | Anchor::Behind(_) => Ok(work),
            };
            match work.and_then(relocatable) {
                Ok(work) => works.push(work),
                Err(reason) => registry.stays_trapped(attached.probe.id, reason),
            }
        }
        if works.len() == probes.len() {
            return Some(works);
        }
        for work in works {
            registry
                .stays_trapped(ProbeId(work.probe), "another probe at this place needs a trap".to_owned());
        }
        None
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
    ) -> Result<(), String> {
        let Tools { traps, reserved, set, stop } = tools;
        let guest = self.guest.ok_or("the kernel has not started")?;
        let reserved = reserved.as_mut().map_err(|reason| reason.clone())?;
        self.follow_calls(works, reserved, stop.ram)?;
        let candidate = if is_nop { None } else { Some(self.relocations.open(at).ok_or("it has no room")?) };
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
        let written = stub.map_err(|error| error.to_string()).and_then(|stub| {
            reserved.write(stop.ram, slots, &stub.code).map_err(|error| error.to_string())?;
            let jump = jump(at, entry).map_err(|error| error.to_string())?;
            let there = traps.replace(stop.parked, stop.ram, running, at, original, jump);
            there.map_err(|error| error.to_string())?;
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
    fn follow_calls(&mut self, works: &[Work], reserved: &Reserved, ram: &GuestRam) -> Result<(), String> {
        for Work { probe, calls, .. } in works {
            let Some(Calls { most, .. }) = calls else { continue };
            if !self.follows_calls {
                let prepared = self.instances.prepare(ram);
                let written = prepared.and_then(|()| reserved.write_detours(ram, &trampolines()));
                written.map_err(|error| error.to_string())?;
                self.follows_calls = true;
            }
            self.exhausted.follows(*probe);
            if let Some(most) = most.filter(|_| self.limited.insert(*probe)) {
                self.instances.limit(ram, *probe, most).map_err(|error| error.to_string())?;
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

impl BehindNop {
    /// It, as it is at `at` in the live text, if it can be moved.
    fn read(self, at: Gva, traps: &Traps, stop: &Stop<'_>, running: &RunningKernel) -> Option<RelocatedCode> {
        /// Bytes of the longest instruction.
        const LONGEST: usize = 15;
        let mut bytes = [0; LONGEST];
        traps.read(stop.ram, running, at, &mut bytes).ok()?;
        RelocatedCode::single(&bytes, at).filter(|next| self.late || next.goes_on())
    }
}

/// What a probe is told that no detour can serve, and nothing else will do.
pub(super) fn refusal(reason: impl std::fmt::Display) -> String {
    format!("no detour can serve it: {reason}")
}

/// The nop of ftrace's that the jump takes the place of.
fn live_nop(
    at: Gva,
    traps: &Traps,
    stop: &Stop<'_>,
    running: &RunningKernel,
) -> Result<[u8; FTRACE_SITE as usize], String> {
    let mut bytes = [0; FTRACE_SITE as usize];
    traps.read(stop.ram, running, at, &mut bytes).map_err(|error| error.to_string())?;
    ftrace_nop(&bytes).ok_or_else(|| "the guest has changed the nop of its ftrace".to_owned())
}

/// The bytes that the jump takes the place of, if all are still those that were looked at.
fn live(
    candidate: &Candidate,
    traps: &Traps,
    stop: &Stop<'_>,
    running: &RunningKernel,
) -> Result<[u8; FTRACE_SITE as usize], String> {
    let mut bytes = vec![0; candidate.bytes.len()];
    traps.read(stop.ram, running, candidate.relocated.at(), &mut bytes).map_err(|error| error.to_string())?;
    let first = bytes.first_chunk().filter(|_| bytes == candidate.bytes);
    first.copied().ok_or_else(|| "the guest has changed the instructions that would be moved".to_owned())
}
