//! In which area of a process an address is: `mm->mm_mt` since 6.1 (lib/maple_tree.c), and `mm->mm_rb` before (lib/rbtree.c).

use crate::addr::Gva;
use crate::linux::btf::Btf;
use crate::virt_memory::ReadVirt;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// No tree is deeper: a maple tree of all areas that a process may have has 6 levels, and a red-black tree twice 16.
const DEEPEST: usize = 40;
/// Bytes of a node of a maple tree, at a multiple of as many. Below that its address says of which kind it is.
const NODE: usize = 256;

/// Where to read about the areas. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AreaTree {
    start: u64,
    end: u64,
    /// In `mm_struct`.
    root: u64,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Kind {
    Maple { leaf: MapleNode, inner: [MapleNode; 2] },
    RedBlack { node: u64, left: u64, right: u64 },
}

/// A kind of node: up to each pivot, included, there is what its slot leads to, and behind the last one what the last slot does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct MapleNode {
    number: u64,
    pivots: u64,
    slots: u64,
    /// How many slots: one more than pivots.
    count: u32,
}

impl AreaTree {
    pub(super) fn find(btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        let area = |member: &str| offset("vm_area_struct", member);
        let node = |name: &str, structure: &str| {
            let slots = btf.member(structure, "slot")?;
            let (_, count) = btf.array(slots.ty)?;
            let (pivots, slots) = (offset(structure, "pivot")?, slots.offset()?);
            let is_whole = slots + 8 * u64::from(count) <= NODE as u64 && pivots < slots;
            let number = u64::try_from(btf.enum_value("maple_type", name)?).ok()?;
            is_whole.then_some(MapleNode { number, pivots, slots, count })
        };
        let maple = || {
            let inner =
                [node("maple_range_64", "maple_range_64")?, node("maple_arange_64", "maple_arange_64")?];
            let leaf = node("maple_leaf_64", "maple_range_64")?;
            Some((offset("mm_struct", "mm_mt.ma_root")?, Kind::Maple { leaf, inner }))
        };
        let red_black = || {
            let (left, right) = (offset("rb_node", "rb_left")?, offset("rb_node", "rb_right")?);
            let kind = Kind::RedBlack { node: area("vm_rb")?, left, right };
            Some((offset("mm_struct", "mm_rb.rb_node")?, kind))
        };
        let (root, kind) = maple().or_else(red_black)?;
        Some(Self { start: area("vm_start")?, end: area("vm_end")?, root, kind })
    }

    /// The area (its `vm_area_struct`) of the process with this `mm_struct` that has `at`, and where that is.
    pub(super) fn area<M: ReadVirt + ?Sized>(
        &self,
        memory: &M,
        mm: Gva,
        at: Gva,
    ) -> Option<(Gva, Range<Gva>)> {
        let read = |place: Gva| memory.read_u64(place).ok();
        let range = |area: Gva| Some(Gva(read(area.add(self.start))?)..Gva(read(area.add(self.end))?));
        let mut next = read(mm.add(self.root))?;
        for _ in 0..DEEPEST {
            match self.kind {
                Kind::Maple { leaf, inner } => {
                    let number = next >> 3 & 15;
                    let node = [leaf, inner[0], inner[1]].into_iter().find(|node| node.number == number)?;
                    next = node.slot(memory, Gva(next & !(NODE as u64 - 1)), at)?;
                    if number == leaf.number {
                        let area = Gva(next);
                        let range = range(area).filter(|range| range.contains(&at))?;
                        return Some((area, range));
                    }
                }
                Kind::RedBlack { node, left, right } => {
                    let area = Gva(next.checked_sub(node)?);
                    let range = range(area)?;
                    if range.contains(&at) {
                        return Some((area, range));
                    }
                    next = read(Gva(next).add(if at < range.start { left } else { right }))?;
                }
            }
        }
        None
    }
}

impl MapleNode {
    /// What the node's slot holds for `at`.
    fn slot<M: ReadVirt + ?Sized>(&self, memory: &M, node: Gva, at: Gva) -> Option<u64> {
        if !node.is_kernels() {
            return None;
        }
        let mut bytes = [0; NODE];
        memory.read(node, &mut bytes).ok()?;
        let word = |offset: u64, n: u32| {
            let from = usize::try_from(offset).ok()? + 8 * n as usize;
            Some(u64::from_le_bytes(bytes.get(from..from + 8)?.try_into().ok()?))
        };
        // Behind the last one that is used, pivots are 0.
        let ends =
            |n: &u32| word(self.pivots, *n).is_none_or(|pivot| pivot >= at.0 || (pivot == 0 && *n > 0));
        let last = self.count.checked_sub(1)?;
        word(self.slots, (0..last).find(ends).unwrap_or(last))
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::linux::testing::Ram;

    const LEAF: MapleNode = MapleNode { number: 1, pivots: 8, slots: 128, count: 16 };

    /// A maple tree of one node below the `mm_struct` at `mm`, whose areas begin and end there.
    pub(in super::super) fn areas(ram: &Ram, mm: Gva, areas: &[(u64, u64, Gva)]) -> AreaTree {
        let node = mm.add(0x100);
        ram.put(mm, &(node.0 | 1 << 3 | 2).to_le_bytes());
        let mut slot = 0;
        let mut put = |pivot: u64, area: u64| {
            ram.put(node.add(8 + 8 * slot), &pivot.to_le_bytes());
            ram.put(node.add(128 + 8 * slot), &area.to_le_bytes());
            slot += 1;
        };
        for (start, end, area) in areas {
            put(start - 1, 0);
            put(end - 1, area.0);
            ram.put(*area, &start.to_le_bytes());
            ram.put(area.add(8), &end.to_le_bytes());
        }
        let inner =
            [MapleNode { number: 2, ..LEAF }, MapleNode { number: 3, pivots: 8, slots: 80, count: 10 }];
        AreaTree { start: 0, end: 8, root: 0, kind: Kind::Maple { leaf: LEAF, inner } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    fn at(offset: u64) -> Gva {
        Ram::BASE.add(offset)
    }

    #[test]
    fn an_area_of_a_maple_tree_has_the_address_or_none_has() {
        let ram = Ram::new();
        let all = [(0x5000, 0x6000, at(0x600)), (0x6000, 0x9000, at(0x640)), (0x1_0000, 0x1_1000, at(0x680))];
        let tree = testing::areas(&ram, at(0x1000), &all);
        let memory = ram.memory();
        let area = |address: u64| Some(tree.area(&memory, at(0x1000), Gva(address))?.0);
        for (address, expected) in [
            (0, None),
            (0x4fff, None),
            (0x5000, Some(at(0x600))),
            (0x6000, Some(at(0x640))),
            (0x8fff, Some(at(0x640))),
            (0x9000, None),
            (0x1_0fff, Some(at(0x680))),
            (0x1_1000, None),
            (u64::MAX, None),
        ] {
            assert_eq!(area(address), expected, "{address:#x}");
        }
        // A node above it, of which only the first slot is used.
        ram.put(at(0x1200), &[0; NODE]);
        ram.put(at(0x1208), &u64::MAX.to_le_bytes());
        ram.put(at(0x1200 + 80), &(at(0x1100).0 | 1 << 3 | 4).to_le_bytes());
        ram.put(at(0x1000), &(at(0x1200).0 | 3 << 3 | 2).to_le_bytes());
        assert_eq!(area(0x5000), Some(at(0x600)));
        // One that leads to itself.
        ram.put(at(0x1200 + 80), &(at(0x1200).0 | 3 << 3 | 4).to_le_bytes());
        assert_eq!(area(0x5000), None);
        ram.put(at(0x1000), &0u64.to_le_bytes());
        assert_eq!(area(0x5000), None, "it has no areas");
        ram.put(at(0x1000), &(at(0x1100).0 | 9 << 3 | 2).to_le_bytes());
        assert_eq!(area(0x5000), None, "of another kind");
    }

    #[test]
    fn an_area_of_a_red_black_tree_is_found_on_either_side() {
        const NODE_IN_AREA: u64 = 0x20;
        let ram = Ram::new();
        let put = |place: Gva, word: u64| ram.put(place, &word.to_le_bytes());
        for (area, start, end, left, right) in [
            (0x100, 0x5000, 0x6000, 0x200, 0x300),
            (0x200, 0x1000, 0x2000, 0, 0),
            (0x300, 0x8000, 0x9000, 0, 0x100),
        ] {
            put(at(area), start);
            put(at(area + 8), end);
            let node = |area: u64| if area == 0 { 0 } else { at(area + NODE_IN_AREA).0 };
            put(at(area + NODE_IN_AREA + 8), node(right));
            put(at(area + NODE_IN_AREA + 16), node(left));
        }
        put(at(0), at(0x100 + NODE_IN_AREA).0);
        let kind = Kind::RedBlack { node: NODE_IN_AREA, left: 16, right: 8 };
        let tree = AreaTree { start: 0, end: 8, root: 0, kind };
        let memory = ram.memory();
        let area = |address: u64| Some(tree.area(&memory, at(0), Gva(address))?.0);
        assert_eq!(area(0x5fff), Some(at(0x100)));
        assert_eq!(area(0x1000), Some(at(0x200)));
        assert_eq!(area(0x8000), Some(at(0x300)));
        assert_eq!(area(0x3000), None);
        assert_eq!(area(0x9000), None, "a circle has an end");
    }
}
