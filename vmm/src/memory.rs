//! The guest's memory: anonymous host memory, or, where pages of it can be [sealed](GuestRam::seal), a file in memory. Its RAM is
//! laid out around the hole below 4 GiB; the reserved memory lies in the hole.
#![allow(unsafe_code, reason = "the host is told about its mappings by address")]

mod seals;

use crate::layout;
use probe_engine::addr::Gpa;
use probe_engine::memory::{NoMemory, PhysMemory};
use rustix::mm::{Advice, madvise};
use seals::Seals;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use vm_memory::{
    Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
    MemoryRegionAddress, VolatileMemory,
};

/// Devices and firmware tables of a PC live between here and 4 GiB; RAM goes on above.
const HOLE_START: u64 = 0xc000_0000;
const HOLE_END: u64 = 0x1_0000_0000;

/// The RAM of one guest, and the [reserved memory](layout::RESERVED) that it does not know. Pages appear when they
/// are first touched.
pub struct GuestRam {
    /// All of it.
    backing: GuestMemoryMmap,
    /// The RAM alone.
    ram: Arc<GuestMemoryMmap>,
    /// That below the hole, from 0 on, where most of what is read lies.
    low: Option<Arc<GuestRegionMmap>>,
    /// The RAM as the guest sees it, where pages of it can be sealed.
    seals: Option<Seals>,
}

/// The host refused the memory for the guest.
#[derive(Debug, thiserror::Error)]
#[error("cannot reserve {mib} MiB for the guest")]
pub struct OutOfMemory {
    mib: u64,
    #[source]
    source: io::Error,
}

impl GuestRam {
    /// Reserves `size` bytes of RAM, a multiple of the page size, and the reserved memory.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the host has no address space for it.
    pub fn new(size: u64) -> Result<Self, OutOfMemory> {
        Self::of(size, || Self::map(size, None))
    }

    /// The same, of which pages can be [sealed](Self::seal). It is a file in memory, whose pages are small on hosts that do not
    /// give such files large ones (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn sealable(size: u64) -> Result<Self, OutOfMemory> {
        Self::of(size, || Self::map(size, Some(&Arc::new(seals::ram_file(size)?))))
    }

    fn of(size: u64, map: impl FnOnce() -> io::Result<Self>) -> Result<Self, OutOfMemory> {
        let ram = map().map_err(|source| OutOfMemory { mib: size >> 20, source })?;
        ram.want_large_pages();
        Ok(ram)
    }

    /// `file`: what the RAM is, if that is to be mapped twice.
    fn map(size: u64, file: Option<&Arc<File>>) -> io::Result<Self> {
        let mut ranges = ranges(size);
        // Code and data apart, for slots of their own.
        let end = layout::RESERVED.add(layout::RESERVED_SIZE);
        ranges.splice(1..1, [layout::RESERVED..layout::RESERVED_DATA, layout::RESERVED_DATA..end]);
        let mut in_file = 0;
        let (mut regions, mut views) = (Vec::new(), Vec::new());
        for range in ranges {
            let (at, length) = (GuestAddress(range.start.0), range.end.0 - range.start.0);
            let map = |part| GuestRegionMmap::from_range(at, length as usize, part).map_err(io::Error::other);
            let part = file.filter(|_| !is_reserved(range.start)).map(|file| {
                let part = FileOffset::from_arc(file.clone(), in_file);
                in_file += length;
                part
            });
            if part.is_some() {
                views.push(map(part.clone())?);
            }
            regions.push(Arc::new(map(part)?));
        }
        let low = regions.first().filter(|region| region.start_addr().0 == 0).cloned();
        let is_ram = |region: &&Arc<GuestRegionMmap>| !is_reserved(Gpa(region.start_addr().0));
        let ram = regions.iter().filter(is_ram).cloned().collect();
        let of = |regions| GuestMemoryMmap::from_arc_regions(regions).map_err(io::Error::other);
        let seals = file.map(|_| Seals::new(views));
        Ok(Self { ram: Arc::new(of(ram)?), backing: of(regions)?, low, seals })
    }

    /// Asks for pages of 2 MiB: fewer faults and a shorter way to each page for the guest, and for who looks at all of them.
    /// A host that has none goes on with small ones.
    fn want_large_pages(&self) {
        let views = self.seals.iter().flat_map(Seals::views);
        for region in self.regions().chain(views) {
            // SAFETY: the region is a mapping of this size that `self` owns, and the advice does not change what it holds.
            let _ = unsafe { madvise(region.as_ptr().cast(), region.len() as usize, Advice::LinuxHugepage) };
        }
    }

    /// The RAM in order of guest-physical address.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<Gpa>> {
        let range = |r: &GuestRegionMmap| {
            let start = Gpa(r.start_addr().0);
            start..start.add(r.len())
        };
        self.regions().map(range).collect()
    }

    /// The RAM as mappings in the host, in order of guest-physical address.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &GuestRegionMmap> {
        self.backing.iter().filter(|r| !is_reserved(Gpa(r.start_addr().0)))
    }

    /// The RAM as devices reach it, which write whatever they are told to where the guest says.
    #[must_use]
    pub fn of_devices(&self) -> Arc<GuestMemoryMmap> {
        self.ram.clone()
    }

    /// The end of the RAM below the hole, which is where firmware-era data must be.
    #[must_use]
    pub fn low_end(&self) -> Gpa {
        self.ranges().first().map_or(Gpa(0), |r| r.end)
    }

    /// The same, with `size` bytes of RAM.
    pub(crate) fn low_end_of(size: u64) -> Gpa {
        Gpa(size.min(HOLE_START))
    }

    /// All memory, the reserved one too, as KVM and the loaders of other crates take it.
    #[must_use]
    pub fn backing(&self) -> &GuestMemoryMmap {
        &self.backing
    }
}

impl GuestRam {
    /// Writes our own code at `at`, where nothing else may write. The guest chooses where its accesses go that are carried
    /// out for it, by its page tables; a memory slot that it cannot write to would not keep those off.
    ///
    /// # Errors
    /// There is no memory. Nothing is written then.
    pub(crate) fn write_code(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
        if !self.backing.check_range(GuestAddress(at.0), bytes.len()) {
            return Err(NoMemory(at));
        }
        self.backing.write_slice(bytes, GuestAddress(at.0)).map_err(|_| NoMemory(at))
    }
}

impl GuestRam {
    /// Where the memory that begins at `region` is for the guest, in the host (HVA).
    pub(crate) fn as_guest_sees(&self, region: &GuestRegionMmap) -> u64 {
        let view = self.seals.as_ref().and_then(|seals| seals.host_address(Gpa(region.start_addr().0)));
        view.unwrap_or(region.as_ptr() as u64)
    }

    /// The same memory, with its sealed pages.
    pub(crate) fn unsealed(&self) -> Unsealed<'_> {
        Unsealed(self)
    }

    /// The guest cannot write these whole pages from now on: its stores come back as
    /// [`Exit::Sealed`](crate::kvm::Exit::Sealed). Nor does the host on the guest's behalf.
    ///
    /// # Errors
    /// No such pages of RAM, or RAM that is not [sealable](Self::sealable).
    pub fn seal(&self, pages: &Range<Gpa>) -> io::Result<()> {
        self.set_seals(pages, true)
    }

    /// It can write them again.
    ///
    /// # Errors
    /// As [`seal`](Self::seal).
    pub fn unseal(&self, pages: &Range<Gpa>) -> io::Result<()> {
        self.set_seals(pages, false)
    }

    fn set_seals(&self, pages: &Range<Gpa>, are_sealed: bool) -> io::Result<()> {
        let seals = self.seals.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        seals.set(pages, are_sealed)
    }

    /// Whether any of `length` bytes at `at` are sealed: what the host does on the guest's behalf does not write them either.
    #[must_use]
    pub fn is_sealed(&self, at: Gpa, length: usize) -> bool {
        self.seals.as_ref().is_some_and(|seals| seals.covers(at, length))
    }

    /// The same, of what a device was told to write, which it does not then: that is [remembered](Self::take_refused).
    pub(crate) fn refuses(&self, at: Gpa, length: usize) -> bool {
        let is_sealed = self.is_sealed(at, length);
        if let Some(seals) = self.seals.as_ref().filter(|_| is_sealed) {
            seals.refused(at, length);
        }
        is_sealed
    }

    /// Where devices were told to write, and how many bytes, since this was asked last: the first of them.
    pub(crate) fn take_refused(&self) -> Vec<(Gpa, usize)> {
        self.seals.as_ref().map(Seals::take_refused).unwrap_or_default()
    }
}

/// Whether any of `length` bytes at `at` are in the code window.
fn is_code(at: Gpa, length: usize) -> bool {
    at < layout::RESERVED_DATA && at.0.saturating_add(length as u64) > layout::RESERVED.0
}

/// Whether `at` is in the reserved memory.
fn is_reserved(at: Gpa) -> bool {
    at.0.wrapping_sub(layout::RESERVED.0) < layout::RESERVED_SIZE
}

/// Where `size` bytes of RAM lie.
fn ranges(size: u64) -> Vec<Range<Gpa>> {
    let low = GuestRam::low_end_of(size);
    let mut all = vec![Gpa(0)..low];
    if size > low.0 {
        all.push(Gpa(HOLE_END)..Gpa(HOLE_END + (size - low.0)));
    }
    all
}

impl PhysMemory for GuestRam {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        let from = GuestAddress(at.0);
        // Looking for the mapping takes longer than all else.
        let low = self.low.as_ref().and_then(|low| low.get_slice(MemoryRegionAddress(at.0), buf.len()).ok());
        if let Some(bytes) = low {
            bytes.copy_to(buf);
            return Ok(());
        }
        match self.backing.get_slice(from, buf.len()) {
            Ok(bytes) if bytes.copy_to(buf) == buf.len() => Ok(()),
            // It may lie in two mappings. That way looks for those, and takes three times as long.
            _ => self.backing.read_slice(buf, from).map_err(|_| NoMemory(at)),
        }
    }

    fn read_u64(&self, at: Gpa) -> Result<u64, NoMemory> {
        let low =
            self.low.as_ref().and_then(|low| low.load(MemoryRegionAddress(at.0), Ordering::Relaxed).ok());
        let word: Option<u64> = low.or_else(|| self.backing.load(GuestAddress(at.0), Ordering::Relaxed).ok());
        word.map(u64::from_le).ok_or(NoMemory(at))
    }

    /// Sealed memory is none for what the host does on the guest's behalf: it does not choose where that is.
    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
        match self.is_sealed(at, bytes.len()) {
            true => Err(NoMemory(at)),
            false => self.unsealed().write(at, bytes),
        }
    }

    fn compare_exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, NoMemory> {
        match self.is_sealed(at, 8) {
            true => Err(NoMemory(at)),
            false => self.unsealed().compare_exchange(at, old, new),
        }
    }
}

/// The guest's memory for who writes sealed pages as well: our own changes of its text, and what its guard lets through.
#[derive(Clone, Copy)]
pub(crate) struct Unsealed<'a>(&'a GuestRam);

impl PhysMemory for Unsealed<'_> {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        self.0.read(at, buf)
    }

    fn read_u64(&self, at: Gpa) -> Result<u64, NoMemory> {
        self.0.read_u64(at)
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
        match is_code(at, bytes.len()) {
            true => Err(NoMemory(at)),
            false => self.0.write_code(at, bytes),
        }
    }

    fn compare_exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, NoMemory> {
        if is_code(at, 8) {
            return Err(NoMemory(at));
        }
        let bytes = self.0.backing.get_slice(GuestAddress(at.0), 8).map_err(|_| NoMemory(at))?;
        let word: &AtomicU64 = bytes.get_atomic_ref(0).map_err(|_| NoMemory(at))?;
        Ok(word.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_leaves_the_hole_below_four_gib_free() {
        assert_eq!(ranges(128 << 20), [Gpa(0)..Gpa(128 << 20)]);
        assert_eq!(ranges(3 << 30), [Gpa(0)..Gpa(3 << 30)]);
        assert_eq!(ranges(64 << 30), [Gpa(0)..Gpa(3 << 30), Gpa(4 << 30)..Gpa(65 << 30)]);
    }

    #[test]
    fn the_reserved_memory_is_memory_but_not_ram() {
        for size in [2 << 20, 3 << 30, 5 << 30] {
            let ram = GuestRam::new(size).unwrap();
            assert_eq!(ram.ranges(), ranges(size));
            assert_eq!(ram.low_end(), Gpa(size.min(3 << 30)));
            let last = layout::RESERVED.add(layout::RESERVED_SIZE - 1);
            for at in [layout::RESERVED, last] {
                ram.write_code(at, &[7]).unwrap();
                let mut byte = [0];
                ram.read(at, &mut byte).unwrap();
                assert_eq!(byte, [7]);
            }
            assert!(ram.write(last, &[7; 2]).is_err());
        }
    }

    #[test]
    fn code_is_written_by_nobody_else() {
        let ram = GuestRam::new(2 << 20).unwrap();
        let data = layout::RESERVED_DATA;
        for at in [layout::RESERVED, layout::RESERVED.add(0x5000), Gpa(data.0 - 8)] {
            assert_eq!(ram.write(at, &[7; 8]), Err(NoMemory(at)));
            assert_eq!(ram.compare_exchange(at, 0, 7), Err(NoMemory(at)));
        }
        assert!(ram.write(Gpa(data.0 - 1), &[7; 2]).is_err());
        ram.write(data, &[7; 8]).unwrap();
        let mut all = [0; 16];
        ram.read(Gpa(data.0 - 8), &mut all).unwrap();
        assert_eq!(all, [0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
    }

    #[test]
    fn a_word_is_exchanged_only_for_what_it_was_and_only_where_it_is_one() {
        let ram = GuestRam::new(0x2000).unwrap();
        let at = Gpa(0x1ff8);
        ram.write(at, &7u64.to_le_bytes()).unwrap();
        assert_eq!(ram.compare_exchange(at, 8, 9), Ok(false));
        assert_eq!(ram.compare_exchange(at, 7, 9), Ok(true));
        let mut word = [0; 8];
        ram.read(at, &mut word).unwrap();
        assert_eq!(u64::from_le_bytes(word), 9);
        for at in [0x1ffc, 0x1ff4, 0x2000, u64::MAX - 7].map(Gpa) {
            assert_eq!(ram.compare_exchange(at, 0, 1), Err(NoMemory(at)));
        }
    }

    #[test]
    fn a_word_is_read_wherever_there_is_memory() {
        let ram = GuestRam::new(0x2000).unwrap();
        for at in [Gpa(0), Gpa(0x1ff8), layout::RESERVED_DATA] {
            ram.write(at, &0x0102_0304_0506_0708u64.to_le_bytes()).unwrap();
            assert_eq!(ram.read_u64(at), Ok(0x0102_0304_0506_0708));
        }
        for at in [0x2000, 0xb000_0000, u64::MAX - 7].map(Gpa) {
            assert_eq!(ram.read_u64(at), Err(NoMemory(at)));
            assert_eq!(ram.read(at, &mut [0; 8]), Err(NoMemory(at)));
        }
        assert_eq!(ram.read(Gpa(0x1ff8), &mut [0; 16]), Err(NoMemory(Gpa(0x1ff8))));
    }

    #[test]
    fn pages_are_sealed_one_by_one() {
        let ram = GuestRam::sealable(5 << 30).unwrap();
        assert_eq!(ram.ranges(), ranges(5 << 30));
        for start in [0, 0x3000, 0xbfff_f000, 0x1_0000_0000, 0x1_7fff_f000] {
            let pages = Gpa(start)..Gpa(start + 0x1000);
            ram.seal(&pages).unwrap();
            for (at, length, expected) in [
                (start, 1, true),
                (start + 0xfff, 1, true),
                (start.wrapping_sub(8), 8, false),
                (start + 0x1000, 8, false),
                (start + 0xfff, 8, true),
                (start, usize::MAX, true),
                (start + 8, 0, false),
            ] {
                assert_eq!(ram.is_sealed(Gpa(at), length), expected, "{at:#x}");
            }
            assert_eq!(ram.write(pages.start.add(8), &[7; 8]), Err(NoMemory(pages.start.add(8))));
            assert_eq!(ram.compare_exchange(pages.start, 0, 7), Err(NoMemory(pages.start)));
            // Ours goes on.
            ram.unsealed().write(pages.start, &[7; 8]).unwrap();
            ram.unseal(&pages).unwrap();
            assert!(!ram.is_sealed(pages.start, 0x1000));
        }
        for (start, end) in
            [(8, 0x1000), (0, 8), (0x1000, 0x1000), (0xbfff_f000, 0x1_0000_1000), (0, 6 << 30)]
        {
            assert!(ram.seal(&(Gpa(start)..Gpa(end))).is_err(), "{start:#x}");
        }
        assert!(ram.seal(&(layout::RESERVED..layout::RESERVED.add(0x1000))).is_err());
        assert!(GuestRam::new(2 << 20).unwrap().seal(&(Gpa(0)..Gpa(0x1000))).is_err());
    }

    #[test]
    fn the_guest_sees_what_is_written_here() {
        let ram = GuestRam::sealable(2 << 20).unwrap();
        let region = ram.regions().next().unwrap();
        assert_ne!(ram.as_guest_sees(region), region.as_ptr() as u64);
        let plain = GuestRam::new(2 << 20).unwrap();
        let region = plain.regions().next().unwrap();
        assert_eq!(plain.as_guest_sees(region), region.as_ptr() as u64);
    }

    #[test]
    fn a_write_that_leaves_ram_changes_nothing() {
        let ram = GuestRam::new(0x2000).unwrap();
        assert_eq!(ram.write(Gpa(0x1ffc), &[1; 8]), Err(NoMemory(Gpa(0x1ffc))));
        let mut tail = [7; 4];
        ram.read(Gpa(0x1ffc), &mut tail).unwrap();
        assert_eq!(tail, [0; 4]);
    }
}
