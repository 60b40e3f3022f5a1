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
use std::collections::HashMap;
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
    /// What nobody writes, which has more: what is written while the kernel boots, and the interrupt table.
    fixed: Vec<Range<Gva>>,
    sealed: SealedKernel,
    patched: &'a PatchedText,
    symbols: &'a SymbolTable,
    /// The kernel's code at run time.
    kernels: Range<Gva>,
    /// What was found in memory and is the kernel's own for ever, by the part of a page, at link-time addresses.
    accepted: HashMap<Gva, Box<[u8]>>,
}

/// A change of the kernel's own.
struct Own {
    /// Where it ends.
    end: Gva,
    /// Whether that does not depend on what the kernel generates and loads.
    is_lasting: bool,
}

impl<'a> Expected<'a> {
    pub(super) fn of(
        kernel: &'a Kernel,
        sealed: SealedKernel,
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
        let written_once = [once.clone(), symbol("idt_table").map(|at| at..at.add(PAGE))];
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
        let fixed = ranges.iter().cloned().chain(written_once.into_iter().flatten()).collect();
        let kernels = map.gva(sealed.text.start)..map.gva(sealed.text.end);
        let (patched, symbols) = (kernel.patched(), kernel.symbols());
        Ok(Self { image, map, ranges, fixed, sealed, patched, symbols, kernels, accepted: HashMap::new() })
    }

    /// How many bytes are compared.
    pub(super) fn length(&self) -> u64 {
        self.ranges.iter().map(|range| range.end.0 - range.start.0).sum()
    }

    /// What nobody writes once the kernel has booted, at link-time addresses.
    pub(super) fn fixed(&self) -> &[Range<Gva>] {
        &self.fixed
    }

    /// Where modules are, and what the kernel generates (GVA).
    pub(super) fn generated(&self) -> &Range<Gva> {
        &self.sealed.generated
    }

    /// Calls `tell` with each change that is none of the kernel's own.
    pub(super) fn compare<M: PhysMemory + ?Sized>(
        &mut self,
        memory: &VirtMemory<'_, M>,
        code: &Code,
        overwritten: &Overwritten,
        tell: &mut dyn FnMut(Finding),
    ) -> Result<(), NoMemory> {
        let mut accepted = Vec::new();
        let mut page = [0; PAGE as usize];
        for range in &self.ranges {
            let mut at = range.start;
            let mut changed: Option<Changed> = None;
            while at < range.end {
                let end = Gva((at.0 | (PAGE - 1)).saturating_add(1)).min(range.end);
                let length = (end.0 - at.0) as usize;
                let Some(now) = page.get_mut(..length) else { break };
                memory.phys.read(self.map.gpa(at), now)?;
                let now = &*now;
                let of_file = || self.image.bytes_at(at, length).unwrap_or_default();
                let was = self.accepted.get(&at).map_or_else(of_file, |accepted| &**accepted);
                if now != was {
                    let mut kept: Option<Box<[u8]>> = None;
                    let mut explained_to = at;
                    for (place, is, was_it) in differing(now, was) {
                        let byte = at.add(place as u64);
                        if byte < explained_to {
                            continue;
                        }
                        match self.explained(byte, Page { at, bytes: now }, memory, code, overwritten) {
                            Ok(Own { end: to, is_lasting }) => {
                                explained_to = to;
                                let (from, to) = ((byte.0 - at.0) as usize, (to.min(end).0 - at.0) as usize);
                                let kept = is_lasting.then(|| kept.get_or_insert_with(|| was.into()));
                                let kept = kept.and_then(|kept| kept.get_mut(from..to));
                                if let Some((kept, now)) = kept.zip(now.get(from..to)) {
                                    kept.copy_from_slice(now);
                                }
                            }
                            Err(why) => {
                                let of_file = self.image.bytes_at(byte, 1).and_then(<[u8]>::first);
                                let of_file = of_file.copied().unwrap_or(was_it);
                                match &mut changed {
                                    Some(open) if open.end == byte && open.why == why => {
                                        open.push(is, of_file)
                                    }
                                    _ => {
                                        let new = Changed::new(byte, is, of_file, why);
                                        if let Some(open) = changed.replace(new) {
                                            tell(open.finding(self.map));
                                        }
                                    }
                                }
                            }
                        }
                    }
                    accepted.extend(kept.map(|kept| (at, kept)));
                }
                at = end;
            }
            if let Some(open) = changed {
                tell(open.finding(self.map));
            }
        }
        self.accepted.extend(accepted);
        Ok(())
    }

    /// Which of the kernel's own changes the byte at `at` is of, which is not that of the file and lies in `page`, or why of none.
    fn explained<M: PhysMemory + ?Sized>(
        &self,
        at: Gva,
        page: Page<'_>,
        memory: &VirtMemory<'_, M>,
        code: &Code,
        overwritten: &Overwritten,
    ) -> Result<Own, &'static str> {
        if !at.is_in(&self.sealed.text) {
            return Err("these are constants");
        }
        let read = |range: &Range<Gva>| match page.part(range) {
            Some(bytes) => Cow::Borrowed(bytes),
            None => {
                let mut bytes = vec![0; (range.end.0 - range.start.0) as usize];
                let is_there = memory.phys.read(self.map.gpa(range.start), &mut bytes).is_ok();
                Cow::Owned(if is_there { bytes } else { Vec::new() })
            }
        };
        if let Some(range) = overwritten.around(self.map.gva(at)) {
            let range = self.map.link(range.start)..self.map.link(range.end);
            let now = read(&range);
            if overwritten.fits(self.map.gva(range.start), &now) {
                return Ok(Own { end: range.end, is_lasting: false });
            }
        }
        if let Some(site) = self.sealed.site(at) {
            let end = site.at.add(site.length.into());
            let now = read(&(site.at..end));
            let is_lasting = self.fits(site, &now, |at| at.is_in(&self.kernels).then_some(&Owner::Kernel));
            return match is_lasting || self.fits(site, &now, |at| code.owner(at)) {
                true => Ok(Own { end, is_lasting }),
                false => Err("the kernel never has these bytes there"),
            };
        }
        let Some((range, why)) = self.patched.booting_around(at) else {
            return Err("the kernel lists no such place for patching");
        };
        // A runtime constant is a number in an instruction.
        let end = range.end;
        if why == Why::RuntimeConstant {
            return Ok(Own { end, is_lasting: true });
        }
        let now = read(&range);
        let is_lasting = self.is_own_code(&now, range.start, |_| false);
        let is_thunk_there = |to: Gva| {
            let mut thunk = [0; THUNK];
            memory.read(self.map.gva(to), &mut thunk).is_ok() && is_thunk(&thunk)
        };
        match is_lasting || self.is_own_code(&now, range.start, is_thunk_there) {
            true => Ok(Own { end, is_lasting }),
            false => Err("what stands there since the boot leads out of the kernel"),
        }
    }

    /// Whether a site may hold this, where code has these owners.
    fn fits<'o>(&self, site: &Site, now: &[u8], owner: impl Fn(Gva) -> Option<&'o Owner>) -> bool {
        let map = self.map;
        let to = |link: Gva| {
            let at = map.gva(link);
            match (site.kind, owner(at)) {
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
    /// code, or to what `is_thunk`, and there is no branch by a pointer in memory.
    fn is_own_code(&self, now: &[u8], at: Gva, is_thunk: impl Fn(Gva) -> bool) -> bool {
        Decoder::with_ip(64, now, at.0, DecoderOptions::NONE).into_iter().all(|instruction| {
            if instruction.op0_kind() == OpKind::NearBranch64 {
                let to = Gva(instruction.near_branch_target());
                return to.is_in(&self.sealed.text) || is_thunk(to);
            }
            let is_indirect = instruction.is_jmp_near_indirect() || instruction.is_call_near_indirect();
            !instruction.is_invalid() && (!is_indirect || instruction.op0_kind() == OpKind::Register)
        })
    }
}

/// What is there, of a page or of a part of one.
#[derive(Clone, Copy)]
struct Page<'b> {
    /// Where, at a link-time address.
    at: Gva,
    bytes: &'b [u8],
}

impl<'b> Page<'b> {
    /// What of that is in `range`, which may reach beyond.
    fn part(&self, range: &Range<Gva>) -> Option<&'b [u8]> {
        let place = |at: Gva| usize::try_from(at.offset_from(self.at)?).ok();
        self.bytes.get(place(range.start)?..place(range.end)?)
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

/// Where these differ, and what both have there. Most of a page does not differ, and is passed over by the piece.
fn differing<'b>(now: &'b [u8], was: &'b [u8]) -> impl Iterator<Item = (usize, u8, u8)> + 'b {
    const PIECE: usize = 64;
    let pieces = now.chunks(PIECE).zip(was.chunks(PIECE)).zip((0..).step_by(PIECE));
    pieces.filter(|((now, was), _)| now != was).flat_map(|((now, was), from)| {
        let bytes = now.iter().zip(was).zip(from..).filter(|((now, was), _)| now != was);
        bytes.map(|((now, was), place)| (place, *now, *was))
    })
}

#[cfg(test)]
mod tests {
    use super::differing;

    #[test]
    fn each_byte_that_differs_is_found_at_its_place() {
        let was = [7; 200];
        let mut now = was;
        for (place, byte) in [(0, 1), (63, 2), (64, 3), (199, 4)] {
            now[place] = byte;
        }
        let found: Vec<_> = differing(&now, &was).collect();
        assert_eq!(found, [(0, 1, 7), (63, 2, 7), (64, 3, 7), (199, 4, 7)]);
        assert_eq!(differing(&was, &was).next(), None);
    }
}
