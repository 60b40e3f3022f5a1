//! What the words of the guest's RAM say that was ever touched, by the guest or by us.
//!
//! The host's kernel knows which pages these are (Documentation/admin-guide/mm/pagemap.rst). Not mincore(2): it does not
//! see a page that the host has swapped out.
//!
//! The world stands still meanwhile, so that the processors on which vCPUs ran have nothing else to do: each looks at a
//! block at a time, in place.

use crate::memory::GuestRam;
use crate::world::Parked;
use probe_engine::addr::Gva;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use vm_memory::{FileOffset, GuestMemoryRegion, GuestRegionMmap, MemoryRegionAddress, VolatileMemory};

const PAGE: u64 = 4096;
/// Pages that are asked for at once: 16 MiB.
const BLOCK: u64 = 4096;
/// What is worth a thread of its own.
const BLOCKS: usize = 4;

/// Pages of RAM that follow one another.
struct Block<'a> {
    region: &'a GuestRegionMmap,
    /// Their numbers in the region.
    pages: Range<u64>,
}

/// What those aligned words of RAM stand for that lie in `places`, as `of` says. It has to be less than the guest can put
/// into its RAM.
///
/// # Errors
/// The host does not say which pages were touched.
pub(crate) fn pointed_to<K: Ord + Send, I: IntoIterator<Item = K>>(
    _: &Parked<'_>,
    ram: &GuestRam,
    places: &Range<Gva>,
    of: impl Fn(Gva) -> I + Sync,
) -> io::Result<BTreeSet<K>> {
    let pagemap = File::open("/proc/self/pagemap")?;
    let blocks: Vec<Block<'_>> = ram.regions().flat_map(blocks).collect();
    let next = AtomicUsize::new(0);
    let look = || -> io::Result<BTreeSet<K>> {
        let mut found = BTreeSet::new();
        while let Some(block) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
            block.look(&pagemap, places, |word| found.extend(of(word)))?;
        }
        Ok(found)
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let helpers = (blocks.len() / BLOCKS).min(processors.saturating_sub(1));
    thread::scope(|scope| {
        // Who cannot be had leaves the work to the others.
        let helper = || thread::Builder::new().spawn_scoped(scope, look).ok();
        let helpers: Vec<_> = (0..helpers).filter_map(|_| helper()).collect();
        let mut found = look()?;
        for helper in helpers {
            let its =
                helper.join().map_err(|_| io::Error::other("a thread that looked at RAM has panicked"))?;
            found.extend(its?);
        }
        Ok(found)
    })
}

fn blocks(region: &GuestRegionMmap) -> impl Iterator<Item = Block<'_>> {
    let end = region.len() / PAGE;
    (0..end)
        .step_by(BLOCK as usize)
        .map(move |first| Block { region, pages: first..(first + BLOCK).min(end) })
}

impl Block<'_> {
    /// Which pages were touched, of memory that is mapped once.
    fn mapped(&self, pagemap: &File) -> io::Result<[bool; BLOCK as usize]> {
        /// Bit 63: present; bit 62: swapped out.
        const TOUCHED: u64 = 3 << 62;
        let mut entries = [0; BLOCK as usize * 8];
        let (entries, _) = entries.split_at_mut((self.pages.end - self.pages.start) as usize * 8);
        pagemap.read_exact_at(entries, (self.region.as_ptr() as u64 / PAGE + self.pages.start) * 8)?;
        let mut touched = [false; BLOCK as usize];
        for (touched, entry) in touched.iter_mut().zip(entries.as_chunks().0) {
            *touched = u64::from_ne_bytes(*entry) & TOUCHED != 0;
        }
        Ok(touched)
    }

    /// Which pages were touched, of a file in memory: whoever does so makes them part of the file.
    fn in_file(&self, part: &FileOffset) -> io::Result<[bool; BLOCK as usize]> {
        let begin = part.start() + self.pages.start * PAGE;
        let end = part.start() + self.pages.end * PAGE;
        let mut touched = [false; BLOCK as usize];
        let mut at = begin;
        while at < end {
            let data = match seek(part.file(), SeekFrom::Data(at)) {
                Ok(data) => data,
                // There are none behind it.
                Err(Errno::NXIO) => break,
                Err(error) => return Err(error.into()),
            };
            at = seek(part.file(), SeekFrom::Hole(data))?.max(at + PAGE);
            let pages = (data.clamp(begin, end) - begin) / PAGE..(at.min(end) - begin).div_ceil(PAGE);
            let pages = touched.get_mut(pages.start as usize..pages.end as usize).unwrap_or_default();
            pages.fill(true);
        }
        Ok(touched)
    }

    /// Shows each word of a touched page that lies in `places` to `found`. All other pages are zero.
    fn look(&self, pagemap: &File, places: &Range<Gva>, mut found: impl FnMut(Gva)) -> io::Result<()> {
        let (start, length) = (places.start.0, places.end.0 - places.start.0);
        let is_place = |word: u64| word.wrapping_sub(start) < length;
        let touched = match self.region.file_offset() {
            Some(part) => self.in_file(part)?,
            None => self.mapped(pagemap)?,
        };
        for (number, _) in self.pages.clone().zip(touched).filter(|(_, touched)| *touched) {
            let Ok(page) = self.region.get_slice(MemoryRegionAddress(number * PAGE), PAGE as usize) else {
                continue;
            };
            let words = page.get_array_ref::<u64>(0, PAGE as usize / 8).map_err(io::Error::other)?;
            let words = (0..words.len()).map(|n| words.load(n));
            // Nearly all pages end here, without a branch for each word.
            if words.clone().fold(false, |any, word| any | is_place(word)) {
                words.filter(|word| is_place(*word)).map(Gva).for_each(&mut found);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::World;
    use probe_engine::addr::Gpa;
    use probe_engine::memory::PhysMemory;
    use vmm_sys_util::eventfd::EventFd;

    #[test]
    fn words_of_touched_pages_are_found_wherever_they_are() {
        are_found(&GuestRam::new(5 << 30).unwrap());
        are_found(&GuestRam::sealable(5 << 30).unwrap());
    }

    fn are_found(ram: &GuestRam) {
        let world = World::<(), ()>::new(0, (), EventFd::new(0).unwrap().into());
        let parked = world.park(|_| {});
        // The first and last page of both parts of RAM, and one in the third block; the ends of what is looked for, and what
        // lies beside them.
        let places = Gva(0x1000)..Gva(0x1005);
        let pages = [0, 0xbfff_f000, 0x1_0000_0000, 0x1_7fff_f000, 40 << 20];
        for (n, at) in (0..).zip(pages) {
            ram.write(Gpa(at + 8), &(0x1000 + n as u64).to_le_bytes()).unwrap();
            ram.write(Gpa(at + 0xff8), &(if n == 0 { 0xfff_u64 } else { 0x1005 }).to_le_bytes()).unwrap();
            // Not a word: it is not aligned.
            ram.write(Gpa(at + 0x14), &0x1004_u64.to_le_bytes()).unwrap();
        }
        ram.write_code(crate::layout::RESERVED, &0x1004_u64.to_le_bytes()).unwrap();
        let found = pointed_to(&parked, ram, &places, |word| [word]).unwrap();
        assert_eq!(found, (0x1000..0x1005).map(Gva).collect());
        let twice =
            pointed_to(&parked, ram, &(Gva(0x1001)..Gva(0x1003)), |word| [word.0, word.0 * 2]).unwrap();
        assert_eq!(twice, [0x1001, 0x1002, 0x2002, 0x2004].into());
    }
}
