//! The memory accesses of an emulated instruction, as the guest's own CPU makes them in kernel mode: allowed or
//! not, and marked in the page tables.
//!
//! Protection keys are not looked at: those of user pages hold for the kernel as well (SDM volume 3, 4.6.2), but
//! PKRU is not among the registers here, and a process that denies itself a page is let through. Linux has no keys
//! for pages of the kernel.

use super::fault::EmulationFault;
use crate::addr::{Gpa, Gva};
use crate::memory::PhysMemory;
use crate::paging::{Access, PageFault, Translation};
use crate::regs::rflags::AC;
use crate::virt_memory::{VirtMemory, page_rest};

/// Fills `buf`, at most 8 bytes, from guest-virtual `at`. For an instruction that will write there as well, `access` is
/// a write: to the CPU that is one access (SDM volume 3, 4.7).
pub(super) fn load<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    rflags: u64,
    at: Gva,
    buf: &mut [u8],
    access: Access,
) -> Result<(), EmulationFault> {
    let (first, second) = reach(memory, rflags, at, buf.len(), access)?;
    let (now, later) = buf.split_at_mut(page_rest(at).min(buf.len()));
    memory.phys.read(first, now).map_err(|_| EmulationFault::NotRam(at))?;
    if let Some((at, gpa)) = second {
        memory.phys.read(gpa, later).map_err(|_| EmulationFault::NotRam(at))?;
    }
    Ok(())
}

/// Writes `bytes`, at most 8, to guest-virtual `at`.
pub(super) fn store<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    rflags: u64,
    at: Gva,
    bytes: &[u8],
) -> Result<(), EmulationFault> {
    let (first, second) = reach(memory, rflags, at, bytes.len(), Access::Write)?;
    let (now, later) = bytes.split_at(page_rest(at).min(bytes.len()));
    memory.phys.write(first, now).map_err(|_| EmulationFault::NotRam(at))?;
    if let Some((at, gpa)) = second {
        memory.phys.write(gpa, later).map_err(|_| EmulationFault::NotRam(at))?;
    }
    Ok(())
}

/// Where the first of `len` bytes at `at` lies, and the first one in the next page if there is one. The page tables are
/// marked when all of the access is allowed, and only then.
fn reach<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    rflags: u64,
    at: Gva,
    len: usize,
    access: Access,
) -> Result<(Gpa, Option<(Gva, Gpa)>), PageFault> {
    let phys = memory.phys;
    let next = (len > page_rest(at)).then(|| at.add(page_rest(at) as u64));
    // Again only after another CPU of the guest, or the first of two pages, has changed an entry of the same walk.
    loop {
        let first = walk(memory, rflags, at, access)?;
        let second = next.map(|next| walk(memory, rflags, next, access)).transpose()?;
        let marked = first.mark(phys).and_then(|done| match second {
            Some(second) if done => second.mark(phys),
            _ => Ok(done),
        });
        if marked.map_err(|_| memory.spaces.of(at).not_present(at, access))? {
            return Ok((first.gpa, next.zip(second.map(|walk| walk.gpa))));
        }
    }
}

/// The way to `at`, if the page is not one of user mode that CR4.SMAP closes (SDM volume 3, 4.6.1).
fn walk<M: PhysMemory + ?Sized>(
    memory: &VirtMemory<'_, M>,
    rflags: u64,
    at: Gva,
    access: Access,
) -> Result<Translation, PageFault> {
    let space = memory.spaces.of(at);
    let walk = space.walk(memory.phys, at, access)?;
    if walk.is_user && space.smap && rflags & AC == 0 {
        return Err(space.protection(at, access));
    }
    Ok(walk)
}
