//! Memory that the guest runs and fills for us without knowing of it.
//!
//! It is two memory slots outside the guest's memory map, seen through free entries of the guest's own page tables near
//! its kernel's text:
//!
//! - the code window (read and execute, also for a guest that maps it elsewhere): return trampolines of traps, then those of detours, then slots with copies of
//!   instructions and with the stubs of detours, and int3 in all the rest;
//! - the data window (read and write, no execute): [counters and rings](probe_engine::detour::layout).
//!
//! An entry that was absent needs no flush when it is filled: the CPU caches no absent entry (Intel SDM volume 3,
//! 4.10.4.3). It is never changed or removed while the guest runs.
//!
//! A copy is written to a slot, a stub to several in a row. A slot that is retired may still have someone inside: a vCPU, or a task that was
//! interrupted there and is to return. [`Reserved::reclaim`] finds them without knowing anything of the guest's
//! kernel: the CPU saves the RIP of what it interrupts as an aligned word on a stack (Intel SDM volume 3, 6.14.2),
//! so slots to which no word of RAM points have nobody inside. A word that points there by chance, or because the
//! guest wants it to, only delays. Slots in a row stay together: who is in one of them goes on to the others.

use crate::layout;
use crate::memory::GuestRam;
use crate::touched;
use crate::world::Parked;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::detour::layout as detour;
use probe_engine::detour::stub::LEAVE;
use probe_engine::insn::INT3;
use probe_engine::insn::copy::SLOT;
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::paging::AddressSpace;
use probe_engine::paging::window::{self, NoWindow};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

/// How many return trampolines there are. Each is one int3, at the start of the code window.
pub const TRAMPOLINES: u32 = 64 << 10;
/// Bytes of the return trampolines of detours, behind those.
const DETOURS: u64 = (detour::TRAMPOLINES + LEAVE as u64).next_multiple_of(SLOT as u64);
/// Where the slots begin in the code window.
const FIRST: u64 = TRAMPOLINES as u64 + DETOURS;
/// How many slots there are.
pub const SLOTS: u32 = ((window::CODE - FIRST) / SLOT as u64) as u32;
/// The memory of the code window.
const CODE: Gpa = layout::RESERVED;
/// The memory of the data window, [`window::DATA`] bytes, zero at first.
pub const DATA: Gpa = layout::RESERVED_DATA;

const _: () = assert!(layout::RESERVED_SIZE == window::CODE + window::DATA);
const _: () = assert!(DATA.0 - CODE.0 == window::CODE);
const _: () = assert!(layout::RESERVED.0.is_multiple_of(window::PAGE));

/// Slots in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// The number of the first.
    first: u32,
    count: u32,
}

/// The reserved memory cannot be mapped into the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReservedError {
    /// There is no place for it in the page tables.
    #[error(transparent)]
    NoWindow(#[from] NoWindow),
    /// It was not made with the guest's memory, or the page tables are not in memory.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}

/// The reserved memory of a guest, mapped.
#[derive(Debug)]
pub struct Reserved {
    /// The code window.
    code: Gva,
    /// The data window.
    data: Gva,
    /// The lowest slot that was never used; all after it are like it.
    unused: u32,
    /// Slots that were used, and in which nobody can be.
    free: BTreeSet<u32>,
    /// Slots in which someone may still be: the number of the first ones, and how many follow in a row.
    retired: BTreeMap<u32, u32>,
    /// What RAM has shown when it was looked at last.
    seen: Option<Occupants>,
}

/// Who was inside when nobody ran. Until someone does, this stays so.
#[derive(Debug)]
struct Occupants {
    /// In this [stop](Parked::stop).
    stop: u64,
    /// The slots that someone goes on in.
    occupied: BTreeSet<u32>,
    /// Those of the retired ones that nobody needs to ask for again.
    kept: BTreeMap<u32, u32>,
}

impl Reserved {
    /// Maps the reserved memory into `space` near `text`, the whole text of the guest's kernel. The kernel must
    /// have cleaned its early mappings (`cleanup_highmap` in `setup_arch`) and set EFER.NXE. Called once a guest.
    ///
    /// # Errors
    /// [`ReservedError`]; the guest's page tables are then as they were.
    pub fn map(
        _: &Parked<'_>,
        ram: &GuestRam,
        space: AddressSpace,
        text: &Range<Gva>,
    ) -> Result<Self, ReservedError> {
        let windows = window::find(ram, space, text)?;
        ram.write_code(CODE, &vec![INT3; window::CODE as usize])?;
        let pages = |size: u64| (0..size / window::PAGE).map(|page| (8 * page, window::PAGE * page));
        for (entry, page) in pages(window::DATA) {
            let frame = DATA.add(page);
            ram.write(windows.data_entry.add(entry), &window::data_entry(frame).to_le_bytes())?;
        }
        for (entry, page) in pages(window::CODE) {
            let frame = CODE.add(page);
            ram.write(windows.code_entry.add(entry), &window::code_entry(frame).to_le_bytes())?;
        }
        Ok(Self {
            code: windows.code,
            data: windows.data,
            unused: 0,
            free: BTreeSet::new(),
            retired: BTreeMap::new(),
            seen: None,
        })
    }

    /// The data window.
    #[must_use]
    pub fn data(&self) -> Range<Gva> {
        self.data..self.data.add(window::DATA)
    }

    /// The address of return trampoline `instance`, which is less than [`TRAMPOLINES`].
    #[must_use]
    pub fn trampoline(&self, instance: u32) -> Gva {
        self.code.add(u64::from(instance))
    }

    /// Which return trampoline `at` is.
    #[must_use]
    pub fn instance_of(&self, at: Gva) -> Option<u32> {
        let instance = u32::try_from(at.offset_from(self.code)?).ok()?;
        (instance < TRAMPOLINES).then_some(instance)
    }

    /// Where the return trampolines of detours are (GVA).
    #[must_use]
    pub fn detours(&self) -> Range<Gva> {
        let start = self.code.add(TRAMPOLINES.into());
        start..start.add(detour::TRAMPOLINES)
    }

    /// Fills these with `code`.
    ///
    /// # Errors
    /// As of [`overwrite`](Self::overwrite).
    pub fn write_detours(&self, ram: &GuestRam, code: &[u8]) -> Result<(), NoMemory> {
        ram.write_code(CODE.add(TRAMPOLINES.into()), code)
    }

    /// Fills the place behind them with `code`, to which they lead.
    ///
    /// # Errors
    /// As of [`overwrite`](Self::overwrite).
    pub fn write_leave(&self, ram: &GuestRam, code: &[u8]) -> Result<(), NoMemory> {
        ram.write_code(CODE.add(u64::from(TRAMPOLINES) + detour::TRAMPOLINES), code)
    }

    /// Where the guest runs what is in `slots`.
    #[must_use]
    pub fn address(&self, slots: Slots) -> Gva {
        self.slots().start.add(offset(slots.first))
    }

    /// Where what is in `slots` lies in guest-physical memory.
    #[must_use]
    pub fn memory(&self, slots: Slots) -> Gpa {
        memory_of(slots.first)
    }

    /// The slot that `at` lies in, whether or not it is in use.
    #[must_use]
    pub fn slot_of(&self, at: Gva) -> Option<Slots> {
        Some(Slots { first: self.number_of(at)?, count: 1 })
    }

    fn number_of(&self, at: Gva) -> Option<u32> {
        let number = at.offset_from(self.slots().start)? / SLOT as u64;
        u32::try_from(number).ok().filter(|number| *number < SLOTS)
    }

    /// Takes slots for `length` bytes. `None` when too many are in use or retired: see [`reclaim`](Self::reclaim).
    pub fn allocate(&mut self, length: usize) -> Option<Slots> {
        let count = u32::try_from(length.div_ceil(SLOT)).ok()?.max(1);
        if let Some(first) = self.free_row(count) {
            for slot in first..first + count {
                self.free.remove(&slot);
            }
            return Some(Slots { first, count });
        }
        let first = self.unused;
        let end = first.checked_add(count).filter(|end| *end <= SLOTS)?;
        self.unused = end;
        Some(Slots { first, count })
    }

    /// The first of so many free slots in a row.
    fn free_row(&self, count: u32) -> Option<u32> {
        let (mut first, mut found) = (0, 0);
        for slot in &self.free {
            if first + found != *slot {
                (first, found) = (*slot, 0);
            }
            found += 1;
            if found == count {
                return Some(first);
            }
        }
        None
    }

    /// Gives back what code of `length` bytes at the start of `slots` does not need.
    pub fn shrink(&mut self, slots: Slots, length: usize) -> Slots {
        let Slots { first, count } = slots;
        let kept = u32::try_from(length.div_ceil(SLOT)).unwrap_or(count).clamp(1, count);
        let (rest, end) = (first + kept, first + count);
        if end == self.unused {
            self.unused = rest;
        } else {
            self.free.extend(rest..end);
        }
        Slots { first, count: kept }
    }

    /// Fills slots with code for which they were [allocated](Self::allocate), and to which nothing leads yet.
    ///
    /// # Errors
    /// It is longer than they are. Nothing is written then.
    pub fn write(&self, ram: &GuestRam, slots: Slots, code: &[u8]) -> Result<(), NoMemory> {
        if code.len() > slots.count as usize * SLOT {
            return Err(NoMemory(memory_of(slots.first + slots.count)));
        }
        self.overwrite(ram, slots, 0, code)
    }

    /// Overwrites code at an offset in slots that are in use.
    ///
    /// # Errors
    /// Never in a guest in which the reserved memory was mapped.
    pub fn overwrite(&self, ram: &GuestRam, slots: Slots, at: usize, code: &[u8]) -> Result<(), NoMemory> {
        ram.write_code(memory_of(slots.first).add(at as u64), code)
    }

    /// Gives slots back to which nothing leads any more. Their code stays: someone may be inside.
    pub fn retire(&mut self, slots: Slots) {
        self.retired.insert(slots.first, slots.count);
    }

    /// Whether `at` lies in a slot that is in use, or in which someone may be.
    #[must_use]
    pub fn is_in_use(&self, at: Gva) -> bool {
        self.number_of(at).is_some_and(|slot| slot < self.unused && !self.free.contains(&slot))
    }

    /// Frees the retired slots in which nobody can be: nobody goes on at `known` (the RIPs of all vCPUs, and what is
    /// known besides), and no aligned word of RAM points into them. Reads all RAM that was ever touched, once a stop; for
    /// when [`allocate`](Self::allocate) has nothing left. Returns how many it has freed.
    ///
    /// # Errors
    /// The host does not tell which memory was touched; no slot is freed.
    pub fn reclaim(
        &mut self,
        parked: &Parked<'_>,
        ram: &GuestRam,
        known: impl FnOnce() -> Vec<Gva>,
    ) -> io::Result<usize> {
        let before = self.seen.take();
        if self.retired.is_empty() && before.as_ref().is_none_or(|seen| seen.kept.is_empty()) {
            return Ok(0);
        }
        let mut seen = match before {
            Some(seen) if seen.stop == parked.stop() => seen,
            before => {
                self.retired.extend(before.into_iter().flat_map(|seen| seen.kept));
                let occupied = self.occupied(parked, ram, &known())?;
                Occupants { stop: parked.stop(), occupied, kept: BTreeMap::new() }
            }
        };
        let free_before = self.free.len();
        for (first, count) in std::mem::take(&mut self.retired) {
            let slots = first..first + count;
            if seen.occupied.range(slots.clone()).next().is_some() {
                seen.kept.insert(first, count);
            } else {
                let clear = |slot: &u32| ram.write_code(memory_of(*slot), &[INT3; SLOT]).is_ok();
                self.free.extend(slots.filter(clear));
            }
        }
        self.seen = Some(seen);
        Ok(self.free.len() - free_before)
    }

    /// The slots that someone goes on in.
    fn occupied(&self, parked: &Parked<'_>, ram: &GuestRam, known: &[Gva]) -> io::Result<BTreeSet<u32>> {
        let slots = self.slots();
        // A saved RIP may lie behind the last byte of a slot: there the CPU returns after an int3 in that byte.
        let of = |rip: Gva| [rip, rip.offset(-1)].into_iter().filter_map(|at| self.number_of(at));
        let mut occupied = touched::pointed_to(parked, ram, &(slots.start..slots.end.add(1)), of)?;
        occupied.extend(known.iter().copied().flat_map(of));
        Ok(occupied)
    }

    /// Where all slots lie.
    fn slots(&self) -> Range<Gva> {
        let start = self.code.add(FIRST);
        start..start.add(u64::from(SLOTS) * SLOT as u64)
    }
}

/// The memory of the slot of this number.
fn memory_of(slot: u32) -> Gpa {
    CODE.add(FIRST + offset(slot))
}

/// Where the slot of this number lies behind the first.
fn offset(slot: u32) -> u64 {
    u64::from(slot) * SLOT as u64
}

#[cfg(test)]
mod tests;
