//! Traps that stand in the guest's text: putting one in with its way past, and taking it down.

use super::Arming;
use super::wanted::Wanted;
use crate::events::RING;
use crate::probe::Active;
use crate::reserved::Slots;
use crate::session::reasons::{NoSpace, NoTrap};
use crate::session::stop::{Stop, allocate};
use crate::session::text::RunningKernel;
use probe_engine::addr::Gva;
use probe_engine::insn::copy::{Ending, OutOfLine, SLOT};
use probe_engine::insn::plan::StepPlan;
use probe_engine::probe::once::OneShot;
use probe_engine::probe::table::{Anchor, Attached, CopyEnd, ProbeSet, StepMethod};
use std::sync::Arc;

/// A trap in the guest's text, and how it is passed.
pub(super) struct PlantedTrap {
    step: StepMethod,
    slot: Option<Slots>,
    /// Whether its copy ends in a trap.
    traps_again: bool,
}

impl Arming {
    /// Takes down what stands at `at`. False when the guest has written there.
    pub(super) fn take_down(&mut self, at: Gva, stop: &Stop<'_>) -> bool {
        let Some(standing) = self.standing.remove(&at) else { return true };
        self.retire(standing.slot);
        match &standing.step {
            StepMethod::PutBack(once) if once.is_done() => {
                self.traps.forget(at, 1);
                true
            }
            _ => self.traps.lift(stop.parked, stop.ram, at, 1),
        }
    }

    /// Forgets what stood at `lost`: the text that it was in is no more.
    pub(in crate::session) fn forget(&mut self, lost: &[Gva], set: &mut ProbeSet<Arc<Active>>) {
        for at in lost {
            set.remove(*at);
            self.device.remove(at);
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
    pub(super) fn put_in(
        &mut self,
        at: Gva,
        wanted: &Wanted,
        probes: &[Attached<Arc<Active>>],
        running: &RunningKernel,
        stop: &Stop<'_>,
        set: &mut ProbeSet<Arc<Active>>,
    ) -> Result<StepMethod, NoTrap> {
        let is_once = wanted.internal.is_none() && probes.iter().all(|p| p.probe.is_put_back());
        let has_post = probes.iter().any(|p| p.probe.has_post());
        if probes.iter().filter(|p| p.probe.plan.records()).count() > RING {
            return Err(NoTrap::TooMany);
        }
        if let Some(standing) = self.standing.get(&at) {
            match &standing.step {
                StepMethod::Emulate(_) if !self.device.contains(&at) => return Ok(standing.step.clone()),
                StepMethod::Copy(_) if standing.traps_again == has_post => return Ok(standing.step.clone()),
                StepMethod::PutBack(once) if is_once && !once.is_done() => return Ok(standing.step.clone()),
                // It needs another way past: it is taken down and put up again in the same stop.
                StepMethod::Emulate(_) | StepMethod::Copy(_) | StepMethod::PutBack(_) => {
                    self.take_down(at, stop);
                }
            }
        }
        // ftrace's nop was seen just now; anything else in the live text has to be proven an instruction.
        let plan = if is_once && probes.iter().all(|p| p.anchor == Anchor::Nop) {
            None
        } else {
            let only_copy = self.device.contains(&at);
            Some(self.traps.plan(stop.ram, running, &wanted.function, at, only_copy)?)
        };
        let (step, slot) = match plan.filter(|_| !is_once) {
            None => (None, None),
            Some(StepPlan::Emulate(emulation)) => (Some(StepMethod::Emulate(emulation)), None),
            Some(StepPlan::OutOfLine(_)) if !self.hooks.sees_faults() => {
                return Err(NoTrap::FaultsUnseen);
            }
            Some(StepPlan::OutOfLine(copy)) => {
                let slot = self.copy(&copy, has_post, stop, set)?;
                let entry = self.reserved.as_ref().map_err(NoSpace::clone)?.address(slot);
                (Some(StepMethod::Copy(entry)), Some(slot))
            }
        };
        let planted = self.traps.plant(stop.parked, stop.ram, running, at);
        let step = match (planted, step) {
            (Ok(_), Some(step)) => step,
            (Ok((gpa, original)), None) => StepMethod::PutBack(Arc::new(OneShot::new(gpa, original))),
            (Err(error), _) => {
                self.retire(slot);
                return Err(error.into());
            }
        };
        let standing = PlantedTrap { step: step.clone(), slot, traps_again: has_post };
        self.standing.insert(at, standing);
        Ok(step)
    }

    /// Writes `copy` to a slot.
    fn copy(
        &mut self,
        copy: &OutOfLine,
        has_post: bool,
        stop: &Stop<'_>,
        set: &mut ProbeSet<Arc<Active>>,
    ) -> Result<Slots, NoTrap> {
        let reserved = self.reserved.as_mut().map_err(|reason| reason.clone())?;
        let slot = allocate(reserved, SLOT, self.detours.instances(), stop, set)?;
        let entry = reserved.address(slot);
        let ending = if has_post { Ending::Trap } else { Ending::Jump };
        let code = copy.place(entry, ending).map_err(NoTrap::from);
        let written =
            code.and_then(|code| Ok(reserved.write(stop.ram, slot, &code).map_err(NoSpace::from)?));
        if let Err(reason) = written {
            reserved.retire(slot);
            return Err(reason);
        }
        let end = has_post.then(|| (copy.trap(entry), CopyEnd { site: copy.at(), next: copy.next() }));
        set.add_copy(entry, copy.at(), end);
        Ok(slot)
    }
}
