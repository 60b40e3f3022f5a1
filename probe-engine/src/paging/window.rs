//! A place in the guest's page tables for memory that the guest does not know: two windows near its text, one
//! for code and one for data.
//!
//! Both windows are made of large pages of 2 MiB (Intel SDM volume 3, table 4-18), so that no page table of ours comes
//! into the guest's tables. Linux walks all of them when it looks for pages that are both writable and executable
//! (mm/ptdump.c), and reads every table through its direct map, where memory outside the memory map is absent.

use super::{AddressSpace, FRAME, LARGE, PRESENT, WRITABLE};
use crate::addr::{Gpa, Gva};
use crate::memory::PhysMemory;
use std::ops::Range;

/// Bytes of a large page, which one entry maps.
pub const PAGE: u64 = 2 << 20;
/// Bytes of the code window.
pub const CODE: u64 = 8 << 20;
/// Bytes of the data window.
pub const DATA: u64 = 26 << 20;
/// How many entries they take.
const WANTED: usize = ((CODE + DATA) / PAGE) as usize;

const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
const NO_EXECUTE: u64 = 1 << 63;

/// Entries of a page directory; together they map 1 GiB.
const ENTRIES: usize = 512;
/// From this entry on the directory of the kernel's image may map modules: `MODULES_VADDR` is 512 MiB behind the
/// start of the image's address space in a kernel without CONFIG_RANDOMIZE_BASE, and 1 GiB with it
/// (arch/x86/include/asm/page_64_types.h).
const MODULES: usize = 256;
/// So many entries on both sides of the windows are free too.
const MARGIN: usize = 8;

/// Free entries of a page directory, in a row: those of the code window, then those of the data window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    /// Where the entries of the code window are to be written.
    pub code_entry: Gpa,
    /// Where the code window is seen.
    pub code: Gva,
    /// Where the entries of the data window are to be written.
    pub data_entry: Gpa,
    /// Where the data window is seen.
    pub data: Gva,
}

/// The page tables have no place for the windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoWindow {
    /// The guest's page tables do not map the text.
    #[error("the guest's page tables do not map its text at {0}")]
    NotMapped(Gva),
    /// The text is empty, or part of it lies in the next 1 GiB.
    #[error("the guest's text does not lie in 1 GiB of its own")]
    TooWide,
    /// One page of 1 GiB maps the text.
    #[error("the guest maps its text with one page of 1 GiB")]
    LargePage,
    /// A table above the directory forbids stores or execution.
    #[error("the guest's page tables forbid stores or execution around its text")]
    Restricted,
    /// No entry is free, with its neighbours.
    #[error("the guest's page tables have no free entry near its text")]
    Full,
}

/// Finds a place in the directory that maps `text`, the whole text of the guest's kernel. Both windows are then
/// less than 1 GiB from all of it.
///
/// # Errors
/// [`NoWindow`] says what is in the way.
pub fn find<M: PhysMemory + ?Sized>(
    memory: &M,
    space: AddressSpace,
    text: &Range<Gva>,
) -> Result<Windows, NoWindow> {
    let last = text.end.offset(-1);
    if text.start >= text.end || text.start.0 >> 30 != last.0 >> 30 {
        return Err(NoWindow::TooWide);
    }
    let directory = directory(memory, space, text.start)?;
    let mut raw = [0; ENTRIES * 8];
    memory.read(directory, &mut raw).map_err(|_| NoWindow::NotMapped(text.start))?;
    let (words, _) = raw.as_chunks();
    let entries: Vec<u64> = words.iter().copied().map(u64::from_le_bytes).collect();
    let (first, last) = (index(text.start, 1), index(last, 1));
    if entries.get(first).is_none_or(|entry| entry & PRESENT == 0) {
        return Err(NoWindow::NotMapped(text.start));
    }
    let free = free_row(&entries, first, last).ok_or(NoWindow::Full)? as u64;
    let entry = directory.add(free * 8);
    let code = Gva((text.start.0 & !0x3fff_ffff) | (free * PAGE));
    Ok(Windows { code_entry: entry, code, data_entry: entry.add(CODE / PAGE * 8), data: code.add(CODE) })
}

/// The entry by which supervisor code can read and execute the 2 MiB at `frame`, a multiple of [`PAGE`]. Not
/// dirty: a page that is dirty and read-only is a shadow stack (Intel SDM volume 3, 4.6).
#[must_use]
pub fn code_entry(frame: Gpa) -> u64 {
    frame.0 & FRAME | PRESENT | ACCESSED | LARGE
}

/// The entry by which supervisor code can read and write the 2 MiB at `frame`, a multiple of [`PAGE`]. The guest
/// must have set EFER.NXE, as every 64-bit Linux does where the CPU has it: otherwise bit 63 is a reserved bit,
/// and every access faults.
#[must_use]
pub fn data_entry(frame: Gpa) -> u64 {
    frame.0 & FRAME | PRESENT | WRITABLE | ACCESSED | DIRTY | LARGE | NO_EXECUTE
}

/// The page directory that maps the 1 GiB around `at`.
fn directory<M: PhysMemory + ?Sized>(memory: &M, space: AddressSpace, at: Gva) -> Result<Gpa, NoWindow> {
    if !space.is_canonical(at) {
        return Err(NoWindow::NotMapped(at));
    }
    let mut table = space.root;
    for level in (2..space.levels).rev() {
        let mut raw = [0; 8];
        let entry = table.add(index(at, level) as u64 * 8);
        memory.read(entry, &mut raw).map_err(|_| NoWindow::NotMapped(at))?;
        let entry = u64::from_le_bytes(raw);
        if entry & PRESENT == 0 {
            return Err(NoWindow::NotMapped(at));
        }
        if level == 2 && entry & LARGE != 0 {
            return Err(NoWindow::LargePage);
        }
        if entry & WRITABLE == 0 || entry & NO_EXECUTE != 0 {
            return Err(NoWindow::Restricted);
        }
        table = Gpa(entry & FRAME);
    }
    Ok(table)
}

/// Which entry of its table at `level` (0 is the page table) maps `at`.
fn index(at: Gva, level: u32) -> usize {
    (at.0 >> (12 + 9 * level)) as usize % ENTRIES
}

/// The first of so many free entries. Above the text (entries `first..=last`) by choice: the kernel's per-CPU
/// variables are addressed relative to RIP past the end of the address space, and a copy below the text could not
/// reach as far.
fn free_row(entries: &[u64], first: usize, last: usize) -> Option<usize> {
    let candidates = MARGIN..MODULES - MARGIN - WANTED + 1;
    let above = candidates.clone().filter(|at| *at > last);
    let below = candidates.rev().filter(|at| *at < first);
    above.chain(below).find(|at| {
        entries
            .get(at - MARGIN..at + WANTED + MARGIN)
            .is_some_and(|near| near.iter().all(|entry| *entry == 0))
    })
}

#[cfg(test)]
mod tests;
