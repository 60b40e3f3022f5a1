//! The pages of the guest's RAM that were ever touched, by the guest or by us.
//!
//! The host's kernel knows them (Documentation/admin-guide/mm/pagemap.rst). Not mincore(2): it does not see a page
//! that the host has swapped out.

use crate::memory::GuestRam;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use vm_memory::{GuestMemoryRegion, MemoryRegionAddress};

const PAGE: u64 = 4096;

/// The 64-bit words of a page.
pub(crate) type Words = [u64; PAGE as usize / 8];

/// Shows every touched page of RAM to `visit`. All other pages are zero.
///
/// # Errors
/// The host does not say which they are.
pub(crate) fn each_page(ram: &GuestRam, mut visit: impl FnMut(&Words)) -> io::Result<()> {
    /// Bit 63: present; bit 62: swapped out.
    const TOUCHED: u64 = 3 << 62;
    /// Pages asked for at once.
    const BLOCK: u64 = 8192;
    let pagemap = File::open("/proc/self/pagemap")?;
    let mut entries = vec![0; BLOCK as usize * 8];
    let mut page: Words = [0; _];
    for region in ram.regions() {
        let host = region.as_ptr() as u64 / PAGE;
        let pages = region.len() / PAGE;
        for first in (0..pages).step_by(BLOCK as usize) {
            let count = BLOCK.min(pages - first);
            entries.resize(count as usize * 8, 0);
            pagemap.read_exact_at(&mut entries, (host + first) * 8)?;
            let (words, _) = entries.as_chunks();
            for (number, word) in (first..).zip(words) {
                if u64::from_ne_bytes(*word) & TOUCHED != 0
                    && let Ok(slice) = region.get_slice(MemoryRegionAddress(number * PAGE), PAGE as usize)
                {
                    slice.copy_to(&mut page);
                    visit(&page);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gpa;
    use probe_engine::memory::PhysMemory;

    #[test]
    fn touched_pages_are_shown_once_and_no_others() {
        let ram = GuestRam::new(5 << 30).unwrap();
        // The first and last page of both parts of RAM, and one in the second block.
        let pages = [0, 0xbfff_f000, 0x1_0000_0000, 0x1_7fff_f000, 40 << 20];
        for (mark, at) in (1..).zip(pages) {
            ram.write(Gpa(at + 8), &[mark]).unwrap();
        }
        ram.write(crate::boot::layout::RESERVED, &[0xff]).unwrap();
        let mut marks = Vec::new();
        let mut shown = 0;
        each_page(&ram, |page| {
            shown += 1;
            marks.extend(page.iter().copied().filter(|word| *word != 0));
        })
        .unwrap();
        marks.sort_unstable();
        assert_eq!(marks, [1, 2, 3, 4, 5]);
        // The host may use large pages of its own, and then shows more.
        assert!(shown <= pages.len() * 512, "{shown}");
    }
}
