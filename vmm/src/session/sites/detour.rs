//! Detours that stand in the guest's text: leading the guest to a stub, and taking its jump out.

use super::{SiteKey, SiteState, Sites, Wanted};
use crate::reserved::Slots;
use crate::session::reasons::{NoSpace, OnTrap};
use crate::session::registry::Registry;
use crate::session::relocation::{Candidate, Relocation};
use crate::session::report::ProbeState;
use crate::session::stop::StoppedGuest;
use crate::session::text::GuestText;
use probe_engine::addr::Gva;
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::detour::stub::Stub;
use probe_engine::detour::work::Work;
use probe_engine::insn::copy::jump;
use probe_engine::linux::ftrace_site::{FTRACE_SITE, ftrace_nop};
use probe_engine::probe::table::Anchor;
use std::ops::Range;

/// A jump in the guest's text, and the stub that it leads to.
pub(super) struct Detour {
    slots: Slots,
    stub: Stub,
    works: Vec<Work>,
    /// What its jump takes the place of, where that is not ftrace's nop.
    relocated: Option<RelocatedCode>,
    /// The instruction behind ftrace's nop, where it runs in the stub.
    next: Option<RelocatedCode>,
}

/// What is left of a detour that was taken down.
pub(super) struct LeftDetour {
    /// False when the guest has written over its jump.
    pub(super) is_lifted: bool,
    /// Its stub, and the instructions in it that lead back to the text.
    pub(super) stub: Option<(Range<Gva>, RelocatedCode)>,
}

impl Detour {
    /// The text that the detour at `at` takes the place of.
    pub(super) fn range(&self, at: Gva) -> Range<Gva> {
        match (&self.relocated, &self.next) {
            (Some(relocated), _) => relocated.range(),
            (None, Some(next)) => at..next.end(),
            (None, None) => at..at.add(FTRACE_SITE),
        }
    }

    /// Takes its jump out at `at`. Its stub stays as it is: who is inside is counted there, but where its probes `move`
    /// behind the nop.
    pub(super) fn take_down(self, at: Gva, moves: bool, guest: &mut StoppedGuest<'_>) -> LeftDetour {
        let mut stub = None;
        if let Ok(reserved) = guest.reserved() {
            let entry = reserved.address(self.slots);
            if moves {
                let (gate, shut) = self.stub.shut();
                // It can be written: it was.
                let _ = reserved.overwrite(guest.stop.ram, self.slots, gate, &shut);
                for passed in self.stub.passed(entry) {
                    guest.table.leave(passed, at);
                }
            }
            let code = entry..entry.add(self.stub.code.len() as u64);
            stub = self.relocated.or(self.next).map(|relocated| (code, relocated));
        }
        guest.retire(self.slots);
        LeftDetour { is_lifted: guest.lift(at, FTRACE_SITE), stub }
    }
}

impl Sites {
    /// Has a detour serve what is `wanted` at `at`, if one can: in place of ftrace's nop, or of instructions that make
    /// [room](Relocation). Otherwise none stands there afterwards.
    pub(super) fn divert(
        &mut self,
        at: Gva,
        wanted: &Wanted,
        registry: &mut Registry,
        guest: &mut StoppedGuest<'_>,
    ) -> bool {
        if wanted.is_early {
            return false;
        }
        let site = self.sites.entry(SiteKey::kernel(at)).or_default();
        match self.detours.works(at, wanted, &site.relocation, registry) {
            Some(works) => match self.lead(at, works, wanted, guest) {
                Ok(()) => {
                    let probes = wanted.probes.iter().map(|attached| attached.probe.id);
                    probes.for_each(|id| registry.set_state(id, ProbeState::Optimized(at)));
                    return true;
                }
                Err(reason) => {
                    let probes = wanted.probes.iter().map(|attached| attached.probe.id);
                    probes.for_each(|id| registry.stays_trapped(id, reason.clone()));
                }
            },
            None if matches!(site.state, SiteState::Detour(_)) => {
                // What the guest has written there is found when the trap is planted.
                self.take_down(at, false, guest);
            }
            None => {}
        }
        false
    }

    /// Leads the guest from `at` to a stub that does `works`, if it is not led there already.
    ///
    /// # Errors
    /// Why not. Nothing of ours stands there then.
    fn lead(
        &mut self,
        at: Gva,
        works: Vec<Work>,
        wanted: &Wanted,
        guest: &mut StoppedGuest<'_>,
    ) -> Result<(), OnTrap> {
        let key = SiteKey::kernel(at);
        let is_there = self
            .sites
            .get(&key)
            .is_some_and(|site| matches!(&site.state, SiteState::Detour(detour) if detour.works == works));
        if !is_there {
            let was_trap = self.sites.get(&key).is_some_and(|site| matches!(site.state, SiteState::Trap(_)));
            // What the guest has written over a trap is found when the jump is written.
            if !self.take_down(at, false, guest) && !was_trap {
                return Err(OnTrap::Written);
            }
            let detour = self.stand(at, &works, wanted, guest)?;
            self.sites.entry(key).or_default().state = SiteState::Detour(Box::new(detour));
        }
        self.detours.know(at, &wanted.probes, works, guest.running.map.slide());
        Ok(())
    }

    /// Leads the guest from `at`, ftrace's nop or more, to a new stub.
    fn stand(
        &mut self,
        at: Gva,
        works: &[Work],
        wanted: &Wanted,
        guest: &mut StoppedGuest<'_>,
    ) -> Result<Detour, OnTrap> {
        let assembled_for = self.detours.guest()?;
        self.detours.follow_calls(works, guest.reserved()?, guest.stop.ram)?;
        let is_nop = wanted.probes.iter().any(|attached| attached.anchor == Anchor::Nop);
        let relocation = self.sites.get(&SiteKey::kernel(at)).map(|site| &site.relocation);
        let candidate = if is_nop {
            None
        } else {
            Some(relocation.and_then(Relocation::candidate).ok_or(OnTrap::NotLookedAt)?)
        };
        let original = match candidate {
            Some(candidate) => live(candidate, &guest.text())?,
            None => live_nop(at, &guest.text())?,
        };
        let relocated = candidate.map(|candidate| candidate.relocated.clone());
        let next = wanted.function.next.filter(|_| is_nop && self.relocations.sees_faults());
        let next = next.and_then(|next| next.read(at.add(FTRACE_SITE), &guest.text()));
        let next = next.filter(|next| self.detours.may_run(next).is_ok());
        let length = relocated
            .as_ref()
            .map_or_else(|| Stub::most_bytes(works), |relocated| Stub::most_bytes_over(relocated, works));
        let slots = guest.allocate(length, self.detours.instances())?;
        let entry = guest.reserved()?.address(slots);
        let stub = match &relocated {
            Some(relocated) => Stub::over(&assembled_for, entry, relocated, works),
            None => Stub::assemble(&assembled_for, entry, at, next.as_ref(), works),
        };
        let written = stub.map_err(OnTrap::from).and_then(|stub| {
            guest.reserved()?.write(guest.stop.ram, slots, &stub.code).map_err(NoSpace::from)?;
            guest.replace(at, original, jump(at, entry)?)?;
            Ok(stub)
        });
        match written {
            Ok(stub) => {
                let slots = guest.shrink(slots, stub.code.len());
                guest.table.add_waits(stub.waits(entry));
                let moved = relocated.iter().chain(&next);
                guest.table.add_moved(moved.flat_map(|relocated| stub.moved(entry, relocated)));
                Ok(Detour { slots, stub, works: works.to_vec(), relocated, next })
            }
            Err(reason) => {
                guest.retire(slots);
                Err(reason)
            }
        }
    }
}

/// The nop of ftrace's that the jump takes the place of.
fn live_nop(at: Gva, text: &GuestText<'_>) -> Result<[u8; FTRACE_SITE as usize], OnTrap> {
    let mut bytes = [0; FTRACE_SITE as usize];
    text.read(at, &mut bytes)?;
    ftrace_nop(&bytes).ok_or(OnTrap::NopChanged)
}

/// The bytes that the jump takes the place of, if all are still those that were looked at.
fn live(candidate: &Candidate, text: &GuestText<'_>) -> Result<[u8; FTRACE_SITE as usize], OnTrap> {
    let mut bytes = vec![0; candidate.bytes.len()];
    text.read(candidate.relocated.at(), &mut bytes)?;
    let first = bytes.first_chunk().filter(|_| bytes == candidate.bytes);
    first.copied().ok_or(OnTrap::TextChanged)
}
