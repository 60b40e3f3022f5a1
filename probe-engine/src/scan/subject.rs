//! What is scanned: a kernel in its memory, with what its file says of it.

use super::walk::{Unreadable, list};
use crate::addr::Gva;
use crate::linux::btf::Btf;
use crate::linux::kernel::Kernel;
use crate::linux::running::RunningKernel;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::virt_memory::VirtMemory;

/// A kernel in its memory.
pub(super) struct Subject<'a, M: PhysMemory + ?Sized> {
    /// Its file.
    pub(super) kernel: &'a Kernel,
    /// Its types.
    pub(super) btf: &'a Btf<'a>,
    /// Where it is.
    pub(super) running: &'a RunningKernel,
    /// The memory, through its own page tables.
    pub(super) memory: VirtMemory<'a, M>,
}

impl<M: PhysMemory + ?Sized> Subject<'_, M> {
    /// Where the only symbol of this name is at run time.
    pub(super) fn symbol(&self, name: &str) -> Option<Gva> {
        self.kernel.symbol(name).map(|at| self.running.map.gva(at))
    }

    /// How many pointers the array at this symbol has: up to the next symbol.
    pub(super) fn pointers_at(&self, at: Gva) -> u64 {
        let link = Gva(at.0.wrapping_sub(self.running.map.slide()));
        self.kernel.symbols().end_of(link).map_or(0, |end| (end.0 - link.0) / 8)
    }

    /// Where a member of a structure is, in bytes.
    pub(super) fn offset(&self, structure: &str, path: &str) -> Option<u64> {
        self.btf.member(structure, path)?.offset()
    }

    /// The pointer at `at`.
    pub(super) fn pointer(&self, at: Gva) -> Result<Gva, PageFault> {
        self.memory.read_u64(at).map(Gva)
    }

    /// The structures of the list at `head`, which are linked by their member at `node`.
    pub(super) fn listed(&self, head: Gva, node: u64) -> Result<Vec<Gva>, Unreadable> {
        Ok(list(&self.memory, head)?.into_iter().map(|found| around(found, node)).collect())
    }
}

/// The structure whose member at `offset` is at `member`.
pub(super) fn around(member: Gva, offset: u64) -> Gva {
    Gva(member.0.wrapping_sub(offset))
}
