//! Which trap stands where: what is wanted, compared with what is there.
//!
//! Everything that changes what is wanted (a probe is registered, disabled, moved; the guest frees text, loads a
//! module, or works on its own text) ends in one [`reconcile`](Arming::reconcile), in one stop of the world.

use super::detours::{Detours, Next, Tools, refusal};
use super::hooks::Hooks;
use super::registry::{Entry, Registry, State};
use super::text::{Function, Ground, Traps};
use super::watches;
use crate::events::RING;
use crate::memory::GuestRam;
use crate::probe::Active;
use crate::reserved::{Reserved, Slots, TRAMPOLINES};
use crate::world::{Orders, Parked};
use probe_engine::addr::Gva;
use probe_engine::detour::instances::Instances;
use probe_engine::insn::copy::{Ending, OutOfLine, SLOT};
use probe_engine::insn::plan::{Plan, skip_endbr};
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::probe::hit::INT3;
use probe_engine::probe::once::OneShot;
use probe_engine::probe::place::{Behind, FTRACE_NOP, FTRACE_SITE, Place};
use probe_engine::probe::table::{CopyEnd, Footing, Hanging, Internal, Past, ProbeSet, Site};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// How far the guest's text is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Nobody knows where it is.
    Unknown,
    /// ftrace has made its nops; all else may still be changed.
    Early,
    /// All of it.
    Late,
}

/// A stop of the world.
pub(super) struct Stop<'a> {
    pub(super) parked: &'a Parked<'a>,
    pub(super) ram: &'a GuestRam,
}

/// The traps in the guest's text.
pub(super) struct Arming {
    kernel: Landmarks,
    phase: Phase,
    ground: Option<Ground>,
    traps: Traps,
    /// What stands, and how it is passed.
    standing: BTreeMap<Gva, Standing>,
    pub(super) detours: Detours,
    reserved: Result<Reserved, String>,
    /// Instructions that were seen to access a device: the host cannot emulate them.
    device: BTreeSet<Gva>,
    pub(super) hooks: Hooks,
}

struct Standing {
    past: Past,
    slot: Option<Slots>,
    /// Whether its copy ends in a trap.
    traps_again: bool,
}

/// What is wanted at one address.
struct Wanted {
    probes: Vec<Hanging<Arc<Active>>>,
    internal: Option<Internal>,
    function: Function,
}

impl Wanted {
    fn nothing(function: Function) -> Self {
        Self { probes: Vec::new(), internal: None, function }
    }
}

/// `call rel32`.
const CALL: u8 = 0xe8;
/// `jmp rel32`.
const JUMP: u8 = 0xe9;

/// Where a probe can stand at this moment.
enum Stand {
    At { at: Gva, function: Function, footing: Footing },
    Not(State),
}

impl Arming {
    /// Nothing is armed yet. `all_modules`: also those are followed that have no probes.
    pub(super) fn new(kernel: Landmarks, all_modules: bool, detours: Detours) -> Self {
        Self {
            hooks: Hooks::new(&kernel, all_modules),
            kernel,
            phase: Phase::Unknown,
            ground: None,
            traps: Traps::default(),
            standing: BTreeMap::new(),
            detours,
            device: BTreeSet::new(),
            reserved: Err("the kernel has not started".to_owned()),
        }
    }

    /// The kernel has come to `phase`, at `ground`.
    pub(super) fn advance(&mut self, phase: Phase, ground: Ground, stop: &Stop<'_>) {
        self.phase = phase;
        self.ground = Some(ground);
        if self.reserved.is_err() {
            let text = ground.map.gva(self.kernel.text)..ground.map.gva(self.kernel.text_end);
            let reserved = Reserved::map(stop.parked, stop.ram, ground.space, &text);
            self.reserved = reserved.map_err(|e| e.to_string());
            if let Ok(reserved) = &self.reserved {
                self.detours.advance(&self.kernel, reserved, ground.map.slide());
            }
        }
    }

    /// Whether the text is known, so that probes can be armed.
    pub(super) fn is_ready(&self) -> bool {
        self.phase == Phase::Late
    }

    /// The instruction at `at` accesses a device: from now on it runs from a copy.
    pub(super) fn run_from_copy(&mut self, at: Gva) {
        self.device.insert(at);
    }

    /// The running kernel.
    pub(super) fn ground(&self) -> Option<&Ground> {
        self.ground.as_ref()
    }

    /// Makes the traps in the text those that are wanted, and tells each probe's state.
    pub(super) fn reconcile(&mut self, registry: &mut Registry, stop: &Stop<'_>, orders: &mut Orders) {
        let Some(ground) = self.ground else { return };
        self.traps.forget_pages();
        let mut wanted = self.wanted(registry, &ground, stop.ram);
        orders.current = self.kernel.current;
        orders.task = self.kernel.task;
        orders.slide = ground.map.slide();
        self.detours.look_at(wanted.keys());
        self.take_out(&wanted, registry, stop, &mut orders.sites);
        self.make_room(&mut wanted, registry, stop, &orders.sites);
        let places: BTreeSet<Gva> = wanted.keys().copied().collect();
        for (at, wanted) in &mut wanted {
            let probes = std::mem::take(&mut wanted.probes);
            wanted.function.next &= !places.contains(&at.add(FTRACE_SITE));
            if self.divert(*at, wanted, &probes, registry, stop, &mut orders.sites) {
                continue;
            }
            match self.put_in(*at, wanted, &probes, &ground, stop, &mut orders.sites) {
                Ok(past) => orders.sites.insert(*at, Site { probes, internal: wanted.internal, past }),
                Err(reason) => {
                    orders.sites.remove(*at);
                    refuse(registry, &probes, &reason);
                }
            }
        }
        self.detours.done();
        self.follow_returns(registry, orders);
        if self.phase == Phase::Late {
            watches::set(registry, &ground, stop.ram, orders);
        }
    }

    /// All that should stand, by address.
    fn wanted(&mut self, registry: &mut Registry, ground: &Ground, ram: &GuestRam) -> BTreeMap<Gva, Wanted> {
        let mut all = BTreeMap::<Gva, Wanted>::new();
        let armed = registry.is_armed();
        for entry in registry.iter_mut() {
            if entry.active.watching().is_some() || entry.active.is_broken() || is_settled(&entry.state) {
                continue;
            }
            if entry.active.is_spent() {
                if let State::Armed(at) = entry.state {
                    entry.state = State::Spent(at);
                }
                continue;
            }
            let stand = self.stand(entry, ground, ram);
            match stand {
                Stand::Not(state @ (State::Waiting | State::Gone(_))) => entry.state = state,
                _ if !entry.enabled || !armed => entry.state = State::Disabled,
                Stand::Not(state) => {
                    let is_new = entry.state != state;
                    entry.yields += u64::from(is_new && matches!(state, State::Yielded(_)));
                    entry.state = state;
                }
                Stand::At { at, function, footing } => match &self.reserved {
                    _ if let Some(reason) = self.detours.refuses(&entry.active) => {
                        entry.state = State::Refused(reason);
                    }
                    Err(reason) if entry.active.pool().is_some() => {
                        entry.state = State::Refused(reason.clone());
                    }
                    _ => {
                        entry.made_room |= matches!(footing, Footing::Behind(_));
                        entry.state = State::Armed(at);
                        entry.stood = Some(at);
                        let hanging = Hanging { probe: entry.active.clone(), footing };
                        all.entry(at).or_insert(Wanted::nothing(function)).probes.push(hanging);
                    }
                },
            }
        }
        for (internal, link) in self.hooks.wanted(self.phase, registry) {
            let start = ground.map.gva(link);
            if let Some(at) = self.hook_place(start, ground, ram) {
                // Only its entry is of interest, whatever the function's length.
                let function =
                    Function { range: at..at.add(16), fixup: false, traced: false, room: None, next: false };
                all.entry(at).or_insert(Wanted::nothing(function)).internal = Some(internal);
            }
        }
        all
    }

    /// Where the probe of `entry` can stand now.
    fn stand(&self, entry: &Entry, ground: &Ground, ram: &GuestRam) -> Stand {
        let Some(spot) = &entry.spot else { return Stand::Not(State::Waiting) };
        let is_kernel = matches!(entry.place, Place::Kernel { .. });
        let slide = if is_kernel { ground.map.slide() } else { 0 };
        let asked = spot.at.add(slide);
        if is_kernel && self.hooks.is_freed(&self.kernel, spot.at) {
            return Stand::Not(State::Gone(asked));
        }
        let range = spot.function.start.add(slide)..spot.function.end.add(slide);
        let function = |fixup| Function {
            range: range.clone(),
            fixup,
            traced: spot.traced,
            room: spot.room.clone(),
            next: spot.ftrace == Some(Behind::Free { fixup: false }),
        };
        let mut bytes = [0; 16];
        // A function's last instructions may be fewer bytes.
        let length = range.end.offset_from(asked).unwrap_or(0).min(16) as usize;
        let Some(head) = bytes.get_mut(..length) else { return Stand::Not(State::Waiting) };
        if let Err(error) = self.traps.read(ram, ground, asked, head) {
            return Stand::Not(State::Refused(error.to_string()));
        }
        let at = if spot.is_entry() { skip_endbr(head, asked) } else { asked };
        let Some(behind) = &spot.ftrace else {
            return match self.phase {
                Phase::Late => Stand::At { at, function: function(spot.fixup), footing: Footing::Firm },
                _ => Stand::Not(State::Waiting),
            };
        };
        let site = head.get(at.offset_from(asked).unwrap_or(0) as usize..).unwrap_or_default();
        let is_nop = site.starts_with(&FTRACE_NOP);
        let is_ftraces = matches!(site.first(), Some(&(CALL | JUMP | INT3)));
        let is_quiet = self.hooks.follows_ftrace() && !self.hooks.is_patching();
        match behind {
            // Once it has made room, a probe does not come back where it can do without: a task may be on its way
            // from here, or from a tracer, to where the probe is now, and would be missed.
            _ if is_nop && is_quiet && !entry.made_room => {
                Stand::At { at, function: function(false), footing: Footing::Nop }
            }
            _ if self.phase < Phase::Late => Stand::Not(State::Waiting),
            // Neither ftrace's nop nor anything that it makes of it.
            _ if !is_nop && !is_ftraces => Stand::Not(State::Overwritten(at)),
            Behind::Free { fixup } => {
                let behind = at.add(FTRACE_SITE);
                Stand::At { at: behind, function: function(*fixup), footing: Footing::Behind(at) }
            }
            Behind::Guarded(_) if self.hooks.follows_ftrace() => Stand::Not(State::Yielded(at)),
            Behind::Guarded(reason) => {
                let reason =
                    format!("this kernel's ftrace cannot be followed, and behind its site: {reason}");
                Stand::Not(State::Refused(reason))
            }
        }
    }

    /// Where an internal trap stands in the function at `start`: not on what ftrace may want for itself, as soon
    /// as what is behind that is final.
    fn hook_place(&self, start: Gva, ground: &Ground, ram: &GuestRam) -> Option<Gva> {
        let mut head = [0; 16];
        self.traps.read(ram, ground, start, &mut head).ok()?;
        let at = skip_endbr(&head, start);
        let offset = at.offset_from(start)? as usize;
        let head = head.get(offset..)?;
        // A tracer's call, or ftrace's own breakpoint while it makes one: the place must not depend on the moment.
        let is_used = self.phase == Phase::Late && matches!(head.first(), Some(&(CALL | INT3)));
        match (self.phase, is_used || head.starts_with(&FTRACE_NOP)) {
            (Phase::Late, true) => Some(at.add(FTRACE_SITE)),
            (Phase::Late, false) | (_, true) => Some(at),
            (_, false) => None,
        }
    }

    /// Finds out where several instructions can make room for a jump, and refuses what can only stand on one and
    /// cannot.
    fn make_room(
        &mut self,
        wanted: &mut BTreeMap<Gva, Wanted>,
        registry: &mut Registry,
        stop: &Stop<'_>,
        set: &ProbeSet<Arc<Active>>,
    ) {
        let (Some(ground), Ok(reserved)) = (&self.ground, &self.reserved) else { return };
        let detours = &mut self.detours;
        detours.regions.retain(|at| wanted.contains_key(&at));
        let mut new = Vec::new();
        wanted.retain(|at, wanted| {
            if detours.stands(*at) || !detours.wants_region(wanted.internal, &wanted.probes) {
                return true;
            }
            let is_required = detours.is_required();
            match detours.regions.verdict(*at, &wanted.function, &self.traps, ground, stop) {
                Err(reason) if is_required => {
                    refuse(registry, &wanted.probes, &refusal(reason));
                    return false;
                }
                Err(_) => {}
                Ok(()) => new.push(*at),
            }
            true
        });
        detours.regions.look(&new, |range| is_taken(wanted, range), reserved, set, stop);
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

    /// Takes down what stands at `at`. False when the guest has written there.
    fn take_down(&mut self, at: Gva, stop: &Stop<'_>) -> bool {
        let Some(standing) = self.standing.remove(&at) else { return true };
        self.retire(standing.slot);
        match &standing.past {
            Past::PutBack(once) if once.is_done() => {
                self.traps.forget(at, 1);
                true
            }
            _ => self.traps.lift(stop.parked, stop.ram, at, 1),
        }
    }

    /// Has `probes` served by a detour at `at`, if they can be. Otherwise none stands there afterwards.
    fn divert(
        &mut self,
        at: Gva,
        wanted: &Wanted,
        probes: &[Hanging<Arc<Active>>],
        registry: &mut Registry,
        stop: &Stop<'_>,
        set: &mut ProbeSet<Arc<Active>>,
    ) -> bool {
        let Some(ground) = self.ground else { return false };
        let works = self.detours.works(at, wanted.internal, probes, registry);
        if works.is_some() && self.standing.contains_key(&at) {
            set.remove(at);
            self.take_down(at, stop);
        }
        let mut tools = Tools { traps: &mut self.traps, reserved: &mut self.reserved, set, stop };
        let late = self.phase == Phase::Late;
        let next = wanted.function.next.then_some(Next { late });
        let reason =
            match works.map(|works| self.detours.divert(at, works, probes, next, &ground, &mut tools)) {
                Some(Ok(())) => {
                    probes.iter().for_each(|p| registry.set_state(p.probe.id, State::Optimized(at)));
                    return true;
                }
                Some(Err(reason)) => Some(reason),
                None => None,
            };
        for probe in reason.iter().flat_map(|_| probes) {
            registry.stays_trapped(probe.probe.id, reason.clone().unwrap_or_default());
        }
        // What the guest has written there is found when the trap is planted.
        self.detours.take_down(at, false, &mut tools);
        false
    }

    /// Forgets what stood at `lost`: the text that it was in is no more.
    pub(super) fn forget(&mut self, lost: &[Gva], set: &mut ProbeSet<Arc<Active>>) {
        for at in lost {
            set.remove(*at);
            self.traps.forget(*at, 1);
            let standing = self.standing.remove(at);
            self.retire(standing.and_then(|standing| standing.slot));
        }
    }

    /// Nobody new comes to the copy in `slot`, if there is one.
    fn retire(&mut self, slot: Option<Slots>) {
        if let (Some(slot), Ok(reserved)) = (slot, &mut self.reserved) {
            reserved.retire(slot);
        }
    }

    /// Sees to it that a trap stands at `at` and that it is passed in the right way.
    fn put_in(
        &mut self,
        at: Gva,
        wanted: &Wanted,
        probes: &[Hanging<Arc<Active>>],
        ground: &Ground,
        stop: &Stop<'_>,
        set: &mut ProbeSet<Arc<Active>>,
    ) -> Result<Past, String> {
        let is_once = wanted.internal.is_none() && probes.iter().all(|p| p.probe.is_once());
        let has_post = probes.iter().any(|p| p.probe.has_post());
        if probes.iter().filter(|p| p.probe.record).count() > RING {
            return Err(format!("more than {RING} probes stand here"));
        }
        if let Some(standing) = self.standing.get(&at) {
            match &standing.past {
                Past::Emulate(_) if !self.device.contains(&at) => return Ok(standing.past.clone()),
                Past::Copy(_) if standing.traps_again == has_post => return Ok(standing.past.clone()),
                Past::PutBack(once) if is_once && !once.is_done() => return Ok(standing.past.clone()),
                // It needs another way past: it is taken down and put up again in the same stop.
                Past::Emulate(_) | Past::Copy(_) | Past::PutBack(_) => {
                    self.take_down(at, stop);
                }
            }
        }
        // ftrace's nop was seen just now; anything else in the live text has to be proven an instruction.
        let plan = if is_once && probes.iter().all(|p| p.footing == Footing::Nop) {
            None
        } else {
            let only_copy = self.device.contains(&at);
            Some(self.traps.plan(stop.ram, ground, &wanted.function, at, only_copy)?)
        };
        let (past, slot) = match plan.filter(|_| !is_once) {
            None => (None, None),
            Some(Plan::Emulate(emulation)) => (Some(Past::Emulate(emulation)), None),
            Some(Plan::OutOfLine(_)) if !self.hooks.sees_faults() => {
                return Err(
                    "its instruction runs from a copy, and this kernel's faults cannot be followed".into()
                );
            }
            Some(Plan::OutOfLine(copy)) => {
                let slot = self.copy(&copy, has_post, stop, set)?;
                let entry = self.reserved.as_ref().map_err(String::clone)?.address(slot);
                (Some(Past::Copy(entry)), Some(slot))
            }
        };
        let planted = self.traps.plant(stop.parked, stop.ram, ground, at);
        let past = match (planted, past) {
            (Ok(_), Some(past)) => past,
            (Ok((gpa, original)), None) => Past::PutBack(Arc::new(OneShot::new(gpa, original))),
            (Err(error), _) => {
                self.retire(slot);
                return Err(error.to_string());
            }
        };
        let standing = Standing { past: past.clone(), slot, traps_again: has_post };
        self.standing.insert(at, standing);
        Ok(past)
    }

    /// Writes `copy` to a slot.
    fn copy(
        &mut self,
        copy: &OutOfLine,
        has_post: bool,
        stop: &Stop<'_>,
        set: &mut ProbeSet<Arc<Active>>,
    ) -> Result<Slots, String> {
        let reserved = self.reserved.as_mut().map_err(|reason| reason.clone())?;
        let slot = room(reserved, SLOT, self.detours.instances(), stop, set)?;
        let entry = reserved.address(slot);
        let ending = if has_post { Ending::Trap } else { Ending::Jump };
        let code = copy.place(entry, ending).map_err(|e| e.to_string());
        let written = code.and_then(|code| reserved.write(stop.ram, slot, &code).map_err(|e| e.to_string()));
        if let Err(reason) = written {
            reserved.retire(slot);
            return Err(reason);
        }
        let end = has_post.then(|| (copy.trap(entry), CopyEnd { site: copy.at(), next: copy.next() }));
        set.add_copy(entry, copy.at(), end);
        Ok(slot)
    }

    /// Tells the vCPUs whose return trampolines are whose.
    fn follow_returns(&self, registry: &mut Registry, orders: &mut Orders) {
        registry.release_trampolines();
        let Ok(reserved) = &self.reserved else { return };
        orders.trampolines = reserved.trampoline(0);
        orders.detoured = self.detours.calls(reserved);
        orders.sites.set_trampolines(reserved.trampoline(0)..reserved.trampoline(TRAMPOLINES));
        orders.sites.disown_all();
        orders.returns = registry.returns().cloned().collect();
        for active in &orders.returns {
            if let Some(pool) = active.pool() {
                orders.sites.own(pool.numbers(), active);
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

/// Takes room for `length` bytes of code. Frees what nobody needs when there is none, of which `calls` tell more than
/// the guest's memory.
pub(super) fn room(
    reserved: &mut Reserved,
    length: usize,
    calls: &Instances,
    stop: &Stop<'_>,
    set: &mut ProbeSet<Arc<Active>>,
) -> Result<Slots, String> {
    if let Some(slots) = reserved.allocate(length) {
        return Ok(slots);
    }
    let mut known = stop.parked.rips();
    known.extend(calls.stubs(stop.ram));
    reserved.reclaim(stop.parked, stop.ram, &known).map_err(|e| e.to_string())?;
    set.retain_copies(|at| reserved.is_in_use(at));
    Ok(reserved.allocate(length).ok_or("there is no room for more of our code")?)
}

/// Whether something is wanted in `range`.
fn is_taken(wanted: &BTreeMap<Gva, Wanted>, range: &Range<Gva>) -> bool {
    wanted.range(range.clone()).next().is_some()
}

/// The nop that this probe has left.
fn behind(hanging: &Hanging<Arc<Active>>) -> Option<Gva> {
    match hanging.footing {
        Footing::Behind(nop) => Some(nop),
        Footing::Firm | Footing::Nop => None,
    }
}

/// Whether nothing changes a probe's state any more.
fn is_settled(state: &State) -> bool {
    matches!(
        state,
        State::Gone(_) | State::Overwritten(_) | State::Refused(_) | State::Spent(_) | State::Broken(_)
    )
}

fn refuse(registry: &mut Registry, probes: &[Hanging<Arc<Active>>], reason: &str) {
    for hanging in probes {
        registry.set_state(hanging.probe.id, State::Refused(reason.to_owned()));
    }
}
