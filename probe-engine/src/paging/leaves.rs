//! All that page tables map.

use super::{AddressSpace, FRAME, LARGE, PRESENT, WRITABLE};
use crate::addr::{Gpa, Gva};
use crate::memory::PhysMemory;

const NO_EXECUTE: u64 = 1 << 63;
const ENTRIES: usize = 512;
const TABLE: usize = 4096;
/// So many tables are looked at. As many map 128 GiB in small pages; tables that lead back to themselves never end.
const MOST_TABLES: usize = 1 << 16;

/// A page, of 4 KiB or larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Where it is seen.
    pub at: Gva,
    /// Where it lies.
    pub gpa: Gpa,
    /// Its bytes.
    pub size: u64,
    /// Whether the tables allow stores.
    pub is_writable: bool,
    /// Whether the tables allow execution.
    pub is_executable: bool,
}

/// There are more tables than any guest has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the guest's page tables do not end")]
pub struct EndlessTables;

/// A table on the way down, and which of its entries is next.
struct Step {
    entries: Box<[u64; ENTRIES]>,
    next: usize,
    /// Where its first entry maps.
    at: u64,
    /// 0 for a table of pages of 4 KiB.
    level: u32,
    is_writable: bool,
    is_executable: bool,
}

impl AddressSpace {
    /// Calls `each` with all pages in the half that is the kernel's, in their order. What lies outside of memory is left out.
    ///
    /// # Errors
    /// [`EndlessTables`], after tens of thousands of tables.
    pub fn kernel_leaves<M: PhysMemory + ?Sized>(
        &self,
        memory: &M,
        mut each: impl FnMut(Leaf),
    ) -> Result<(), EndlessTables> {
        let level = self.levels - 1;
        // As if its lower half were the addresses right below the upper one.
        let at = u64::MAX << (12 + 9 * self.levels);
        let Some(entries) = table(memory, self.root) else { return Ok(()) };
        let next = ENTRIES / 2;
        let mut steps = vec![Step { entries, next, at, level, is_writable: true, is_executable: true }];
        let mut seen = 1;
        while let Some(step) = steps.last_mut() {
            let Some(entry) = step.entries.get(step.next).copied() else {
                steps.pop();
                continue;
            };
            let shift = 12 + 9 * step.level;
            let at = step.at.wrapping_add((step.next as u64) << shift);
            step.next += 1;
            if entry & PRESENT == 0 {
                continue;
            }
            let is_writable = step.is_writable && entry & WRITABLE != 0;
            let is_executable = step.is_executable && entry & NO_EXECUTE == 0;
            if step.level == 0 || (step.level <= 2 && entry & LARGE != 0) {
                let size = 1 << shift;
                let gpa = Gpa(entry & FRAME & !(size - 1));
                each(Leaf { at: Gva(at), gpa, size, is_writable, is_executable });
                continue;
            }
            let level = step.level - 1;
            seen += 1;
            if seen > MOST_TABLES {
                return Err(EndlessTables);
            }
            if let Some(entries) = table(memory, Gpa(entry & FRAME)) {
                steps.push(Step { entries, next: 0, at, level, is_writable, is_executable });
            }
        }
        Ok(())
    }

    /// Where the entry of the top table leads through which `at` goes, whatever it says of its use.
    pub(crate) fn top_frame<M: PhysMemory + ?Sized>(&self, memory: &M, at: Gva) -> Option<Gpa> {
        let index = at.0 >> (12 + 9 * (self.levels - 1)) & 0x1ff;
        memory.read_u64(self.root.add(index * 8)).ok().map(|entry| Gpa(entry & FRAME))
    }

    /// The same depth, with another top table.
    #[must_use]
    pub fn with_root(self, root: Gpa) -> Self {
        Self { root, ..self }
    }
}

fn table<M: PhysMemory + ?Sized>(memory: &M, at: Gpa) -> Option<Box<[u64; ENTRIES]>> {
    let mut bytes = [0; TABLE];
    memory.read(at, &mut bytes).ok()?;
    let (words, _) = bytes.as_chunks::<8>();
    let mut entries = Box::new([0; ENTRIES]);
    for (entry, word) in entries.iter_mut().zip(words) {
        *entry = u64::from_le_bytes(*word);
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::testing::Ram;

    fn leaves(ram: &Ram, space: AddressSpace) -> Result<Vec<Leaf>, EndlessTables> {
        let mut found = Vec::new();
        space.kernel_leaves(ram, |leaf| found.push(leaf)).map(|()| found)
    }

    #[test]
    fn pages_are_found_with_what_all_tables_above_them_allow() {
        for (levels, cr4, start) in [(4, 0, 0xffff_8000_0000_0000), (5, 1 << 12, 0xff00_0000_0000_0000u64)] {
            let ram = Ram::new(0x10_0000);
            let mut table = 0x1000;
            if levels == 5 {
                ram.set(table, 256, (table + 0x1000) | 3);
                table += 0x1000;
            }
            let first = if levels == 5 { 0 } else { 256 };
            ram.set(table, first, (table + 0x1000) | 3);
            // Of 1 GiB, and a table without execution.
            ram.set(table + 0x1000, 0, 0x4000_0000 | 0x83);
            ram.set(table + 0x1000, 1, (table + 0x2000) | 3 | NO_EXECUTE);
            ram.set(table + 0x2000, 511, 0x20_0000 | 0x81);
            ram.set(table + 0x2000, 0, (table + 0x3000) | 1);
            ram.set(table + 0x3000, 7, 0x5003);
            // The lower half is not the kernel's.
            ram.set(0x1000, 0, 0x2003);
            let leaf = |at, gpa, size, is_writable, is_executable| Leaf {
                at: Gva(start + at),
                gpa: Gpa(gpa),
                size,
                is_writable,
                is_executable,
            };
            let expected = [
                leaf(0, 0x4000_0000, 1 << 30, true, true),
                leaf((1 << 30) + 0x7000, 0x5000, 0x1000, false, false),
                leaf((2 << 30) - (2 << 20), 0x20_0000, 2 << 20, false, false),
            ];
            assert_eq!(leaves(&ram, AddressSpace::new(0x1000, cr4)).unwrap(), expected, "{levels}");
        }
    }

    #[test]
    fn tables_in_a_circle_end() {
        let ram = Ram::new(0x10_0000);
        for index in 0..512 {
            ram.set(0x1000, index, 0x1003);
        }
        assert_eq!(leaves(&ram, AddressSpace::new(0x1000, 0)), Err(EndlessTables));
    }
}
