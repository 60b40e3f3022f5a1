//! Guest-virtual memory: guest-physical memory through page tables of the guest's.

use crate::addr::{Gpa, Gva};
use crate::memory::PhysMemory;
use crate::paging::{Access, PageFault, Spaces};
use std::iter;

/// Longest string that is kept, in bytes, as the kernel's own probes do (PATH_MAX).
pub const LONGEST_STRING: u16 = 4096;

/// Guest-virtual memory that can be read.
pub trait ReadVirt {
    /// Longest string that there is of it, in bytes.
    const LONGEST_STRING: u16;

    /// Fills `buf` from guest-virtual `at`, which may cross pages.
    ///
    /// # Errors
    /// The first [`PageFault`] on the way; `buf` may then be partly filled.
    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), PageFault>;

    /// Reads one little-endian u64 at guest-virtual `at`.
    ///
    /// # Errors
    /// The [`PageFault`] that the guest's own load would have met.
    fn read_u64(&self, at: Gva) -> Result<u64, PageFault> {
        let mut b = [0; 8];
        self.read(at, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }
}

/// Guest memory through page tables, as the host looks at it: what the kernel could reach, pages of
/// its processes included, and without a trace in the page tables. What is written to a page that the guest holds clean
/// can therefore be lost when the guest takes it back.
pub struct VirtMemory<'a, M: PhysMemory + ?Sized> {
    /// The RAM below the page tables.
    pub phys: &'a M,
    /// The page tables.
    pub spaces: Spaces<'a>,
}

impl<M: PhysMemory + ?Sized> Clone for VirtMemory<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: PhysMemory + ?Sized> Copy for VirtMemory<'_, M> {}

impl<'a, M: PhysMemory + ?Sized> VirtMemory<'a, M> {
    /// The memory of `phys` through these page tables.
    pub fn new(phys: &'a M, spaces: impl Into<Spaces<'a>>) -> Self {
        Self { phys, spaces: spaces.into() }
    }

    /// The guest-physical address behind `at`.
    ///
    /// # Errors
    /// As for [`AddressSpace::translate`].
    pub fn translate(&self, at: Gva, access: Access) -> Result<Gpa, PageFault> {
        self.spaces.of(at).translate(self.phys, at, access)
    }

    /// Fills `buf` from guest-virtual `at`, which may cross pages.
    ///
    /// # Errors
    /// The first [`PageFault`] on the way; `buf` may then be partly filled.
    pub fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), PageFault> {
        let mut at = at;
        let mut rest = buf;
        while !rest.is_empty() {
            let n = page_rest(at).min(rest.len());
            let (now, later) = rest.split_at_mut(n);
            let space = self.spaces.of(at);
            let gpa = space.translate(self.phys, at, Access::Read)?;
            self.phys.read(gpa, now).map_err(|_| space.not_present(at, Access::Read))?;
            at = at.add(n as u64);
            rest = later;
        }
        Ok(())
    }

    /// Reads one little-endian u32 at guest-virtual `at`.
    ///
    /// # Errors
    /// The [`PageFault`] that the guest's own load would have met.
    pub fn read_u32(&self, at: Gva) -> Result<u32, PageFault> {
        let mut b = [0; 4];
        self.read(at, &mut b)?;
        Ok(u32::from_le_bytes(b))
    }

    /// Reads one little-endian u64 at guest-virtual `at`.
    ///
    /// # Errors
    /// The [`PageFault`] that the guest's own load would have met.
    pub fn read_u64(&self, at: Gva) -> Result<u64, PageFault> {
        let mut b = [0; 8];
        self.read(at, &mut b)?;
        Ok(u64::from_le_bytes(b))
    }

    /// Writes `bytes` to guest-virtual `at`. All pages are translated before the first byte changes, so that nothing
    /// is written when one of them cannot be, unless the guest changes its page tables meanwhile, or maps what is no
    /// RAM.
    ///
    /// # Errors
    /// The first [`PageFault`] that the guest's own stores would have met.
    pub fn write(&self, at: Gva, bytes: &[u8]) -> Result<(), PageFault> {
        if bytes.len() > page_rest(at) {
            for (at, _) in by_page(at, bytes) {
                self.translate(at, Access::Write)?;
            }
        }
        for (at, part) in by_page(at, bytes) {
            let space = self.spaces.of(at);
            let gpa = space.translate(self.phys, at, Access::Write)?;
            self.phys.write(gpa, part).map_err(|_| space.not_present(at, Access::Write))?;
        }
        Ok(())
    }
}

impl<M: PhysMemory + ?Sized> ReadVirt for VirtMemory<'_, M> {
    const LONGEST_STRING: u16 = LONGEST_STRING;

    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), PageFault> {
        self.read(at, buf)
    }
}

/// The parts of `bytes` that lie in one 4 KiB page each when they start at `at`, and where. Behind the last address
/// comes the first, as for the CPU.
fn by_page(at: Gva, bytes: &[u8]) -> impl Iterator<Item = (Gva, &[u8])> {
    let (mut at, mut rest) = (at, bytes);
    iter::from_fn(move || {
        let (part, later) = rest.split_at(page_rest(at).min(rest.len()));
        let start = at;
        at = at.add(part.len() as u64);
        rest = later;
        (!part.is_empty()).then_some((start, part))
    })
}

/// Bytes from `at` to the end of its 4 KiB page.
pub(crate) fn page_rest(at: Gva) -> usize {
    0x1000 - (at.0 & 0xfff) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::testing::Ram;
    use crate::paging::AddressSpace;

    const PAGE: Gva = Gva(0xffff_c900_0000_0000);

    /// Three pages from [`PAGE`] on, in another order in physical memory and with gaps between them.
    fn three_pages() -> (Ram, AddressSpace) {
        let ram = Ram::new(0xb000);
        ram.set(0x1000, PAGE.0 >> 39 & 0x1ff, 0x2003);
        ram.set(0x2000, PAGE.0 >> 30 & 0x1ff, 0x3003);
        ram.set(0x3000, PAGE.0 >> 21 & 0x1ff, 0x4003);
        for (index, frame) in [(0, 0x7000), (1, 0x9000), (2, 0x5000)] {
            ram.set(0x4000, index, frame | 3);
        }
        (ram, AddressSpace::new(0x1000, 0))
    }

    #[test]
    fn a_write_goes_to_each_page_where_it_lies_and_nowhere_else() {
        let (ram, space) = three_pages();
        let memory = VirtMemory::new(&ram, space);
        let bytes: Vec<u8> = (0..0x1800).map(|n| (n % 251) as u8 + 1).collect();
        memory.write(PAGE.add(0xc00), &bytes).unwrap();
        let mut expected = vec![0; 0xb000 - 0x5000];
        expected[0x2c00..0x3000].copy_from_slice(&bytes[..0x400]);
        expected[0x4000..0x5000].copy_from_slice(&bytes[0x400..0x1400]);
        expected[..0x400].copy_from_slice(&bytes[0x1400..]);
        let mut all = vec![0; expected.len()];
        ram.read(Gpa(0x5000), &mut all).unwrap();
        assert!(all == expected);
        let mut back = vec![0; bytes.len()];
        memory.read(PAGE.add(0xc00), &mut back).unwrap();
        assert!(back == bytes);
    }

    #[test]
    fn nothing_is_written_when_the_last_page_cannot_be() {
        let (ram, space) = three_pages();
        ram.set(0x4000, 2, 0);
        let before = ram.clone();
        let memory = VirtMemory::new(&ram, space);
        let fault = memory.write(PAGE.add(0xc00), &[1; 0x1800]);
        assert_eq!(fault, Err(space.not_present(PAGE.add(0x2000), Access::Write)));
        assert!(ram == before);
        assert_eq!(memory.write(PAGE, &[]), Ok(()));
    }

    #[test]
    fn behind_the_last_address_comes_the_first() {
        let (ram, space) = three_pages();
        let last = Gva(0xffff_ffff_ffff_f000);
        for (level, table) in [(3, 0x1000), (2, 0x2000), (1, 0x3000)] {
            ram.set(table, last.0 >> (12 + 9 * level) & 0x1ff, (table + 0x1000) | 3);
        }
        ram.set(0x4000, 511, 0x8003);
        let memory = VirtMemory::new(&ram, space);
        let near_end = last.add(0xffc);
        assert_eq!(memory.write(near_end, &[1; 8]), Err(space.not_present(Gva(0), Access::Write)));
        for table in [0x1000, 0x2000, 0x3000] {
            ram.set(table, 0, (table + 0x1000) | 3);
        }
        memory.write(near_end, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let mut parts = [0; 8];
        let (end, start) = parts.split_at_mut(4);
        ram.read(Gpa(0x8ffc), end).unwrap();
        ram.read(Gpa(0x7000), start).unwrap();
        assert_eq!(parts, [1, 2, 3, 4, 5, 6, 7, 8]);
    }
}
