//! Traps that stand in the guest's text: putting one in with its way past, and taking it down.

use super::{SiteKey, SiteState, Sites, Wanted};
use crate::events::RING;
use crate::reserved::Slots;
use crate::session::reasons::{NoSpace, NoTrap};
use crate::session::stop::StoppedGuest;
use probe_engine::addr::Gva;
use probe_engine::gate::Form;
use probe_engine::insn::copy::{Ending, OutOfLine, SLOT};
use probe_engine::insn::plan::StepPlan;
use probe_engine::probe::once::OneShot;
use probe_engine::probe::pace::HoldMode;
use probe_engine::probe::table::{Anchor, CopyEnd, StepMethod};
use std::sync::Arc;

/// A trap in the guest's text, and how it is passed.
pub(super) struct PlantedTrap {
    step: StepMethod,
    slot: Option<Slots>,
    /// Whether its copy ends in a trap.
    traps_again: bool,
}

impl PlantedTrap {
    /// Takes it out at `at`. False when the guest has written there.
    pub(super) fn take_down(self, at: Gva, guest: &mut StoppedGuest<'_>) -> bool {
        guest.table.remove(at);
        self.retire(guest);
        match &self.step {
            StepMethod::PutBack(once) if once.is_done() => {
                guest.patches.forget(at, 1);
                true
            }
            _ => guest.lift(at, 1),
        }
    }

    /// Nobody new comes to its copy, if there is one.
    pub(super) fn retire(&self, guest: &mut StoppedGuest<'_>) {
        if let Some(slot) = self.slot {
            guest.retire(slot);
        }
    }
}

impl Sites {
    /// Sees to it that a trap stands at `at` and that it is passed in the right way.
    pub(super) fn put_in(
        &mut self,
        at: Gva,
        wanted: &Wanted,
        guest: &mut StoppedGuest<'_>,
    ) -> Result<StepMethod, NoTrap> {
        let probes = &wanted.probes;
        let is_once = wanted.internal.is_none() && probes.iter().all(|p| p.probe.is_put_back());
        let has_post = probes.iter().any(|p| p.probe.has_post());
        let only_copy = self.accesses_device(at);
        let schedule = self.schedule.map(|schedule| guest.running.map.gva(schedule));
        for (gate, mode) in probes.iter().flat_map(|p| p.probe.gates()) {
            guest.place(gate, Form::Spins, None, self.detours.instances());
            if mode == HoldMode::Task && schedule.is_some() {
                guest.place(gate, Form::Yields, schedule, self.detours.instances());
            }
        }
        // A vCPU that stands at the site has not touched memory yet.
        let stands = probes.iter().any(|p| p.probe.stands());
        if probes.iter().filter(|p| p.probe.plan.records()).count() > RING {
            return Err(NoTrap::TooMany);
        }
        if let Some(trap) = self.trap(at) {
            let stays = match &trap.step {
                StepMethod::Emulate(emulation) => !(only_copy || stands && emulation.has_memory()),
                StepMethod::Copy(_) => trap.traps_again == has_post,
                StepMethod::PutBack(once) => is_once && !once.is_done(),
            };
            if stays {
                return Ok(trap.step.clone());
            }
            // It needs another way past: it is taken down and put up again in the same stop.
            self.take_down(at, false, guest);
        }
        // ftrace's nop was seen just now; anything else in the live text has to be proven an instruction.
        let plan = if is_once && probes.iter().all(|p| p.anchor == Anchor::Nop) {
            None
        } else {
            let plan = |only_copy| guest.text().plan(&wanted.function, at, only_copy);
            Some(match plan(only_copy)? {
                StepPlan::Emulate(emulation) if stands && emulation.has_memory() => plan(true)?,
                plan => plan,
            })
        };
        let (step, slot) = match plan.filter(|_| !is_once) {
            None => (None, None),
            Some(StepPlan::Emulate(emulation)) => (Some(StepMethod::Emulate(emulation)), None),
            Some(StepPlan::OutOfLine(_)) if !self.relocations.sees_faults() => {
                return Err(NoTrap::FaultsUnseen);
            }
            Some(StepPlan::OutOfLine(copy)) => {
                let slot = self.copy(&copy, has_post, guest)?;
                (Some(StepMethod::Copy(guest.reserved()?.address(slot))), Some(slot))
            }
        };
        let step = match (guest.plant(at), step) {
            (Ok(_), Some(step)) => step,
            (Ok((gpa, original)), None) => StepMethod::PutBack(Arc::new(OneShot::new(gpa, original))),
            (Err(error), _) => {
                if let Some(slot) = slot {
                    guest.retire(slot);
                }
                return Err(error.into());
            }
        };
        let trap = PlantedTrap { step: step.clone(), slot, traps_again: has_post };
        self.sites.entry(SiteKey::kernel(at)).or_default().state = SiteState::Trap(trap);
        Ok(step)
    }

    /// The trap at `at`, if one stands there.
    fn trap(&self, at: Gva) -> Option<&PlantedTrap> {
        match &self.sites.get(&SiteKey::kernel(at))?.state {
            SiteState::Trap(trap) => Some(trap),
            SiteState::Free | SiteState::Detour(_) => None,
        }
    }

    /// Writes `copy` to a slot.
    fn copy(&self, copy: &OutOfLine, has_post: bool, guest: &mut StoppedGuest<'_>) -> Result<Slots, NoTrap> {
        let slot = guest.allocate(SLOT, self.detours.instances())?;
        let reserved = guest.reserved()?;
        let entry = reserved.address(slot);
        let ending = if has_post { Ending::Trap } else { Ending::Jump };
        let code = copy.place(entry, ending).map_err(NoTrap::from);
        let written =
            code.and_then(|code| Ok(reserved.write(guest.stop.ram, slot, &code).map_err(NoSpace::from)?));
        if let Err(reason) = written {
            guest.retire(slot);
            return Err(reason);
        }
        let end = has_post.then(|| (copy.trap(entry), CopyEnd { site: copy.at(), next: copy.next() }));
        guest.table.add_copy(entry, copy.at(), end);
        Ok(slot)
    }
}
