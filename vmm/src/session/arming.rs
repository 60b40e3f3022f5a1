//! Which probe stands where in the running guest, and every change of that.

use super::stage::KernelMap;
use crate::memory::GuestRam;
use crate::text::{Patch, PatchError, patch};
use crate::world::Parked;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::insn::decode::instruction_at;
use probe_engine::insn::plan::{Plan, plan, skip_endbr};
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::memory::PhysMemory;
use probe_engine::probe::hit::INT3;
use probe_engine::probe::resolve::Probe;
use probe_engine::probe::table::{Internal, ProbeId, ProbeSet, UserProbes};
use std::collections::BTreeMap;
use std::ops::Range;

/// What has become of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The guest has not come far enough to arm it.
    Waiting,
    /// A trap byte stands for it at this guest-virtual address.
    Armed(Gva),
    /// The live text did not allow it; why.
    Refused(String),
    /// It stood here until the guest freed the text.
    Gone(Gva),
    /// It stood here until the guest changed the text under it.
    Overwritten(Gva),
}

/// The trap bytes in the guest's text.
pub(super) struct Arming {
    kernel: Landmarks,
    probes: Vec<Probe>,
    states: Vec<State>,
    planted: BTreeMap<Gva, Planted>,
}

/// The text of a guest that stands still, in a kernel whose place is known.
pub(super) struct StoppedText<'a> {
    pub(super) parked: &'a Parked<'a>,
    pub(super) ram: &'a GuestRam,
    pub(super) map: &'a KernelMap,
}

/// A trap byte and what it hides.
struct Planted {
    gpa: Gpa,
    link: Gva,
    original: u8,
}

/// What `call __fentry__` is turned into by ftrace, early in boot. Nothing patches it again except ftrace itself.
const FTRACE_NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

impl Arming {
    pub(super) fn new(kernel: Landmarks, probes: Vec<Probe>) -> Self {
        let states = vec![State::Waiting; probes.len()];
        Self { kernel, probes, states, planted: BTreeMap::new() }
    }

    /// The probes with what has become of them.
    pub(super) fn into_states(self) -> impl Iterator<Item = (ProbeId, Probe, State)> {
        (0..).map(ProbeId).zip(self.probes).zip(self.states).map(|((id, probe), state)| (id, probe, state))
    }

    /// What has become of each probe.
    pub(super) fn states(&self) -> &[State] {
        &self.states
    }

    /// Arms what is final now: function entries that ftrace has turned into nops. All other text may still be
    /// changed by alternatives and their like.
    pub(super) fn arm_early(&mut self, text: &StoppedText<'_>, set: &mut ProbeSet) {
        for id in 0..self.probes.len() {
            let _ = self.arm(id, true, text, set);
        }
        self.plant_internal(Internal::Panic, text, set);
    }

    /// Arms the rest; what cannot be armed now never will be.
    pub(super) fn arm_late(&mut self, text: &StoppedText<'_>, set: &mut ProbeSet) {
        for id in 0..self.probes.len() {
            if let Err(reason) = self.arm(id, false, text, set)
                && let Some(state) = self.states.get_mut(id)
            {
                *state = State::Refused(reason);
            }
        }
        self.plant_internal(Internal::Panic, text, set);
        self.plant_internal(Internal::FreeInitText, text, set);
    }

    /// Arms probe number `id` if it waits. With `only_nops`, everything else is left for later.
    fn arm(
        &mut self,
        id: usize,
        only_nops: bool,
        text: &StoppedText<'_>,
        set: &mut ProbeSet,
    ) -> Result<(), String> {
        let (Some(probe), Some(State::Waiting)) = (self.probes.get(id), self.states.get(id)) else {
            return Ok(());
        };
        let (link, live) = self.live_function(probe, text)?;
        let at = text.map.gva(link);
        let bytes = live.from(at);
        if only_nops && !bytes.starts_with(&FTRACE_NOP) {
            return Ok(());
        }
        let before = instruction_at(&live.bytes, live.start, at).map_err(|e| e.to_string())?.previous;
        let plan = plan(bytes, at, before.as_ref()).map_err(|e| e.to_string())?;
        self.plant(link, text).map_err(|e| e.to_string())?;
        add_probe(set, at, plan, ProbeId(id as u32));
        if let Some(state) = self.states.get_mut(id) {
            *state = State::Armed(at);
        }
        Ok(())
    }

    /// The function around `probe` as it is in memory, and where the probe belongs in it (link-time address).
    fn live_function(&self, probe: &Probe, text: &StoppedText<'_>) -> Result<(Gva, LiveText), String> {
        let live = self.live_text(&probe.function, text).ok_or("the kernel's text cannot be read")?;
        let at = match probe.link == probe.function.start {
            true => skip_endbr(&live.bytes, probe.link),
            false => probe.link,
        };
        Ok((at, live))
    }

    /// What the guest believes its text to be: memory, with our trap bytes replaced by what they hide.
    fn live_text(&self, link: &Range<Gva>, text: &StoppedText<'_>) -> Option<LiveText> {
        /// No function is longer; a symbol table that says so is wrong.
        const LONGEST: u64 = 1 << 20;
        let length = link.end.offset_from(link.start)?.min(LONGEST) as usize;
        let start = text.map.gva(link.start);
        let mut bytes = vec![0; length];
        text.ram.read(text.map.gpa(link.start), &mut bytes).ok()?;
        for (at, planted) in self.planted.range(start..start.add(length as u64)) {
            if let Some(byte) = bytes.get_mut(at.offset_from(start)? as usize) {
                *byte = planted.original;
            }
        }
        Some(LiveText { start, bytes })
    }

    /// Puts a trap byte at `link`, once.
    fn plant(&mut self, link: Gva, text: &StoppedText<'_>) -> Result<(), PatchError> {
        let (at, gpa) = (text.map.gva(link), text.map.gpa(link));
        if self.planted.contains_key(&at) {
            return Ok(());
        }
        let mut original = [0];
        text.ram.read(gpa, &mut original)?;
        let [original] = original;
        patch(text.parked, text.ram, &Patch { at: gpa, expect: original, write: INT3 })?;
        self.planted.insert(at, Planted { gpa, link, original });
        Ok(())
    }

    /// Plants a trap of our own, once, and only where nothing can change the text any more: at `Panic` and
    /// `FreeInitText` these are the entries of functions.
    fn plant_internal(&mut self, internal: Internal, text: &StoppedText<'_>, set: &mut ProbeSet) {
        let function = match internal {
            Internal::Panic => self.kernel.panic,
            Internal::FreeInitText => self.kernel.free_init,
        };
        let Some(link) = function else { return };
        let mut entry = [0; 8];
        if text.ram.read(text.map.gpa(link), &mut entry).is_err() {
            return;
        }
        let link = skip_endbr(&entry, link);
        let at = text.map.gva(link);
        if set.get(at).is_none_or(|site| site.internal.is_none()) && self.plant(link, text).is_ok() {
            set.site_mut(at).internal = Some(internal);
        }
    }

    /// Takes our own trap out that was just reached at `at`.
    pub(super) fn reached(&mut self, at: Gva, parked: &Parked<'_>, ram: &GuestRam, set: &mut ProbeSet) {
        match set.get(at).map(|site| site.user.is_some()) {
            Some(true) => set.site_mut(at).internal = None,
            Some(false) => {
                set.remove(at);
                let _ = self.lift(at, parked, ram);
            }
            None => {}
        }
    }

    /// Retires every site in init text: the guest is about to free it, and fills it with 0xCC.
    pub(super) fn retire_init_text(&mut self, parked: &Parked<'_>, ram: &GuestRam, set: &mut ProbeSet) {
        let doomed: Vec<Gva> = self
            .planted
            .iter()
            .filter(|(_, p)| self.kernel.is_init_text(p.link))
            .map(|(at, _)| *at)
            .collect();
        for at in doomed {
            set.remove(at);
            let lifted = self.lift(at, parked, ram);
            self.mark(at, || if lifted { State::Gone(at) } else { State::Overwritten(at) });
        }
    }

    /// Restores all text at the end. A site that the guest has changed is left as it is, and reported.
    pub(super) fn disarm(&mut self, parked: &Parked<'_>, ram: &GuestRam) {
        let all: Vec<Gva> = self.planted.keys().copied().collect();
        for at in all {
            if !self.lift(at, parked, ram) {
                self.mark(at, || State::Overwritten(at));
            }
        }
    }

    /// Restores the byte at `at`, unless the guest has written there.
    fn lift(&mut self, at: Gva, parked: &Parked<'_>, ram: &GuestRam) -> bool {
        let Some(planted) = self.planted.remove(&at) else { return false };
        patch(parked, ram, &Patch { at: planted.gpa, expect: INT3, write: planted.original }).is_ok()
    }

    fn mark(&mut self, at: Gva, state: impl Fn() -> State) {
        self.states.iter_mut().filter(|s| **s == State::Armed(at)).for_each(|s| *s = state());
    }
}

/// A stretch of text as it is now.
struct LiveText {
    start: Gva,
    bytes: Vec<u8>,
}

impl LiveText {
    /// The bytes from `at` on.
    fn from(&self, at: Gva) -> &[u8] {
        let offset = at.offset_from(self.start).unwrap_or(u64::MAX);
        usize::try_from(offset).ok().and_then(|o| self.bytes.get(o..)).unwrap_or_default()
    }
}

/// Hangs one more probe on the site at `at`.
fn add_probe(set: &mut ProbeSet, at: Gva, plan: Plan, id: ProbeId) {
    let user = set.site_mut(at).user.get_or_insert(UserProbes { probes: Vec::new(), plan });
    user.probes.push(id);
}
