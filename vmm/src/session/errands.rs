//! Sending for a worker of the guest's kernel that makes calls for us.
//!
//! While the world stands still, an irq_work of ours is linked in front of the list that CPU 0 is to run, by one store, and that
//! CPU gets the interrupt in which it runs the list. It is the one that no kernel of today takes offline.

use super::control::Control;
use super::reasons::NoSpace;
use super::stop::Stop;
use crate::errands::{Closed, Place};
use crate::vcpu::VcpuTables;
use crate::world::Parked;
use probe_engine::addr::Gva;
use probe_engine::detour::layout::ERRANDS;
use probe_engine::errand::slot;
use probe_engine::linux::errands::ErrandLayout;
use probe_engine::linux::per_cpu;
use probe_engine::paging::PageFault;
use probe_engine::virt_memory::VirtMemory;
use std::time::Instant;

impl Control<'_> {
    /// Sends for a worker where one is wanted.
    pub(super) fn send_for_worker(&mut self, parked: &Parked<'_>, tables: &mut VcpuTables) {
        let now = Instant::now();
        if !self.arming.is_ready() || self.panic.is_some() || !self.sending.is_due(now) {
            return;
        }
        self.sending.begin(now);
        let Ok(layout) = self.kernel.errands.clone() else { return };
        let place = match self.errand_place(parked, tables) {
            Ok(place) => place,
            Err(reason) => return self.sending.errands.close(Closed::Unreachable(reason.to_string())),
        };
        // What cannot be read is not there yet.
        if let Ok(Some(vector)) = self.link_worker(&layout, &place) {
            self.sending.interrupt(vector, now);
        }
    }

    /// Where the guest has what errands need: put there with the first one.
    pub(super) fn errand_place(
        &mut self,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) -> Result<Place, NoSpace> {
        if let Some(place) = self.sending.errands.place() {
            return Ok(place);
        }
        let stop = Stop { parked, ram: &self.ram };
        let layout = self.kernel.errands.as_ref().ok();
        let (code, data, slide) = self.arming.place_call_gate(layout, &stop, tables)?;
        let place = Place { code, slots: data.add(ERRANDS), slide };
        self.sending.errands.set_place(place);
        Ok(place)
    }

    /// Links a worker's slot into the guest's list. Gives the vector at which CPU 0 looks at that, or nothing where the guest is
    /// not ready.
    fn link_worker(&mut self, layout: &ErrandLayout, place: &Place) -> Result<Option<u8>, PageFault> {
        let Some(running) = self.arming.running() else { return Ok(None) };
        let memory = VirtMemory::new(&*self.ram, running.space);
        let vector = self.sending.vector(layout.interrupt.add(place.slide), &memory)?;
        let queue = Gva(memory.read_u64(layout.queue.add(place.slide))?);
        let is_online = memory.read_u64(layout.online.add(place.slide))? & 1 != 0;
        let Some(number) = self.sending.errands.free_worker() else { return Ok(None) };
        if vector.is_none() || queue.0 == 0 || !is_online {
            return Ok(None);
        }
        let at = place.slots.add(number as u64 * slot::SIZE);
        let area = memory.read_u64(layout.per_cpu.add(place.slide))?;
        let list = Gva(area).add(per_cpu::slid(layout.raised, place.slide));
        let next = Gva(memory.read_u64(list)?);
        memory.write(at, &place.code.slot(layout, at, queue, next))?;
        self.sending.errands.sent_for(number);
        memory.write(list, &at.0.to_le_bytes())?;
        Ok(vector)
    }
}
