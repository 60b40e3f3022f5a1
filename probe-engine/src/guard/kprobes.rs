//! The kprobes of a running kernel that stand in what is about to be sealed: what they have overwritten is not in memory any more.

use crate::addr::Gva;
use crate::insn::INT3;
use crate::linux::kernel::Kernel;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::virt_memory::VirtMemory;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// KPROBE_TABLE_SIZE, kernel/kprobes.c
const BUCKETS: u64 = 64;
/// So many kprobes are looked at of one bucket: behind them the list does not end.
const MOST: usize = 1 << 12;
/// `jmp rel32`
const JUMP_NEAR: u8 = 0xe9;
/// Behind the first byte of a jump (DISP32_SIZE, arch/x86/include/asm/text-patching.h).
const DISTANCE: usize = 4;

/// Where a kernel lists its kprobes (`kprobe_table`, kernel/kprobes.c), and how each is read: offsets in bytes from its `struct kprobe`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KprobeTable {
    /// The lists, a `struct hlist_head` each, at a link-time address.
    pub lists: Gva,
    /// `hlist`.
    pub node: u64,
    /// `addr`.
    pub at: u64,
    /// `opcode`: the byte that its breakpoint stands for.
    pub opcode: u64,
    /// `optinsn.copied_insn` of the `struct optimized_kprobe` that it is part of: what its jump has overwritten behind that. Absent where no
    /// kprobe is optimised.
    pub behind: Option<u64>,
}

/// A kprobe whose breakpoint or jump is in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StandingKprobe {
    /// Where (run-time GVA).
    pub at: Gva,
    /// What was there: one byte under a breakpoint, five under a jump.
    pub before: Vec<u8>,
}

impl KprobeTable {
    /// That of `kernel`; `None` where that has no kprobes.
    #[must_use]
    pub fn of(kernel: &Kernel) -> Option<Self> {
        let btf = kernel.btf().ok()?;
        let member = |structure, path| btf.member(structure, path)?.offset();
        Some(Self {
            lists: kernel.symbol("kprobe_table")?,
            node: member("kprobe", "hlist")?,
            at: member("kprobe", "addr")?,
            opcode: member("kprobe", "opcode")?,
            behind: member("optimized_kprobe", "optinsn.copied_insn"),
        })
    }

    /// Those that stand in `text` of a kernel that runs `slide` bytes behind where it was linked.
    ///
    /// # Errors
    /// The lists lead to where no memory is.
    pub fn standing<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        slide: u64,
        text: &Range<Gva>,
    ) -> Result<Vec<StandingKprobe>, PageFault> {
        let mut found = Vec::new();
        for bucket in 0..BUCKETS {
            let mut next = memory.read_u64(self.lists.add(slide).add(8 * bucket))?;
            for _ in 0..MOST {
                if next == 0 {
                    break;
                }
                let probe = Gva(next.wrapping_sub(self.node));
                let at = Gva(memory.read_u64(probe.add(self.at))?);
                if at.is_in(text) {
                    found.extend(self.overwritten(memory, probe, at)?);
                }
                next = memory.read_u64(Gva(next))?;
            }
        }
        Ok(found)
    }

    /// What the kprobe at `probe`, which is for `at`, has overwritten there.
    fn overwritten<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        probe: Gva,
        at: Gva,
    ) -> Result<Option<StandingKprobe>, PageFault> {
        let (mut now, mut first) = ([0], [0]);
        memory.read(at, &mut now)?;
        memory.read(probe.add(self.opcode), &mut first)?;
        let mut before = first.to_vec();
        match (now, self.behind) {
            ([INT3], _) => {}
            // Its own first byte is a jump's as well, where a kprobe is that is switched off.
            ([JUMP_NEAR], Some(behind)) if first != [JUMP_NEAR] => {
                let mut copied = [0; DISTANCE];
                memory.read(probe.add(behind), &mut copied)?;
                before.extend(copied);
            }
            // ftrace calls it, or it is switched off.
            _ => return Ok(None),
        }
        Ok(Some(StandingKprobe { at, before }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    #[test]
    fn what_is_under_breakpoints_and_jumps_is_found() {
        const SLIDE: u64 = 0x1000;
        let at = |offset: u64| Ram::BASE.add(offset);
        let table = KprobeTable { lists: at(0), node: 8, at: 24, opcode: 32, behind: Some(40) };
        let ram = Ram::new();
        let text = at(0x8000)..at(0x9000);
        let put = |place: Gva, value: u64| ram.put(place, &value.to_le_bytes());
        // A breakpoint, a jump, one that ftrace calls, and one that stands elsewhere.
        let probes = [(0x8010, 0xcc), (0x8020, 0xe9), (0x8030, 0xe8), (0x9000, 0xcc)];
        let place = |number: u64| at(0x4000 + 0x100 * number);
        for (number, (of, now)) in (0..).zip(probes) {
            put(place(number).add(24), at(of).0);
            ram.put(place(number).add(32), &[0x53]);
            ram.put(place(number).add(40), &[1, 2, 3, 4]);
            ram.put(at(of), &[now]);
            let next = if number + 1 < probes.len() as u64 { place(number + 1).add(8).0 } else { 0 };
            put(place(number).add(8), next);
        }
        put(at(SLIDE + 8 * 7), place(0).add(8).0);
        let found = table.standing(&ram.memory(), SLIDE, &text).unwrap();
        let expected = [
            StandingKprobe { at: at(0x8010), before: vec![0x53] },
            StandingKprobe { at: at(0x8020), before: vec![0x53, 1, 2, 3, 4] },
        ];
        assert_eq!(found, expected);
        // A list in a circle ends.
        put(place(3).add(8), place(0).add(8).0);
        assert!(table.standing(&ram.memory(), SLIDE, &text).unwrap().starts_with(&expected));
        put(place(3).add(8), 0x10);
        assert!(table.standing(&ram.memory(), SLIDE, &text).is_err());
    }
}
