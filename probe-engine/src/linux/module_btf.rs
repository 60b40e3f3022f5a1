//! The type information of the guest's modules, read from outside: what the kernel keeps of each module's `.BTF`.
//!
//! `struct module` has `btf_data`, but only while the module is loaded: the section is no part of its memory, is gone
//! before `do_init_module` is entered, and the pointer is left dangling. When it was announced (MODULE_STATE_COMING),
//! before that, the kernel made a copy, which it keeps as long as the module stays: `btf_modules`, a list of
//! `struct btf_module` (kernel/bpf/btf.c, since 5.11). A module that was built outside the kernel's tree, and so
//! refers to a `.BTF.base` of its own (since 6.11), refers to the kernel's types in that copy like all others.

use super::module_layout::ModuleBtf;
use super::modules::{MOST_MODULES, Module, ModuleError, bytes_at, counted_at, field};
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;

/// Largest type information of one module, in bytes; that of the whole kernel is a third of it.
const LARGEST: u32 = 16 << 20;

impl Module {
    /// The module's type information, to be read [on top](Btf::split) of the kernel's; `None` when it has none.
    /// `head` is where [`ModuleBtf::head`] is in memory.
    ///
    /// # Errors
    /// [`ModuleError`] when the list cannot be read or does not end, or for more than 16 MiB.
    pub fn btf_bytes<M: PhysMemory + ?Sized>(
        &self,
        layout: &ModuleBtf,
        memory: &VirtMemory<'_, M>,
        head: Gva,
    ) -> Result<Option<Vec<u8>>, ModuleError> {
        let mut next = Gva(memory.read_u64(head)?);
        for _ in 0..MOST_MODULES {
            if next == head {
                return Ok(None);
            }
            let at = next.offset(-i64::from(layout.list));
            if memory.read_u64(field(at, layout.module))? != self.at.0 {
                next = Gva(memory.read_u64(next)?);
                continue;
            }
            let btf = Gva(memory.read_u64(field(at, layout.btf))?);
            let (data, size) = counted_at(memory, btf, layout.data)?;
            if size > LARGEST {
                return Err(ModuleError::Large(self.at));
            }
            return Ok(Some(bytes_at(memory, data, size as usize)?));
        }
        Err(ModuleError::Endless)
    }
}
