//! Code and constants of a running kernel, against its file.
//!
//! A kernel rewrites its code: alternatives, returns and the like while it boots, jump labels, static calls and ftrace's places at any
//! time. Its own tables list all such places, and each must hold what belongs there. Constants are what lies between
//! `__start_rodata` and `__end_rodata`, without what is written once while it boots.

use super::code::{Code, Owner};
use super::finding::{Finding, What};
use super::hooks::Overwritten;
use super::thunks::{THUNK, is_thunk};
use crate::addr::Gva;
use crate::guard::judge::holds;
use crate::guard::sealed::{SealedKernel, Site, SiteKind};
use crate::linux::kernel::Kernel;
use crate::linux::left_alone::Why;
use crate::linux::patched::PatchedText;
use crate::linux::relocations::{RelocationsError, relocate};
use crate::linux::running::KernelMap;
use crate::linux::symbols::SymbolTable;
use crate::linux::vmlinux::Vmlinux;
use crate::memory::{NoMemory, PhysMemory};
use crate::virt_memory::VirtMemory;
use iced_x86::{Decoder, DecoderOptions, OpKind};
use std::borrow::Cow;
use std::ops::Range;

const PAGE: u64 = 4096;
/// So many bytes of a change are told.
const MOST_BYTES: u64 = 16;

/// Code and constants as they should be.
pub(super) struct Expected<'a> {
    image: Cow<'a, Vmlinux>,
    map: KernelMap,
    /// Where they are compared, at link-time addresses.
    ranges: Vec<Range<Gva>>,
    sealed: &'a SealedKernel,
    patched: &'a PatchedText,
    symbols: &'a SymbolTable,
}

impl<'a> Expected<'a> {
    pub(super) fn of(
        kernel: &'a Kernel,
        sealed: &'a SealedKernel,
        map: KernelMap,
    ) -> Result<Self, RelocationsError> {
        let mut image = Cow::Borrowed(kernel.image());
        if kernel.relocated().is_some() && map.slide() != 0 {
            relocate(image.to_mut(), map.slide())?;
        }
        let symbol = |name: &str| kernel.symbol(name);
        let between = |start: &str, end: &str| Some(symbol(start)?..symbol(end)?);
        let constants = between("__start_rodata", "__end_rodata");
        let once = between("__start_ro_after_init", "__end_ro_after_init");
        let once = once.unwrap_or(Gva(u64::MAX)..Gva(u64::MAX));
        // What no section fills is freed.
        let filled = kernel.image().sections().filter(|section| !section.bytes.is_empty());
        let filled: Vec<Range<Gva>> = filled.map(|section| section.range).collect();
        let constants = constants.into_iter().flat_map(|range| {
            let around = [range.start..range.end.min(once.start), range.start.max(once.end)..range.end];
            let cut = |range: Range<Gva>| {
                filled.iter().map(move |part| part.start.max(range.start)..part.end.min(range.end))
            };
            around.into_iter().flat_map(cut).filter(|range| range.start < range.end).collect::<Vec<_>>()
        });
        let mut ranges: Vec<Range<Gva>> = std::iter::once(sealed.text.clone()).chain(constants).collect();
        ranges.sort_unstable_by_key(|range| range.start);
        Ok(Self { image, map, ranges, sealed, patched: kernel.patched(), symbols: kernel.symbols() })
    }

    /// How many bytes are compared.
    pub(super) fn length(&self) -> u64 {
        self.ranges.iter().map(|range| range.end.0 - range.start.0).sum()
    }

    /// Where they are, at link-time addresses.
    pub(super) fn ranges(&self) -> &[Range<Gva>] {
        &self.ranges
    }

    /// Calls `tell` with each change that is none of the kernel's own.
    pub(super) fn compare<M: PhysMemory + ?Sized>(
        &self,
        memory: &VirtMemory<'_, M>,
        code: &Code,
        overwritten: &Overwritten,
        tell: &mut dyn FnMut(Finding),
    ) -> Result<(), NoMemory> {
        for range in &self.ranges {
            let mut at = range.start;
            let mut changed: Option<Changed> = None;
            while at < range.end {
                let end = Gva((at.0 | (PAGE - 1)).saturating_add(1)).min(range.end);
                let length = (end.0 - at.0) as usize;
                let mut page = [0; PAGE as usize];
                let Some(now) = page.get_mut(..length) else { break };
                memory.phys.read(self.map.gpa(at), now)?;
                let was = self.image.bytes_at(at, length).unwrap_or_default();
                if now != was {
                    let differing = now.iter().zip(was).zip(at.0..).filter(|((now, was), _)| now != was);
                    for ((now, was), at) in differing {
                        let at = Gva(at);
                        let Err(why) = self.explained(at, memory, code, overwritten) else { continue };
                        match &mut changed {
                            Some(open) if open.end == at && open.why == why => open.push(*now, *was),
                            _ => {
                                if let Some(open) = changed.replace(Changed::new(at, *now, *was, why)) {
                                    tell(open.finding(self.map));
                                }
                            }
                        }
                    }
                }
                at = end;
            }
            if let Some(open) = changed {
                tell(open.finding(self.map));
            }
        }
        Ok(())
    }

    /// Whether the byte at `at`, which is not that of the file, is of one of the kernel's own changes, or why not.
    fn explained<M: PhysMemory + ?Sized>(
        &self,
        at: Gva,
        memory: &VirtMemory<'_, M>,
        code: &Code,
        overwritten: &Overwritten,
    ) -> Result<(), &'static str> {
        if !at.is_in(&self.sealed.text) {
            return Err("these are constants");
        }
        let read = |range: &Range<Gva>| {
            let mut bytes = vec![0; (range.end.0 - range.start.0) as usize];
            memory.phys.read(self.map.gpa(range.start), &mut bytes).ok().map(|()| bytes)
        };
        if let Some(range) = overwritten.around(self.map.gva(at)) {
            let range = self.map.link(range.start)..self.map.link(range.end);
            let now = read(&range).unwrap_or_default();
            if overwritten.fits(self.map.gva(range.start), &now) {
                return Ok(());
            }
        }
        if let Some(site) = self.sealed.site(at) {
            let now = read(&(site.at..site.at.add(site.length.into()))).unwrap_or_default();
            return match self.fits(site, &now, code) {
                true => Ok(()),
                false => Err("the kernel never has these bytes there"),
            };
        }
        let Some((range, why)) = self.patched.booting_around(at) else {
            return Err("the kernel lists no such place for patching");
        };
        // That is a number in an instruction.
        if why == Why::RuntimeConstant {
            return Ok(());
        }
        match read(&range).is_some_and(|now| self.is_own_code(&now, range.start, memory)) {
            true => Ok(()),
            false => Err("what stands there since the boot leads out of the kernel"),
        }
    }

    fn fits(&self, site: &Site, now: &[u8], code: &Code) -> bool {
        let map = self.map;
        let to = |link: Gva| {
            let at = map.gva(link);
            match (site.kind, code.owner(at)) {
                // What is called there is ftrace's own, which calls the tracers.
                (SiteKind::Ftrace, Some(Owner::Kernel)) => self.is_ftrace(link) || self.is_ftrace(site.at),
                (_, Some(owner)) => {
                    matches!(owner, Owner::Kernel | Owner::Module(_) | Owner::Bpf | Owner::Ftrace)
                }
                (_, None) => false,
            }
        };
        holds(site, now, to)
    }

    fn is_ftrace(&self, link: Gva) -> bool {
        let function = self.symbols.function_at(link);
        function.is_some_and(|function| function.symbol.name.starts_with("ftrace_"))
    }

    /// Whether these instructions, as they stand at `at`, leave the kernel's own code nowhere: their direct branches lead to the kernel's
    /// code, or to one of its thunks, and there is no branch by a pointer in memory.
    fn is_own_code<M: PhysMemory + ?Sized>(&self, now: &[u8], at: Gva, memory: &VirtMemory<'_, M>) -> bool {
        Decoder::with_ip(64, now, at.0, DecoderOptions::NONE).into_iter().all(|instruction| {
            if instruction.op0_kind() == OpKind::NearBranch64 {
                let to = Gva(instruction.near_branch_target());
                let mut thunk = [0; THUNK];
                return to.is_in(&self.sealed.text)
                    || memory.read(self.map.gva(to), &mut thunk).is_ok() && is_thunk(&thunk);
            }
            let is_indirect = instruction.is_jmp_near_indirect() || instruction.is_call_near_indirect();
            !instruction.is_invalid() && (!is_indirect || instruction.op0_kind() == OpKind::Register)
        })
    }
}

/// Bytes in a row that have changed.
struct Changed {
    start: Gva,
    end: Gva,
    is: Vec<u8>,
    was: Vec<u8>,
    why: &'static str,
}

impl Changed {
    fn new(at: Gva, now: u8, was: u8, why: &'static str) -> Self {
        Self { start: at, end: at.add(1), is: vec![now], was: vec![was], why }
    }

    fn push(&mut self, now: u8, was: u8) {
        if self.end.0 - self.start.0 < MOST_BYTES {
            self.is.push(now);
            self.was.push(was);
        }
        self.end = self.end.add(1);
    }

    fn finding(self, map: KernelMap) -> Finding {
        let Self { start, end, is, was, why } = self;
        Finding { at: map.gva(start), what: What::Changed { is, was, length: end.0 - start.0, why } }
    }
}
