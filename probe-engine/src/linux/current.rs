//! Which task runs on a CPU: what the kernel's own `current` reads (arch/x86/include/asm/current.h).

use serde::{Deserialize, Serialize};

use super::btf::Btf;
use super::per_cpu;
use super::symbols::SymbolTable;
use crate::addr::Gva;
use crate::gate::SCHEDULE;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::virt_memory::VirtMemory;

/// Where a CPU keeps the address of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentTask {
    /// Bytes from the kernel's GS base.
    pub offset: u64,
}

impl CurrentTask {
    /// Finds it, for a kernel that was not moved.
    #[must_use]
    pub fn find(symbols: &SymbolTable, btf: Option<&Btf<'_>>) -> Option<Self> {
        per_cpu::hot_offset(symbols, btf, "current_task", "current_task").map(|offset| Self { offset })
    }

    /// The same where KASLR has moved the kernel by `slide`.
    #[must_use]
    pub fn slid(self, slide: u64) -> Self {
        Self { offset: per_cpu::slid(self.offset, slide) }
    }

    /// The address of the `struct task_struct` of the CPU whose kernel GS base is `gs_base`. While the CPU runs
    /// user code, and in the first instructions of an entry, that is not GS's own base but KERNEL_GS_BASE.
    ///
    /// # Errors
    /// The [`PageFault`] of reading there.
    pub fn read<M: PhysMemory + ?Sized>(
        self,
        memory: &VirtMemory<'_, M>,
        gs_base: u64,
    ) -> Result<Gva, PageFault> {
        memory.read_u64(Gva(gs_base).add(self.offset)).map(Gva)
    }
}

/// Where a CPU keeps its own number, in bytes from the kernel's GS base, in a kernel that was not moved.
#[must_use]
pub fn cpu_number(symbols: &SymbolTable, btf: Option<&Btf<'_>>) -> Option<u64> {
    per_cpu::hot_offset(symbols, btf, "cpu_number", "cpu_number")
}

/// Why no task of a kernel's can be preempted from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPreemption {
    /// Its own code may never be preempted, and nothing is counted that would hold that off.
    #[error("this kernel never preempts its own code: it has no {SCHEDULE}")]
    Never,
    /// It is not known where it counts what holds off preemption.
    #[error(
        "it is not known where this kernel counts what holds off preemption: its symbols or its types do not say"
    )]
    NoCount,
}

/// How a task of the kernel's can be preempted from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preemption {
    /// The function that has the CPU run other tasks (GVA): [`SCHEDULE`].
    pub schedule: Gva,
    /// Where a CPU counts what holds off preemption, in bytes from the kernel's GS base.
    count: u64,
}

impl Preemption {
    /// The highest bit of the count says that no other task is to run at once (arch/x86/include/asm/preempt.h).
    const NOBODY_WAITS: u32 = 1 << 31;

    /// Finds it, for a kernel that was not moved.
    ///
    /// # Errors
    /// [`NoPreemption`].
    pub fn find(symbols: &SymbolTable, btf: Option<&Btf<'_>>) -> Result<Self, NoPreemption> {
        let schedule = symbols.address_of(SCHEDULE).ok_or(NoPreemption::Never)?;
        let count = per_cpu::hot_offset(symbols, btf, "preempt_count", "__preempt_count");
        Ok(Self { schedule, count: count.ok_or(NoPreemption::NoCount)? })
    }

    /// The same where KASLR has moved the kernel by `slide`.
    #[must_use]
    pub fn slid(self, slide: u64) -> Self {
        Self { schedule: self.schedule.add(slide), count: per_cpu::slid(self.count, slide) }
    }

    /// Whether nothing but interrupts that are off holds off preemption on the CPU whose kernel GS base is `gs_base`.
    ///
    /// # Errors
    /// The [`PageFault`] of reading there.
    pub fn is_allowed<M: PhysMemory + ?Sized>(
        self,
        memory: &VirtMemory<'_, M>,
        gs_base: u64,
    ) -> Result<bool, PageFault> {
        let count = memory.read_u32(Gva(gs_base).add(self.count))?;
        Ok(count & !Self::NOBODY_WAITS == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    #[test]
    fn preemption_is_held_off_by_a_count() {
        let ram = Ram::new();
        let preemption = Preemption { schedule: Gva(0x1000), count: 0x10 };
        let gs_base = Ram::BASE.add(0x1000).0;
        let allowed = |count: u32| {
            ram.put(Gva(gs_base).add(0x10), &count.to_le_bytes());
            preemption.is_allowed(&ram.memory(), gs_base)
        };
        assert_eq!([0, 1 << 31].map(allowed), [Ok(true), Ok(true)]);
        assert_eq!([1, 1 << 31 | 1, 1 << 16, 1 << 8 | 1 << 31].map(allowed), [Ok(false); 4]);
        assert!(preemption.is_allowed(&ram.memory(), 0).is_err());
    }

    #[test]
    fn the_task_is_read_from_the_cpus_own_area() {
        let ram = Ram::new();
        ram.put(Ram::BASE.add(0x1010), &0xffff_8880_0123_4560u64.to_le_bytes());
        let current = CurrentTask { offset: 0x10 };
        let gs_base = Ram::BASE.add(0x1000).0;
        assert_eq!(current.read(&ram.memory(), gs_base), Ok(Gva(0xffff_8880_0123_4560)));
        assert!(current.read(&ram.memory(), 0).is_err());
    }
}
