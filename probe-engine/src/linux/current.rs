//! Which task runs on a CPU: what the kernel's own `current` reads (arch/x86/include/asm/current.h).

use serde::{Deserialize, Serialize};

use super::btf::Btf;
use super::symbols::SymbolTable;
use crate::addr::Gva;
use crate::memory::{PhysMemory, VirtMemory};
use crate::paging::PageFault;

/// Largest per-CPU area, in bytes; Debian's kernels have 0x39000.
const LARGEST_AREA: u64 = 16 << 20;

/// Where a CPU keeps the address of its task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurrentTask {
    /// Bytes from the start of the CPU's own area, to which the kernel's GS base points.
    pub offset: u64,
}

impl CurrentTask {
    /// Finds it: `pcpu_hot.current_task` from 6.2 to 6.14, the variable `current_task` before.
    #[must_use]
    pub fn find(symbols: &SymbolTable, btf: Option<&Btf<'_>>) -> Option<Self> {
        let offset = match per_cpu(symbols, "pcpu_hot") {
            Some(at) => at.checked_add(btf?.member("pcpu_hot", "current_task")?.offset()?)?,
            None => per_cpu(symbols, "current_task")?,
        };
        (offset < LARGEST_AREA).then_some(Self { offset })
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

/// Where a CPU keeps its own number, in bytes from the start of its own area: `pcpu_hot.cpu_number` from 6.2 to 6.14, the
/// variable `cpu_number` before and after.
#[must_use]
pub fn cpu_number(symbols: &SymbolTable, btf: Option<&Btf<'_>>) -> Option<u64> {
    let offset = match per_cpu(symbols, "pcpu_hot") {
        Some(at) => at.checked_add(btf?.member("pcpu_hot", "cpu_number")?.offset()?)?,
        None => per_cpu(symbols, "cpu_number")?,
    };
    (offset < LARGEST_AREA).then_some(offset)
}

/// Where a per-CPU variable lies, in bytes from the start of a CPU's own area: the only symbol of that name, an absolute
/// one.
pub(super) fn per_cpu(symbols: &SymbolTable, name: &str) -> Option<u64> {
    let mut found = symbols.lookup(name).filter(|symbol| symbol.kind.eq_ignore_ascii_case(&'a'));
    found.next().filter(|_| found.next().is_none()).map(|symbol| symbol.at.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::symbols::SymbolTableBuilder;
    use crate::linux::testing::{BtfBuilder, Ram};

    fn find(symbols: &[(u64, u8, &str)], section: Option<&[u8]>) -> Option<u64> {
        let mut builder = SymbolTableBuilder::default();
        for (at, kind, name) in symbols {
            builder.push(Gva(*at), *kind, name).unwrap();
        }
        let btf = section.map(|section| Btf::parse(section).unwrap());
        CurrentTask::find(&builder.finish(), btf.as_ref()).map(|found| found.offset)
    }

    #[test]
    fn both_generations_are_found() {
        let mut btf = BtfBuilder::default();
        let pointer = btf.pointer(0);
        let inner = btf.structure("", 16, &[("preempt_count", pointer, 0), ("current_task", pointer, 8)]);
        btf.structure("pcpu_hot", 64, &[("", inner, 0)]);
        let section = btf.finish();
        let old = (0x1fb80, b'A', "current_task");
        let new = (0x35000, b'A', "pcpu_hot");
        assert_eq!(find(&[old], None), Some(0x1fb80));
        assert_eq!(find(&[new], Some(&section)), Some(0x35008));
        assert_eq!(find(&[new], None), None);
        assert_eq!(find(&[], Some(&section)), None);
        assert_eq!(find(&[(0xffff_ffff_8300_0000, b'D', "current_task")], None), None);
        assert_eq!(find(&[(0xffff_ffff_8300_0000, b'A', "current_task")], None), None);
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
