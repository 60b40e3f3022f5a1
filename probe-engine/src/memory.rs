//! Guest memory as the engine sees it: two small traits, implemented by the VMM and by byte arrays in tests.

use crate::addr::{Gpa, Gva};
use crate::paging::{Access, AddressSpace, PageFault};

/// Guest-physical memory.
pub trait PhysMemory {
    /// Fills `buf` from `at`, or reads nothing.
    ///
    /// # Errors
    /// [`NoMemory`] when any byte of the range is not backed by guest RAM.
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory>;

    /// Writes `bytes` to `at`, or nothing.
    ///
    /// # Errors
    /// [`NoMemory`] when any byte of the range is not backed by guest RAM.
    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory>;
}

/// The guest-physical range is not (entirely) RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no guest memory at physical address {0}")]
pub struct NoMemory(pub Gpa);

/// Guest memory through one address space's page tables, as one CPL sees it.
pub struct VirtMemory<'a, M: PhysMemory + ?Sized> {
    /// The RAM below the page tables.
    pub phys: &'a M,
    /// Whose page tables.
    pub space: AddressSpace,
}

impl<M: PhysMemory + ?Sized> VirtMemory<'_, M> {
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
            let gpa = self.space.translate(self.phys, at, Access::Read)?;
            self.phys.read(gpa, now).map_err(|_| self.space.not_present(at, Access::Read))?;
            at = at.add(n as u64);
            rest = later;
        }
        Ok(())
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

    /// Writes `bytes` (at most one page) to guest-virtual `at`, all or nothing as the CPU does: both pages of
    /// a crossing write are translated before the first byte changes.
    ///
    /// # Errors
    /// The [`PageFault`] that the guest's own store would have met.
    pub fn write(&self, at: Gva, bytes: &[u8]) -> Result<(), PageFault> {
        let n = page_rest(at).min(bytes.len());
        let (first, second) = bytes.split_at(n);
        let next = at.add(n as u64);
        let first_gpa = self.space.translate(self.phys, at, Access::Write)?;
        let second_gpa = match second {
            [] => None,
            _ => Some(self.space.translate(self.phys, next, Access::Write)?),
        };
        self.phys.write(first_gpa, first).map_err(|_| self.space.not_present(at, Access::Write))?;
        if let Some(gpa) = second_gpa {
            self.phys.write(gpa, second).map_err(|_| self.space.not_present(next, Access::Write))?;
        }
        Ok(())
    }
}

/// Bytes from `at` to the end of its 4 KiB page.
fn page_rest(at: Gva) -> usize {
    0x1000 - (at.0 & 0xfff) as usize
}
