//! A stop of the world, as those see it who change the guest's text in it.

use super::patches::Patches;
use super::reasons::{NoSpace, TextError};
use super::text::GuestText;
use crate::gate::{Gate, GateCode};
use crate::memory::GuestRam;
use crate::probe::Active;
use crate::reserved::{Reserved, Slots};
use crate::world::Parked;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::detour::instances::Instances;
use probe_engine::gate::Form;
use probe_engine::insn::INT3;
use probe_engine::linux::running::RunningKernel;
use probe_engine::memory::PhysMemory;
use probe_engine::probe::returns::Pool;
use probe_engine::probe::table::ProbeSet;
use std::sync::Arc;

/// A stop of the world.
#[derive(Clone, Copy)]
pub(super) struct Stop<'a> {
    pub(super) parked: &'a Parked<'a>,
    pub(super) ram: &'a GuestRam,
}

/// A guest whose kernel runs, in a stop, with everything that changing its text takes.
pub(super) struct StoppedGuest<'a> {
    pub(super) stop: Stop<'a>,
    pub(super) running: RunningKernel,
    /// What of ours is in its text.
    pub(super) patches: &'a mut Patches,
    /// Its pages for code of ours.
    pub(super) reserved: &'a mut Result<Reserved, NoSpace>,
    /// What its vCPUs find at a hit afterwards.
    pub(super) table: &'a mut ProbeSet<Arc<Active>>,
}

impl StoppedGuest<'_> {
    /// Its text as it knows it.
    pub(super) fn text(&self) -> GuestText<'_> {
        GuestText { ram: self.stop.ram, running: &self.running, patches: self.patches }
    }

    /// Its pages for code of ours, if there are any.
    pub(super) fn reserved(&self) -> Result<&Reserved, NoSpace> {
        self.reserved.as_ref().map_err(NoSpace::clone)
    }

    /// Takes room for `length` bytes of code. Frees what nobody needs when there is none, of which calls that are
    /// followed, by detours (`calls`) and by traps, tell more than the guest's memory: they keep return addresses.
    pub(super) fn allocate(&mut self, length: usize, calls: &Instances) -> Result<Slots, NoSpace> {
        let Self { stop, reserved, table, .. } = self;
        let Stop { parked, ram } = *stop;
        let reserved = reserved.as_mut().map_err(|reason| reason.clone())?;
        if let Some(slots) = reserved.allocate(length) {
            return Ok(slots);
        }
        let by_traps = || {
            let mut owners: Vec<_> = table.owners().collect();
            owners.dedup_by(|a, b| Arc::ptr_eq(a, b));
            owners.into_iter().filter_map(|owner| owner.pool()).flat_map(Pool::backs)
        };
        let known = || parked.rips().into_iter().chain(calls.returns(ram)).chain(by_traps()).collect();
        let reclaimed = reserved.reclaim(parked, ram, known);
        if reclaimed.map_err(|error| NoSpace::Untold(Arc::new(error)))? > 0 {
            table.retain_copies(|at| reserved.is_in_use(at));
        }
        reserved.allocate(length).ok_or(NoSpace::Full)
    }

    /// Gives `gate` the code at which the guest waits, where there is room for that and the guest has what the code calls: `schedule`. Without
    /// such code, a vCPU that is held stands still.
    pub(super) fn place(&mut self, gate: &Gate, form: Form, schedule: Option<Gva>, calls: &Instances) {
        if gate.code(form).is_some() || self.reserved.is_err() {
            return;
        }
        let Ok(slots) = self.allocate(form.size(), calls) else { return };
        let Ok(reserved) = &self.reserved else { return };
        let (entry, memory) = (reserved.address(slots), reserved.memory(slots));
        let is_written = form
            .bytes(entry, schedule)
            .is_some_and(|bytes| reserved.write(self.stop.ram, slots, &bytes).is_ok());
        if is_written {
            gate.set_code(GateCode { form, entry, memory });
            self.table.add_gate(entry.add(form.trap()), gate.id());
        } else {
            self.retire(slots);
        }
    }

    /// Gives back what code of `length` bytes at the start of `slots` does not need.
    pub(super) fn shrink(&mut self, slots: Slots, length: usize) -> Slots {
        match self.reserved {
            Ok(reserved) => reserved.shrink(slots, length),
            Err(_) => slots,
        }
    }

    /// Nothing leads to the code in `slots` any more.
    pub(super) fn retire(&mut self, slots: Slots) {
        if let Ok(reserved) = self.reserved {
            reserved.retire(slots);
        }
    }

    /// Puts a trap byte at `at`. Returns where it is in guest-physical memory, and what it hides.
    pub(super) fn plant(&mut self, at: Gva) -> Result<(Gpa, u8), TextError> {
        let gpa = self.patches.translate(self.stop.ram, &self.running, at)?;
        let mut original = [0];
        self.stop.ram.read(gpa, &mut original).map_err(|_| TextError::NotMapped(at))?;
        self.replace(at, original, [INT3])?;
        let [original] = original;
        Ok((gpa, original))
    }

    /// Writes `ours` over one instruction of as many bytes at `at`, which is `original`.
    pub(super) fn replace<const N: usize>(
        &mut self,
        at: Gva,
        original: [u8; N],
        ours: [u8; N],
    ) -> Result<(), TextError> {
        let Stop { parked, ram } = self.stop;
        // It may lie in two pages, and they anywhere.
        let mut places = [(at, Gpa(0)); N];
        for (n, (at, gpa)) in (0..).zip(&mut places) {
            *at = at.add(n);
            *gpa = self.patches.translate(ram, &self.running, *at)?;
        }
        self.patches.replace(parked, ram, places, (original, ours))
    }

    /// Takes what is ours at `at` out, `length` bytes. False when the guest has written there: it is then left as it is.
    pub(super) fn lift(&mut self, at: Gva, length: u64) -> bool {
        self.patches.lift(self.stop.parked, self.stop.ram, at, length)
    }
}
