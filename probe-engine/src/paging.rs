//! The guest's page tables, walked in software (Intel SDM volume 3, 4.5: 4-level and 5-level paging).

pub mod leaves;
pub mod window;

use crate::addr::{Gpa, Gva};
use crate::memory::{NoMemory, PhysMemory};

const PRESENT: u64 = 1 << 0;
const WRITABLE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const LARGE: u64 = 1 << 7;
/// Bits 51:12 of an entry: the frame or the next table.
const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// What the translated access does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// A load, or an instruction fetch.
    Read,
    /// A store by supervisor code with CR0.WP set.
    Write,
}

/// One set of page tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressSpace {
    /// The top table (CR3 without its PCID and control bits).
    root: Gpa,
    /// 4, or 5 with CR4.LA57.
    levels: u32,
    /// CR4.SMAP: supervisor code accesses user pages only while RFLAGS.AC is set.
    pub(crate) smap: bool,
    /// CR0.WP is clear: supervisor code stores to read-only pages as well.
    ignores_read_only: bool,
}

/// The page tables that a CPU goes through at a moment.
#[derive(Clone, Copy)]
pub enum Spaces<'a> {
    /// These, for all addresses.
    One(AddressSpace),
    /// The kernel's half is the same in all tables of a guest (arch/x86/mm/init_64.c, `sync_global_pgds`).
    Halves {
        /// Those of the upper half.
        kernel: AddressSpace,
        /// Tells those of the lower half: only who looks there has to know.
        user: &'a dyn Fn() -> AddressSpace,
    },
}

impl Spaces<'_> {
    /// Those that `at` goes through.
    #[must_use]
    pub fn of(&self, at: Gva) -> AddressSpace {
        match self {
            Self::One(space) => *space,
            Self::Halves { kernel, .. } if at.is_kernels() => *kernel,
            Self::Halves { user, .. } => user(),
        }
    }
}

impl From<AddressSpace> for Spaces<'_> {
    fn from(space: AddressSpace) -> Self {
        Self::One(space)
    }
}

/// A way through the page tables that an access is allowed to go.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Translation {
    /// Where it ends.
    pub(crate) gpa: Gpa,
    /// Whether user mode may go it as well.
    pub(crate) is_user: bool,
    /// The entries on the way that do not show the access yet.
    unmarked: [Option<Unmarked>; 5],
}

/// An entry as it was read, and the bits that it lacks.
#[derive(Debug, Clone, Copy)]
struct Unmarked {
    at: Gpa,
    entry: u64,
    missing: u64,
}

impl Translation {
    /// Sets the accessed flags on the way, and the dirty flag of a page that is to be written (SDM volume 3, 4.8).
    /// Entries that have them are not written.
    ///
    /// Returns false when an entry has changed since it was read: then it is another way now.
    pub(crate) fn mark<M: PhysMemory + ?Sized>(&self, memory: &M) -> Result<bool, NoMemory> {
        for Unmarked { at, entry, missing } in self.unmarked.into_iter().flatten() {
            if !memory.compare_exchange(at, entry, entry | missing)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A translation that the guest's page tables do not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("page fault at {at} (error code {code:#x})")]
pub struct PageFault {
    /// The address that CR2 would hold.
    pub at: Gva,
    /// The error code of the exception: bit 0 protection, bit 1 write (SDM volume 3, 4.7).
    pub code: u32,
    /// Whether the address exists at all in the address space that was asked: the CPU answers an access to one
    /// that does not with #GP or #SS, and not with #PF (SDM volume 1, 3.3.7.1).
    pub canonical: bool,
}

impl AddressSpace {
    /// The address space of these control registers. Bits 11:0 of CR3 (PCID) are not part of the address.
    #[must_use]
    pub fn new(cr3: u64, cr4: u64) -> Self {
        const LA57: u64 = 1 << 12;
        const SMAP: u64 = 1 << 21;
        let levels = if cr4 & LA57 != 0 { 5 } else { 4 };
        Self { root: Gpa(cr3 & FRAME), levels, smap: cr4 & SMAP != 0, ignores_read_only: false }
    }

    /// Those with this top table, of 4 levels and of 5.
    #[must_use]
    pub fn both_depths(root: Gpa) -> [Self; 2] {
        [4, 5].map(|levels| Self { root, levels, smap: false, ignores_read_only: false })
    }

    /// The same, with CR0.WP clear.
    #[must_use]
    pub fn ignoring_read_only(self) -> Self {
        Self { ignores_read_only: true, ..self }
    }

    /// Where its top table is: the address in CR3.
    #[must_use]
    pub fn root(&self) -> Gpa {
        self.root
    }

    /// Whether the bits of `at` above those that are translated all equal the highest of them: from bit 47 up with
    /// 4 levels, from bit 56 up with 5 (SDM volume 1, 3.3.7.1).
    #[must_use]
    pub fn is_canonical(&self, at: Gva) -> bool {
        let unused = 64 - (12 + 9 * self.levels);
        (((at.0 << unused) as i64) >> unused) as u64 == at.0
    }

    /// The fault of a supervisor access to `at` when no page is there.
    pub(crate) fn not_present(&self, at: Gva, access: Access) -> PageFault {
        let code = if access == Access::Write { 2 } else { 0 };
        PageFault { at, code, canonical: self.is_canonical(at) }
    }

    /// The fault of a supervisor access to `at` that the page there forbids.
    pub(crate) fn protection(&self, at: Gva, access: Access) -> PageFault {
        const PROTECTION: u32 = 1;
        let fault = self.not_present(at, access);
        PageFault { code: fault.code | PROTECTION, ..fault }
    }

    /// The guest-physical address behind `at`. The page tables stay as they are: this is the host looking.
    ///
    /// # Errors
    /// The [`PageFault`] that supervisor code would meet: not mapped, not canonical (which the CPU reports as
    /// #GP, and for which no page exists either), or not writable for a store. Pages of user mode are open to the
    /// host at any time.
    pub fn translate<M: PhysMemory + ?Sized>(
        &self,
        memory: &M,
        at: Gva,
        access: Access,
    ) -> Result<Gpa, PageFault> {
        self.walk(memory, at, access).map(|walk| walk.gpa)
    }

    /// The way to `at`; errors as for [`translate`](Self::translate).
    pub(crate) fn walk<M: PhysMemory + ?Sized>(
        &self,
        memory: &M,
        at: Gva,
        access: Access,
    ) -> Result<Translation, PageFault> {
        let fault = self.not_present(at, access);
        if !fault.canonical {
            return Err(fault);
        }
        let mut table = self.root;
        let mut is_writable = true;
        let mut is_user = true;
        let mut unmarked = [None; 5];
        for (level, slot) in (0..self.levels).rev().zip(&mut unmarked) {
            let shift = 12 + 9 * level;
            let entry_at = table.add(((at.0 >> shift) & 0x1ff) * 8);
            let entry = memory.read_u64(entry_at).map_err(|_| fault)?;
            if entry & PRESENT == 0 {
                return Err(fault);
            }
            is_writable &= entry & WRITABLE != 0 || self.ignores_read_only;
            is_user &= entry & USER != 0;
            let is_leaf = level == 0 || (level <= 2 && entry & LARGE != 0);
            let marks = if is_leaf && access == Access::Write { ACCESSED | DIRTY } else { ACCESSED };
            let missing = marks & !entry;
            if missing != 0 {
                *slot = Some(Unmarked { at: entry_at, entry, missing });
            }
            if is_leaf {
                if access == Access::Write && !is_writable {
                    return Err(self.protection(at, access));
                }
                let inside = (1u64 << shift) - 1;
                let gpa = Gpa((entry & FRAME & !inside) | (at.0 & inside));
                return Ok(Translation { gpa, is_user, unmarked });
            }
            table = Gpa(entry & FRAME);
        }
        Err(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::testing::Ram;
    use crate::virt_memory::VirtMemory;

    /// Two 4 KiB pages at 0xffff_8000_0000_0000 (the second read-only) and a 2 MiB page above them.
    fn ram(levels: u32) -> (Ram, AddressSpace) {
        let ram = Ram::new(0x60_0000);
        let top = if levels == 5 { 511 } else { 256 };
        if levels == 5 {
            ram.set(0x6000, 511, 0x1000 | 3);
        }
        let first = if levels == 5 { 256 } else { top };
        ram.set(0x1000, first, 0x2000 | 3);
        ram.set(0x2000, 0, 0x3000 | 3);
        ram.set(0x3000, 0, 0x4000 | 3);
        ram.set(0x3000, 1, 0x20_0000 | 0x83);
        ram.set(0x4000, 0, 0x8000 | 3);
        ram.set(0x4000, 1, 0x9000 | 1);
        let space = match levels {
            5 => AddressSpace::new(0x6000 | 0x805, 1 << 12),
            _ => AddressSpace::new(0x1000 | 0x805, 0),
        };
        (ram, space)
    }

    #[test]
    fn both_depths_translate_and_ignore_the_pcid() {
        for (levels, base) in [(4, 0xffff_8000_0000_0000), (5, 0xffff_8000_0000_0000u64)] {
            let (ram, space) = ram(levels);
            let at = |offset| space.translate(&ram, Gva(base + offset), Access::Read);
            assert_eq!(at(0x123), Ok(Gpa(0x8123)), "{levels} levels");
            assert_eq!(at(0x20_0456), Ok(Gpa(0x20_0456)), "{levels} levels");
            assert_eq!(at(0x2000).map_err(|f| f.code), Err(0));
        }
    }

    #[test]
    fn a_store_to_a_read_only_page_is_a_protection_fault_and_changes_nothing() {
        let (ram, space) = ram(4);
        let memory = VirtMemory::new(&ram, space);
        let crossing = Gva(0xffff_8000_0000_0ffc);
        assert_eq!(
            memory.write(crossing, &[1; 8]),
            Err(PageFault { at: Gva(0xffff_8000_0000_1000), code: 3, canonical: true })
        );
        let mut untouched = [9; 4];
        memory.read(crossing, &mut untouched).unwrap();
        assert_eq!(untouched, [0; 4]);
    }

    #[test]
    fn a_fault_says_whether_its_own_space_has_the_address() {
        // address, canonical with 4 levels, with 5
        let cases = [
            (0x0000_7fff_ffff_f000, true, true),
            (0x0000_8000_0000_0000, false, true),
            (0x00ff_ffff_ffff_f000, false, true),
            (0x0100_0000_0000_0000, false, false),
            (0xfeff_ffff_ffff_f000, false, false),
            (0xff11_0000_0000_0000, false, true),
            (0xffff_7fff_ffff_f000, false, true),
            (0xffff_ffff_ffff_f000, true, true),
        ];
        for (at, with_4, with_5) in cases {
            for (levels, canonical) in [(4, with_4), (5, with_5)] {
                let (ram, space) = ram(levels);
                let fault = PageFault { at: Gva(at), code: 2, canonical };
                let translated = space.translate(&ram, Gva(at), Access::Write);
                assert_eq!(translated, Err(fault), "{levels} levels");
                assert_eq!(VirtMemory::new(&ram, space).write(Gva(at), &[0]), Err(fault));
            }
        }
    }

    #[test]
    fn each_half_has_its_tables() {
        let (ram, kernel) = ram(4);
        let asked = std::cell::Cell::new(0);
        let user = || {
            asked.set(asked.get() + 1);
            AddressSpace::new(0x6000, 0)
        };
        ram.set(0x6000, 0, 0x2000 | 3);
        let memory = VirtMemory::new(&ram, Spaces::Halves { kernel, user: &user });
        assert_eq!(memory.translate(Gva(0xffff_8000_0000_0123), Access::Read), Ok(Gpa(0x8123)));
        assert_eq!(asked.get(), 0);
        assert_eq!(memory.translate(Gva(0x123), Access::Read), Ok(Gpa(0x8123)));
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn not_canonical_and_tables_outside_memory_fault() {
        let (ram, space) = ram(4);
        assert!(space.translate(&ram, Gva(0x8000_0000_0000), Access::Read).is_err());
        let outside = AddressSpace::new(0x7fff_ffff_f000, 0);
        assert!(outside.translate(&ram, Gva(0), Access::Read).is_err());
    }
}
