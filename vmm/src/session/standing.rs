//! Reading the guest's memory for others, in a stop.

use super::control::Control;
use super::guests_own::GuestsOwn;
use super::handle::{ReadAt, ReadError};
use crate::vcpu::VcpuTables;
use crate::world::VcpuPosition;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::memory::PhysMemory as _;
use probe_engine::paging::AddressSpace;
use probe_engine::virt_memory::VirtMemory;

impl Control<'_> {
    /// Reads memory, while the vCPUs stand at `positions`.
    pub(super) fn read(
        &self,
        wanted: ReadAt,
        positions: &[VcpuPosition],
        tables: &VcpuTables,
    ) -> Result<Vec<u8>, ReadError> {
        let space = self.space(wanted.vcpu, positions)?;
        let memory = GuestsOwn { ram: &self.ram, hidden: self.arming.hidden() };
        let user = || space;
        let spaces = match wanted.vcpu {
            Some(_) => tables.spaces(&user),
            None => space.into(),
        };
        let mut bytes = vec![0; wanted.length];
        match VirtMemory::new(&memory, spaces).read(wanted.at, &mut bytes) {
            Ok(()) => {
                tables.hide_trampolines(wanted.at, &mut bytes, &self.ram);
                Ok(bytes)
            }
            Err(fault) => match self.before_mapped(wanted.at, wanted.length) {
                Some(gpa) if memory.read(gpa, &mut bytes).is_ok() => Ok(bytes),
                _ => Err(ReadError::Unmapped(fault.at)),
            },
        }
    }

    /// Where text lies that the kernel has not mapped yet: whoever looks at it before it runs means the text all the same.
    fn before_mapped(&self, at: Gva, length: usize) -> Option<Gpa> {
        let map = self.stage.map()?;
        let (from, to) = (map.link(at), map.link(at.add(length as u64)));
        (self.kernel.text <= from && from <= to && to <= self.kernel.text_end).then(|| map.gpa(from))
    }

    /// The page tables of `vcpu`, or the kernel's own.
    pub(super) fn space(
        &self,
        vcpu: Option<usize>,
        positions: &[VcpuPosition],
    ) -> Result<AddressSpace, ReadError> {
        let Some(id) = vcpu else {
            return Ok(self.arming.running().ok_or(ReadError::NotStarted)?.space);
        };
        positions.get(id).ok_or(ReadError::NoVcpu(id))?.space().ok_or(ReadError::NoSpace(id))
    }
}
