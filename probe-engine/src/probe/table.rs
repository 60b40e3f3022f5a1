//! The immutable table that a hit is looked up in: address -> what stands there.
//!
//! `P` is what is attached to a site for a user: the engine only keeps it in order.

use super::once::OneShot;
use super::pace::GateId;
use crate::addr::Gva;
use crate::insn::INT3;
use crate::insn::copy::SLOT;
use crate::insn::emulate::Emulation;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;

/// Names one probe of a session: its place in the order of registration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProbeId(pub u32);

/// One trapped instruction and everything that is attached to it: one patch, however many probes.
#[derive(Clone, Debug)]
pub struct Site<P> {
    /// What users asked for, in order of registration.
    pub probes: Vec<Attached<P>>,
    /// What we need ourselves.
    pub internal: Option<Internal>,
    /// How the probed instruction is passed.
    pub step: StepMethod,
}

/// A probe at a site.
#[derive(Clone, Debug)]
pub struct Attached<P> {
    /// The probe.
    pub probe: P,
    /// What keeps it in its place.
    pub anchor: Anchor,
}

/// What keeps a probe in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Anchor {
    /// Text that the guest leaves as it is.
    Firm,
    /// One of ftrace's nops: it moves behind that when the guest wants it.
    Nop,
    /// Behind the nop at this address, which the guest has wanted. A vCPU that was counted there on its way to here
    /// is not counted again.
    Behind(Gva),
}

/// How the guest gets past a probed instruction.
#[derive(Clone, Debug)]
pub enum StepMethod {
    /// The host does what it would have done.
    Emulate(Emulation),
    /// The guest runs a copy of it in a reserved page, from this address on.
    Copy(Gva),
    /// Its byte is put back at the first hit, and it runs where it stands.
    PutBack(Arc<OneShot>),
}

/// The trap byte behind a copy that has a post handler waiting for its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyEnd {
    /// The probed instruction.
    pub site: Gva,
    /// The instruction behind it.
    pub next: Gva,
}

/// Traps that the VMM plants for itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Internal {
    /// The kernel is about to free its init text.
    FreeInitText,
    /// The kernel has sealed itself, and is about to run the first program.
    Sealed,
    /// The kernel begins to panic.
    Panic,
    /// The kernel is about to report something about itself.
    Report,
    /// The kernel is tainted, at the end of a report or by what it loads.
    Tainted,
    /// It has formatted its last message, and calls notifiers: its panic's, or others'.
    PanicTold,
    /// A module's text is final, and nothing of it has run yet.
    ModuleReady,
    /// A module's init text is about to be freed.
    ModuleInitDone,
    /// A module is about to be freed.
    ModuleGone,
    /// The kernel's first task is about to start drivers, and may sleep.
    Drivers,
    /// A program is about to run in a task that may sleep.
    Exec,
    /// A module comes or goes, and its tracepoints with it.
    ModuleTracepoints,
    /// The guest's ftrace is about to look at its sites, and to change them.
    PatchBegin,
    /// It has queued its last change.
    PatchEnd,
    /// A fault in kernel mode is about to be fixed up or reported.
    Fault,
    /// A page fault in kernel mode is about to be reported, and nobody has looked for a fix-up.
    PageFault,
    /// The stack of a task is about to be freed.
    TaskGone,
}

impl Internal {
    /// Whether the vCPU waits there for the control thread. The others it answers by itself.
    #[must_use]
    pub fn holds(self) -> bool {
        !matches!(self, Self::Fault | Self::PageFault | Self::TaskGone)
    }
}

/// How many trampolines one owner takes at least: rows of the table of owners.
pub const TRAMPOLINE_ROW: u32 = 16;

/// What code of ours in the guest's reserved pages is, at one address of it. It stays so when its site goes: a task may
/// be inside.
#[derive(Clone, Copy, Debug)]
enum OwnCode {
    /// The copy of an instruction begins, whose original is here.
    Copy(Gva),
    /// The trap byte behind a copy.
    CopyEnd(CopyEnd),
    /// An instruction in a detour, moved from here.
    Moved(Gva),
    /// A detour traps when it finds no room in its ring.
    RingFull,
    /// The trap behind the code at which a task was held.
    Gate(GateId),
    /// The trap of the gate at which the guest makes calls for us.
    CallGate,
}

/// All armed sites of the kernel's address space. A new set replaces the old one only while every vCPU is parked.
#[derive(Clone, Debug)]
pub struct ProbeSet<P> {
    sites: HashMap<Gva, Arc<Site<P>>, BuildHasherDefault<AddressHasher>>,
    /// Where we once had a trap byte: a vCPU may have met it just before it was taken out. Whoever takes out many says
    /// [from time to time](Self::retain_removed) which of them are still of interest.
    removed: HashSet<Gva, BuildHasherDefault<AddressHasher>>,
    own_code: HashMap<Gva, OwnCode, BuildHasherDefault<AddressHasher>>,
    /// Detours whose probes have moved behind their nop: where a CPU is that was counted there, and the nop.
    left: Vec<(Range<Gva>, Gva)>,
    trampolines: Range<Gva>,
    /// Whose each row of trampolines is.
    owners: Vec<Option<P>>,
}

impl<P> Default for ProbeSet<P> {
    fn default() -> Self {
        Self {
            sites: HashMap::default(),
            removed: HashSet::default(),
            own_code: HashMap::default(),
            left: Vec::new(),
            trampolines: Gva(0)..Gva(0),
            owners: Vec::new(),
        }
    }
}

impl<P> ProbeSet<P> {
    /// Puts `site` at `at`, in place of what was there.
    pub fn insert(&mut self, at: Gva, site: Site<P>) {
        self.removed.remove(&at);
        self.sites.insert(at, Arc::new(site));
    }

    /// Takes the site at `at` out; hits on their way to us are then stale.
    pub fn remove(&mut self, at: Gva) -> Option<Arc<Site<P>>> {
        let site = self.sites.remove(&at)?;
        self.removed.insert(at);
        Some(site)
    }

    /// Where sites were that have been taken out.
    pub fn removed(&self) -> impl Iterator<Item = Gva> {
        self.removed.iter().copied()
    }

    /// Whether one was at `at`.
    #[must_use]
    pub fn was_removed(&self, at: Gva) -> bool {
        self.removed.contains(&at)
    }

    /// Forgets the others than those from which a hit `may_come`.
    pub fn retain_removed(&mut self, may_come: impl Fn(Gva) -> bool) {
        self.removed.retain(|at| may_come(*at));
    }

    /// The site at `at`.
    #[must_use]
    pub fn get(&self, at: Gva) -> Option<&Site<P>> {
        self.sites.get(&at).map(Arc::as_ref)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Site<P>> {
        self.sites.values().map(Arc::as_ref)
    }

    /// How many sites there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sites.len()
    }

    /// Whether there is no site.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sites.is_empty()
    }

    /// At `copy` is what stands at `site`, with a trap byte behind it if `end` says so.
    pub fn add_copy(&mut self, copy: Gva, site: Gva, end: Option<(Gva, CopyEnd)>) {
        self.own_code.insert(copy, OwnCode::Copy(site));
        self.own_code.extend(end.map(|(at, end)| (at, OwnCode::CopyEnd(end))));
    }

    /// All copies, each with its original.
    pub fn copies(&self) -> impl Iterator<Item = (Gva, Gva)> {
        self.own_code.iter().filter_map(|(at, code)| match code {
            OwnCode::Copy(original) => Some((*at, *original)),
            OwnCode::CopyEnd(_)
            | OwnCode::Moved(_)
            | OwnCode::RingFull
            | OwnCode::Gate(_)
            | OwnCode::CallGate => None,
        })
    }

    /// A task that was held at `gate`, and may go on, traps at `at`.
    pub fn add_gate(&mut self, at: Gva, gate: GateId) {
        self.own_code.insert(at, OwnCode::Gate(gate));
    }

    /// The guest asks at `at` which call to make.
    pub fn add_call_gate(&mut self, at: Gva) {
        self.own_code.insert(at, OwnCode::CallGate);
    }

    /// Instructions that detours have moved: where each is, and its original.
    pub fn add_moved(&mut self, moved: impl IntoIterator<Item = (Gva, Gva)>) {
        self.own_code.extend(moved.into_iter().map(|(at, original)| (at, OwnCode::Moved(original))));
    }

    /// Where a detour traps that finds no room in its ring.
    pub fn add_waits(&mut self, waits: impl IntoIterator<Item = Gva>) {
        self.own_code.extend(waits.into_iter().map(|at| (at, OwnCode::RingFull)));
    }

    /// The probes of the detour at `nop` have moved behind that. A CPU in `passed` was counted, or will be, before it
    /// comes there.
    pub fn leave(&mut self, passed: Range<Gva>, nop: Gva) {
        self.left.push((passed, nop));
    }

    /// The nop whose probes have counted a CPU that is at `at`.
    #[must_use]
    pub fn left(&self, at: Gva) -> Option<Gva> {
        self.left.iter().find(|(passed, _)| at.is_in(passed)).map(|(_, nop)| *nop)
    }

    /// Forgets the copies and detours that are not `in_use`: nobody can be inside any more.
    pub fn retain_copies(&mut self, in_use: impl Fn(Gva) -> bool) {
        self.own_code.retain(|at, _| in_use(*at));
        self.left.retain(|(passed, _)| in_use(passed.start));
    }

    /// The original of the instruction at `copy`, if that is a copy or in a detour.
    #[must_use]
    pub fn copied_from(&self, copy: Gva) -> Option<Gva> {
        match self.own_code.get(&copy)? {
            OwnCode::Copy(original) | OwnCode::Moved(original) => Some(*original),
            OwnCode::CopyEnd(_) | OwnCode::RingFull | OwnCode::Gate(_) | OwnCode::CallGate => None,
        }
    }

    /// What `at` stands for when it is in a copy: the original instruction, or from its end on the one behind that.
    #[must_use]
    pub fn original(&self, at: Gva) -> Option<Gva> {
        let inside = at.0 % SLOT as u64;
        match self.own_code.get(&Gva(at.0 - inside))? {
            OwnCode::Copy(original) => Some(original.add(inside)),
            OwnCode::CopyEnd(_)
            | OwnCode::Moved(_)
            | OwnCode::RingFull
            | OwnCode::Gate(_)
            | OwnCode::CallGate => None,
        }
    }

    /// Whether `at` is a return trampoline.
    #[must_use]
    pub fn is_trampoline(&self, at: Gva) -> bool {
        at.is_in(&self.trampolines)
    }

    /// Where the return trampolines are: one trap byte each.
    pub fn set_trampolines(&mut self, trampolines: Range<Gva>) {
        self.trampolines = trampolines;
    }

    /// The number of the trampoline at `at`, and whose it is.
    #[must_use]
    pub fn owner(&self, at: Gva) -> Option<(u32, &P)> {
        let number = at.0.wrapping_sub(self.trampolines.start.0) as u32;
        let owner = self.owners.get((number / TRAMPOLINE_ROW) as usize).filter(|_| self.is_trampoline(at))?;
        Some((number, owner.as_ref()?))
    }

    /// Whose the trampolines are. One owner may be named several times.
    pub fn owners(&self) -> impl Iterator<Item = &P> {
        self.owners.iter().flatten()
    }

    /// No trampoline belongs to anyone any more.
    pub fn disown_all(&mut self) {
        self.owners.clear();
    }

    /// The trampolines `numbers`, whole [rows](TRAMPOLINE_ROW), belong to `owner` from now on.
    pub fn own(&mut self, numbers: Range<u32>, owner: &P)
    where
        P: Clone,
    {
        let rows = numbers.start / TRAMPOLINE_ROW..numbers.end.div_ceil(TRAMPOLINE_ROW);
        let end = rows.end as usize;
        if self.owners.len() < end {
            self.owners.resize(end, None);
        }
        for row in self.owners.iter_mut().take(end).skip(rows.start as usize) {
            *row = Some(owner.clone());
        }
    }

    /// Whose breakpoint is the `int3` that was executed at `at`? `byte_now` reads what memory holds there, and
    /// is asked only when the answer depends on it.
    pub fn judge(&self, at: Gva, byte_now: impl FnOnce() -> Option<u8>) -> Verdict<'_, P> {
        if let Some(site) = self.sites.get(&at) {
            return Verdict::Ours(site);
        }
        if self.is_trampoline(at) {
            return self.owner(at).map_or(Verdict::Foreign, |(number, owner)| Verdict::Return(number, owner));
        }
        match self.own_code.get(&at) {
            Some(OwnCode::CopyEnd(end)) => Verdict::CopyEnd(*end),
            Some(OwnCode::RingFull) => Verdict::RingFull,
            Some(OwnCode::Gate(gate)) => Verdict::Gate(*gate),
            Some(OwnCode::CallGate) => Verdict::CallGate,
            _ if self.removed.contains(&at) && byte_now() != Some(INT3) => Verdict::Stale,
            Some(OwnCode::Copy(_) | OwnCode::Moved(_)) | None => Verdict::Foreign,
        }
    }
}

/// Whose breakpoint it is.
#[derive(Debug)]
pub enum Verdict<'a, P> {
    /// One of our sites.
    Ours(&'a Site<P>),
    /// The end of a copy that a post handler waits for.
    CopyEnd(CopyEnd),
    /// A function returns through the trampoline of this number, of this owner.
    Return(u32, &'a P),
    /// A detour has found its ring full, and waits for room.
    RingFull,
    /// A task was held at this gate, and may go on.
    Gate(GateId),
    /// The guest asks which call to make for us.
    CallGate,
    /// Ours once: it was taken out while the hit was on its way. The instruction runs again from memory.
    Stale,
    /// The guest's own: it gets its exception, once.
    Foreign,
}

/// Spreads addresses by one multiplication (Fibonacci hashing): no attacker chooses the keys, and a hit should
/// not pay for a keyed hash.
#[derive(Default)]
pub struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0.rotate_left(20)
    }
}

#[cfg(test)]
mod tests;
