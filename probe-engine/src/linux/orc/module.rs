//! The ORC table of a module, out of the guest's memory.

use super::{IP_LEN, OrcError, OrcLayout, OrcTable, ROW_LEN};
use crate::linux::modules::{CountedArray, Module, ModuleError, ModuleLayout, bytes_at, counted_at};
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;

/// Most rows of one module; `amdgpu` has some 300,000.
const MOST_ROWS: u32 = 1 << 20;

impl Module {
    /// Its ORC table, at run-time addresses, right from `do_init_module` on. `written` is the layout of its kernel's.
    ///
    /// # Errors
    /// [`ModuleError`] when it cannot be read, or the kernel's type information does not say where it is.
    pub fn orc<M: PhysMemory + ?Sized>(
        &self,
        layout: &ModuleLayout,
        written: OrcLayout,
        memory: &VirtMemory<'_, M>,
    ) -> Result<OrcTable, ModuleError> {
        let place = layout.orc.ok_or(OrcError::Missing)?;
        let part = |part: CountedArray, len| {
            let (at, count) = counted_at(memory, self.at, part)?;
            if count > MOST_ROWS {
                return Err(ModuleError::Large(self.at));
            }
            Ok((at, bytes_at(memory, at, count as usize * len)?))
        };
        let (ips_at, ips) = part(place.ips, IP_LEN)?;
        let (_, rows) = part(place.rows, ROW_LEN)?;
        Ok(OrcTable::from_parts(written, &ips, ips_at, &rows)?)
    }
}
