//! The real return addresses of functions of programs whose returns the guest's kernel has probes at: it keeps them in
//! `task->utask->return_instances` (`struct return_instance`, include/linux/uprobes.h), and has others on the stack.

use super::btf::Btf;
use crate::addr::Gva;
use crate::virt_memory::ReadVirt;
use serde::{Deserialize, Serialize};

/// A task has no more (MAX_URETPROBE_DEPTH).
const DEEPEST: usize = 64;

/// Where to read about them. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturnInstances {
    /// Of `task_struct`.
    utask: u64,
    /// Of `uprobe_task`.
    first: u64,
    next: u64,
    stack: u64,
    back: u64,
    /// Of `task_struct`.
    mm: u64,
    /// Of `mm_struct`: where the process has what returns go through.
    area: u64,
    /// Of `xol_area`: where that is.
    trampoline: u64,
}

impl ReturnInstances {
    /// Finds it; `None` for a kernel without uprobes.
    #[must_use]
    pub fn find(btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        let instance = |member: &str| offset("return_instance", member);
        Some(Self {
            utask: offset("task_struct", "utask")?,
            first: offset("uprobe_task", "return_instances")?,
            next: instance("next")?,
            stack: instance("stack")?,
            back: instance("orig_ret_vaddr")?,
            mm: offset("task_struct", "mm")?,
            area: offset("mm_struct", "uprobes_state.xol_area")?,
            trampoline: offset("xol_area", "vaddr")?,
        })
    }

    /// Where the call of `task` (its `task_struct`) returns to whose return address lies at `slot` of its stack, if `word` lies there
    /// now because the kernel has put it there.
    #[must_use]
    pub fn back<M: ReadVirt + ?Sized>(&self, memory: &M, task: Gva, slot: Gva, word: Gva) -> Option<Gva> {
        let pointer =
            |at: Gva, offset: u64| memory.read_u64(at.add(offset)).ok().map(Gva).filter(|to| to.is_kernels());
        let mut instance = pointer(pointer(task, self.utask)?, self.first)?;
        // Calls that a jump has left are kept for a while, and others may have the same slot meanwhile.
        let area = pointer(pointer(task, self.mm)?, self.area)?;
        if memory.read_u64(area.add(self.trampoline)).ok()? != word.0 {
            return None;
        }
        for _ in 0..DEEPEST {
            if memory.read_u64(instance.add(self.stack)).ok()? == slot.0 {
                return memory.read_u64(instance.add(self.back)).ok().map(Gva);
            }
            instance = pointer(instance, self.next)?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    #[test]
    fn a_call_returns_to_where_it_was_made() {
        const HOOK: Gva = Gva(0x7fff_ffff_e000);
        let layout = ReturnInstances {
            utask: 8,
            first: 16,
            next: 0,
            stack: 8,
            back: 16,
            mm: 24,
            area: 8,
            trampoline: 16,
        };
        let ram = Ram::new();
        let at = |offset: u64| Ram::BASE.add(offset);
        let put = |place: u64, word: u64| ram.put(at(place), &word.to_le_bytes());
        let at_word = |slot: u64, word| layout.back(&ram.memory(), at(0), Gva(slot), word).map(|back| back.0);
        let back = |slot| at_word(slot, HOOK);
        for (place, word) in [(24, at(0x300).0), (0x308, at(0x340).0), (0x350, HOOK.0)] {
            put(place, word);
        }
        assert_eq!(back(0x7000), None, "it has never met a probe");
        put(8, at(0x100).0);
        assert_eq!(back(0x7000), None);
        put(0x110, at(0x200).0);
        for (instance, next, stack, real) in
            [(0x200, 0x240, 0x7000, 0x40_1000), (0x240, 0x200, 0x7100, 0x40_2000)]
        {
            put(instance, at(next).0);
            put(instance + 8, stack);
            put(instance + 16, real);
        }
        assert_eq!((back(0x7000), back(0x7100)), (Some(0x40_1000), Some(0x40_2000)));
        assert_eq!(at_word(0x7000, Gva(0x40_3000)), None, "another call has its own there");
        assert_eq!(back(0x7200), None, "a circle has an end");
        put(8, 0x5000);
        assert_eq!(back(0x7000), None);
    }
}
