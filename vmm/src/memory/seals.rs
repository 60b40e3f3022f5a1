//! Pages of RAM that the guest reads and runs, and cannot write.
//!
//! The guest's view of its RAM is a mapping of its own, beside ours, of one file in memory. A sealed page is write-protected in
//! the guest's view alone: KVM_RUN gives the guest's store back (EFAULT) before the store is made, whatever the guest's page
//! tables and CR0.WP say. What the host writes for the guest goes through our mapping, and is refused there.
#![allow(unsafe_code, reason = "the guest's view of a page is write-protected by its address in the host")]

use probe_engine::addr::Gpa;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use vm_memory::{GuestMemoryRegion, GuestRegionMmap};

const PAGE: u64 = 4096;
/// So many refused writes are remembered until somebody asks.
const MOST_REFUSED: usize = 64;

/// A file in memory, of which RAM is mapped twice.
pub(super) fn ram_file(size: u64) -> io::Result<File> {
    let file = memfd_create("guest-ram", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, size)?;
    Ok(file.into())
}

/// The guest's view of its RAM, and which pages of that are sealed.
pub(super) struct Seals {
    views: Vec<View>,
    /// What devices were told to write there.
    refused: Mutex<Vec<(Gpa, usize)>>,
}

/// One region of RAM as the guest sees it.
struct View {
    mapping: GuestRegionMmap,
    /// A bit for each page.
    sealed: Box<[AtomicU64]>,
}

impl Seals {
    /// None yet. `views`: the RAM as the guest sees it.
    pub(super) fn new(views: Vec<GuestRegionMmap>) -> Self {
        let view = |mapping: GuestRegionMmap| {
            let words = mapping.len().div_ceil(PAGE * 64);
            View { sealed: (0..words).map(|_| AtomicU64::new(0)).collect(), mapping }
        };
        Self { views: views.into_iter().map(view).collect(), refused: Mutex::default() }
    }

    /// The guest's view of all RAM.
    pub(super) fn views(&self) -> impl Iterator<Item = &GuestRegionMmap> {
        self.views.iter().map(|view| &view.mapping)
    }

    /// Where the guest's view of the region that begins at `start` is in the host (HVA).
    pub(super) fn host_address(&self, start: Gpa) -> Option<u64> {
        let view = self.views.iter().find(|view| view.start() == start)?;
        Some(view.mapping.as_ptr() as u64)
    }

    /// Whether any of `length` bytes at `at` are sealed.
    pub(super) fn covers(&self, at: Gpa, length: usize) -> bool {
        let end = at.0.saturating_add(length as u64);
        self.views.iter().any(|view| {
            let (from, to) = (at.0.max(view.start().0), end.min(view.end().0));
            from < to && (from / PAGE..to.div_ceil(PAGE)).any(|page| view.is_sealed(page))
        })
    }

    /// A device was told to write there.
    pub(super) fn refused(&self, at: Gpa, length: usize) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < MOST_REFUSED {
            refused.push((at, length));
        }
    }

    pub(super) fn take_refused(&self) -> Vec<(Gpa, usize)> {
        std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Seals `pages`, or opens them again.
    pub(super) fn set(&self, pages: &Range<Gpa>, is_sealed: bool) -> io::Result<()> {
        let holds = |view: &&View| view.start() <= pages.start && pages.end <= view.end();
        let is_whole =
            [pages.start, pages.end].iter().all(|at| at.0.is_multiple_of(PAGE)) && pages.start < pages.end;
        let view = self.views.iter().find(holds).filter(|_| is_whole).ok_or(Errno::INVAL)?;
        let access = if is_sealed { MprotectFlags::READ } else { MprotectFlags::READ | MprotectFlags::WRITE };
        // Who asks meanwhile hears that a page is sealed before it is, and after.
        if is_sealed {
            view.mark(pages, true);
        }
        let offset = (pages.start.0 - view.start().0) as usize;
        let host = view.mapping.as_ptr().wrapping_add(offset);
        // SAFETY: these are whole pages of a mapping that `view` owns and that nobody in this process reads or writes: it is there
        // for KVM alone, which says EFAULT where an access is not allowed.
        unsafe { mprotect(host.cast(), (pages.end.0 - pages.start.0) as usize, access) }?;
        if !is_sealed {
            view.mark(pages, false);
        }
        Ok(())
    }
}

impl View {
    fn start(&self) -> Gpa {
        Gpa(self.mapping.start_addr().0)
    }

    fn end(&self) -> Gpa {
        self.start().add(self.mapping.len())
    }

    /// Where the bit of page `number` of the guest's physical memory is.
    fn bit(&self, number: u64) -> Option<(&AtomicU64, u64)> {
        let index = number.checked_sub(self.start().0 / PAGE)?;
        Some((self.sealed.get((index / 64) as usize)?, 1 << (index % 64)))
    }

    fn is_sealed(&self, page: u64) -> bool {
        self.bit(page).is_some_and(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
    }

    fn mark(&self, pages: &Range<Gpa>, is_sealed: bool) {
        for (word, bit) in (pages.start.0 / PAGE..pages.end.0 / PAGE).filter_map(|page| self.bit(page)) {
            match is_sealed {
                true => word.fetch_or(bit, Ordering::Release),
                false => word.fetch_and(!bit, Ordering::Release),
            };
        }
    }
}
