//! The bytes of ours that stand in the guest's text, and what each of them hides.

use super::reasons::TextError;
use crate::memory::GuestRam;
use crate::text::{Patch, patch};
use crate::world::Parked;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::linux::running::RunningKernel;
use probe_engine::memory::PhysMemory;
use probe_engine::paging::Access;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

/// The trap bytes and jumps that stand in the text.
#[derive(Default)]
pub(super) struct Patches {
    /// Each byte by its guest-virtual address.
    planted: BTreeMap<Gva, Planted>,
    /// The page that was translated last: probes come in order of address.
    last_page: Cell<Option<(Gva, Gpa)>>,
}

pub(super) const PAGE: u64 = 4096;

/// A byte of ours and what it hides.
#[derive(Clone, Copy)]
struct Planted {
    gpa: Gpa,
    ours: u8,
    original: u8,
}

impl Planted {
    fn hidden(&self) -> (Gpa, Hidden) {
        (self.gpa, Hidden { ours: self.ours, original: self.original })
    }
}

/// What a byte of ours hides, wherever that is.
#[derive(Clone, Copy)]
pub(super) struct Hidden {
    pub(super) ours: u8,
    pub(super) original: u8,
}

impl Patches {
    /// To be called in each stop: the guest may have changed its page tables since the last one.
    pub(super) fn forget_pages(&mut self) {
        self.last_page = Cell::default();
    }

    /// Where the text at `at` is in guest-physical memory.
    pub(super) fn translate(
        &self,
        ram: &GuestRam,
        running: &RunningKernel,
        at: Gva,
    ) -> Result<Gpa, TextError> {
        let page = Gva(at.0 & !(PAGE - 1));
        let start = match self.last_page.get() {
            Some((last, start)) if last == page => start,
            _ => {
                let found = running.space.translate(ram, page, Access::Read);
                let start = found.map_err(|_| TextError::NotMapped(at))?;
                self.last_page.set(Some((page, start)));
                start
            }
        };
        Ok(start.add(at.0 - page.0))
    }

    /// Undoes in `text`, which was read from `at` on, what is ours.
    pub(super) fn undo(&self, at: Gva, text: &mut [u8]) {
        let end = at.add(text.len() as u64);
        for (planted, Planted { original, .. }) in self.planted.range(at..end) {
            let offset = planted.offset_from(at).unwrap_or(0) as usize;
            if let Some(byte) = text.get_mut(offset) {
                *byte = *original;
            }
        }
    }

    /// Where each byte of ours is in guest-physical memory.
    pub(super) fn in_memory(&self) -> BTreeMap<Gpa, Hidden> {
        self.planted.values().map(Planted::hidden).collect()
    }

    /// Those of them that are in `memory`.
    pub(super) fn within(&self, memory: &Range<Gpa>) -> BTreeMap<Gpa, Hidden> {
        self.planted.values().filter(|byte| memory.contains(&byte.gpa)).map(Planted::hidden).collect()
    }

    /// Where bytes of ours are that lie in this guest-physical memory.
    pub(super) fn at(&self, memory: Range<Gpa>) -> Vec<Gva> {
        let is_there = |gpa: Gpa| memory.contains(&gpa);
        self.planted.iter().filter(|(_, planted)| is_there(planted.gpa)).map(|(at, _)| *at).collect()
    }

    /// Writes `ours` over one instruction of as many bytes, which is `original`. Each byte comes with where it is.
    pub(super) fn replace<const N: usize>(
        &mut self,
        parked: &Parked<'_>,
        ram: &GuestRam,
        places: [(Gva, Gpa); N],
        (original, ours): ([u8; N], [u8; N]),
    ) -> Result<(), TextError> {
        let bytes = places.into_iter().zip(original).zip(ours);
        let placed: Vec<_> =
            bytes.map(|(((at, gpa), original), ours)| (at, Planted { gpa, ours, original })).collect();
        for (n, (_, Planted { gpa, ours, original })) in placed.iter().enumerate() {
            if let Err(error) = patch(parked, ram, &Patch { at: *gpa, expect: *original, write: *ours }) {
                for (_, Planted { gpa, ours, original }) in placed.iter().take(n) {
                    patch(parked, ram, &Patch { at: *gpa, expect: *ours, write: *original })?;
                }
                return Err(error.into());
            }
        }
        self.planted.extend(placed);
        Ok(())
    }

    /// Takes what is ours at `at` out, `length` bytes. False when the guest has written there: it is then left as it is.
    pub(super) fn lift(&mut self, parked: &Parked<'_>, ram: &GuestRam, at: Gva, length: u64) -> bool {
        let bytes: Vec<Planted> = (0..length).filter_map(|n| self.planted.remove(&at.add(n))).collect();
        let is_ours = |byte: &Planted| {
            let mut found = [0];
            ram.read(byte.gpa, &mut found).is_ok() && found == [byte.ours]
        };
        if bytes.len() as u64 != length || !bytes.iter().all(is_ours) {
            return false;
        }
        bytes.iter().all(|Planted { gpa, ours, original }| {
            patch(parked, ram, &Patch { at: *gpa, expect: *ours, write: *original }).is_ok()
        })
    }

    /// Forgets what is ours at `at`, `length` bytes, which are no more.
    pub(super) fn forget(&mut self, at: Gva, length: u64) {
        for n in 0..length {
            self.planted.remove(&at.add(n));
        }
    }
}
