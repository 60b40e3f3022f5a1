//! Where page tables lead for the kernel's image: an attacker who cannot write to the kernel's code may map other code in its place.

use super::finding::{Finding, What};
use super::processes::Process;
use super::subject::Subject;
use super::walk::Unreadable;
use crate::addr::Gva;
use crate::linux::running::RunningKernel;
use crate::memory::PhysMemory;
use crate::paging::{Access, AddressSpace};
use std::collections::BTreeSet;
use std::ops::Range;

const PAGE: u64 = 4096;

/// Calls `tell` with each page of `ranges` (link-time) that is not where the image is, and with each process that has another
/// entry for it in its top table. Says how many ways it has looked at.
pub(super) fn check<M: PhysMemory + ?Sized>(
    subject: &Subject<'_, M>,
    ranges: &[Range<Gva>],
    processes: &[Process],
    tell: &mut dyn FnMut(Finding),
) -> Result<u64, Unreadable> {
    let RunningKernel { map, space } = subject.running;
    let phys = subject.memory.phys;
    let mut looked_at = 0;
    let mut pages = BTreeSet::new();
    for range in ranges {
        pages.extend((range.start.0 / PAGE..range.end.0.div_ceil(PAGE)).map(|page| Gva(page * PAGE)));
    }
    for link in pages {
        looked_at += 1;
        let (at, own) = (map.gva(link), map.gpa(link));
        let to = space.translate(phys, at, Access::Read).ok();
        if to != Some(own) {
            tell(Finding { at, what: What::Remapped { own, to } });
        }
    }
    let text = map.gva(map.text().0);
    let own = space.top_frame(phys, text);
    let page_table =
        subject.offset("mm_struct", "pgd").ok_or(Unreadable::Unknown("page tables of processes"))?;
    for (process, table) in
        processes.iter().filter_map(|process| Some((process, process.memory?.add(page_table))))
    {
        let Some(space) = address_space(subject, table) else { continue };
        looked_at += 1;
        if space.top_frame(phys, text) != own {
            let Process { pid, comm, at, .. } = process;
            tell(Finding { at: *at, what: What::OwnTables { pid: *pid, comm: comm.clone() } });
        }
    }
    Ok(looked_at)
}

/// The page tables to whose top table a pointer is at `table`.
fn address_space<M: PhysMemory + ?Sized>(subject: &Subject<'_, M>, table: Gva) -> Option<AddressSpace> {
    let top = subject.pointer(table).ok()?;
    Some(subject.running.space.with_root(subject.memory.translate(top, Access::Read).ok()?))
}
