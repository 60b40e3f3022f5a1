//! Executable pages of the kernel's half that belong to nobody: code of a module that is in no list, of a program that was never
//! loaded as one.

use super::code::Code;
use super::finding::{Finding, What};
use super::thunks::are_thunks;
use crate::addr::{Gpa, Gva};
use crate::memory::PhysMemory;
use crate::paging::AddressSpace;
use crate::paging::leaves::{EndlessTables, Leaf};
use std::ops::Range;

const PAGE: u64 = 4096;
/// So many executable pages are looked at; Linux has some 5,000.
const MOST_PAGES: u64 = 1 << 21;

/// Not all could be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unfinished {
    #[error(transparent)]
    Tables(#[from] EndlessTables),
    #[error("there are more than {MOST_PAGES} executable pages")]
    Pages,
    #[error("what BPF has generated is not known: the kernel is from before 5.18")]
    Unknown,
}

/// Pages in a row that belong to nobody.
struct Unowned {
    at: Gva,
    pages: u64,
    is_writable: bool,
}

/// Calls `tell` with the pages that belong to nobody and are not being `freed`, and says how many executable ones there are.
pub(super) fn check<M: PhysMemory + ?Sized>(
    phys: &M,
    space: AddressSpace,
    code: &Code,
    freed: &[Range<Gva>],
    tell: &mut dyn FnMut(Finding),
) -> Result<u64, Unfinished> {
    if !code.is_complete {
        return Err(Unfinished::Unknown);
    }
    let mut looked_at = 0;
    let mut open: Option<Unowned> = None;
    let mut close = |unowned: Unowned| {
        let Unowned { at, pages, is_writable } = unowned;
        tell(Finding { at, what: What::Unowned { pages, is_writable } });
    };
    space.kernel_leaves(phys, |Leaf { at, gpa, size, is_writable, is_executable }| {
        if !is_executable {
            return;
        }
        for offset in (0..size).step_by(PAGE as usize) {
            if looked_at > MOST_PAGES {
                return;
            }
            looked_at += 1;
            let (at, gpa) = (at.add(offset), gpa.add(offset));
            let page = at..at.add(PAGE);
            let is_freed = freed.iter().any(|range| range.start < page.end && page.start < range.end);
            if code.has_any(&page) || is_freed || is_empty(phys, gpa) {
                continue;
            }
            match &mut open {
                Some(open) if open.at.add(open.pages * PAGE) == at && open.is_writable == is_writable => {
                    open.pages += 1;
                }
                _ => {
                    if let Some(unowned) = open.replace(Unowned { at, pages: 1, is_writable }) {
                        close(unowned);
                    }
                }
            }
        }
    })?;
    if let Some(unowned) = open {
        close(unowned);
    }
    if looked_at > MOST_PAGES { Err(Unfinished::Pages) } else { Ok(looked_at) }
}

/// Whether there is nothing to run, or thunks alone: a kernel keeps room for code, filled with breakpoints or zeros. What is no memory has
/// nothing either.
fn is_empty<M: PhysMemory + ?Sized>(phys: &M, at: Gpa) -> bool {
    let mut page = [0; PAGE as usize];
    phys.read(at, &mut page).is_err() || page.iter().all(|byte| *byte == 0) || are_thunks(&page)
}
