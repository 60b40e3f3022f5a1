//! The guest's text as the guest knows it: memory, with our trap bytes and jumps undone.

use super::reasons::{NoTrap, TextError};
use super::stage::KernelMap;
use crate::memory::GuestRam;
use crate::text::{Patch, patch};
use crate::world::Parked;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::insn::INT3;
use probe_engine::insn::decode::instruction_at;
use probe_engine::insn::plan::{StepPlan, plan, plan_copy, skip_endbr};
use probe_engine::linux::ftrace_site::FTRACE_NOP;
use probe_engine::memory::PhysMemory;
use probe_engine::paging::{Access, AddressSpace};
use probe_engine::probe::jump_constraints::JumpConstraints;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

/// A running kernel: where it is, and how its memory is reached whatever the vCPUs are doing.
#[derive(Clone, Copy)]
pub(super) struct RunningKernel {
    pub(super) map: KernelMap,
    /// The kernel's own page tables.
    pub(super) space: AddressSpace,
}

/// The trap bytes and jumps that stand in the text.
#[derive(Default)]
pub(super) struct Traps {
    /// Each byte by its guest-virtual address.
    planted: BTreeMap<Gva, Planted>,
    /// The page that was translated last: probes come in order of address.
    last_page: Cell<Option<(Gva, Gpa)>>,
}

const PAGE: u64 = 4096;

/// A byte of ours and what it hides.
#[derive(Clone, Copy)]
struct Planted {
    gpa: Gpa,
    ours: u8,
    original: u8,
}

/// What is known about a probed instruction and the function around it (GVA).
pub(super) struct ProbedFunction {
    pub(super) range: Range<Gva>,
    /// Whether the instruction has an entry in the exception table.
    pub(super) fixup: bool,
    /// Whether the function begins with one of ftrace's sites.
    pub(super) traced: bool,
    /// What is in the way of a jump at the instruction, where that is known.
    pub(super) constraints: Option<JumpConstraints>,
    /// Whether the instruction behind ftrace's site may run elsewhere as well.
    pub(super) next: bool,
}

/// ftrace's site at the start of a function may be half written at this moment: it is one instruction, whatever it is.
fn stand_still(text: &mut [u8], start: Gva) {
    let entry = skip_endbr(text, start).offset_from(start).unwrap_or(0) as usize;
    if let Some(site) = text.get_mut(entry..).and_then(|text| text.first_chunk_mut()) {
        *site = FTRACE_NOP;
    }
}

impl Traps {
    /// To be called in each stop: the guest may have changed its page tables since the last one.
    pub(super) fn forget_pages(&mut self) {
        self.last_page = Cell::default();
    }

    /// Where the text at `at` is in guest-physical memory.
    fn translate(&self, ram: &GuestRam, running: &RunningKernel, at: Gva) -> Result<Gpa, TextError> {
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

    /// Fills `buf` with the text from `at` on.
    pub(super) fn read(
        &self,
        ram: &GuestRam,
        running: &RunningKernel,
        at: Gva,
        buf: &mut [u8],
    ) -> Result<(), TextError> {
        let (mut next, mut rest) = (at, &mut *buf);
        while !rest.is_empty() {
            let in_page = rest.len().min((PAGE - next.0 % PAGE) as usize);
            let (now, later) = rest.split_at_mut(in_page);
            let gpa = self.translate(ram, running, next)?;
            ram.read(gpa, now).map_err(|_| TextError::NotMapped(next))?;
            (next, rest) = (next.add(in_page as u64), later);
        }
        let end = at.add(buf.len() as u64);
        for (planted, Planted { original, .. }) in self.planted.range(at..end) {
            let offset = planted.offset_from(at).unwrap_or(0) as usize;
            if let Some(byte) = buf.get_mut(offset) {
                *byte = *original;
            }
        }
        Ok(())
    }

    /// The text of `function`, up to `end` at most.
    pub(super) fn function(
        &self,
        ram: &GuestRam,
        running: &RunningKernel,
        function: &ProbedFunction,
        end: Gva,
    ) -> Result<Vec<u8>, TextError> {
        /// No function is longer; a symbol table that says so is wrong.
        const LONGEST: u64 = 1 << 20;
        let ProbedFunction { range, traced, .. } = function;
        let length = range.end.min(end).offset_from(range.start).unwrap_or(0).min(LONGEST);
        let mut text = vec![0; length as usize];
        self.read(ram, running, range.start, &mut text)?;
        if *traced {
            stand_still(&mut text, range.start);
        }
        Ok(text)
    }

    /// How the instruction at `at` in `function` is passed: by a copy if `only_copy` will do. A boundary is proven
    /// from the function's start.
    pub(super) fn plan(
        &self,
        ram: &GuestRam,
        running: &RunningKernel,
        function: &ProbedFunction,
        at: Gva,
        only_copy: bool,
    ) -> Result<StepPlan, NoTrap> {
        /// No instruction is longer.
        const LONGEST: u64 = 15;
        let ProbedFunction { range, fixup, .. } = function;
        let text = self.function(ram, running, function, at.add(LONGEST))?;
        let found = instruction_at(&text, range.start, at)?;
        let offset = at.offset_from(range.start).unwrap_or(0) as usize;
        let bytes = text.get(offset..).unwrap_or_default();
        let previous = found.previous.as_ref();
        let plan = match only_copy {
            true => plan_copy(bytes, at, previous, *fixup).map(StepPlan::OutOfLine),
            false => plan(bytes, at, previous, *fixup),
        };
        Ok(plan?)
    }

    /// Puts a trap byte at `at`. Returns where it is in guest-physical memory, and what it hides.
    pub(super) fn plant(
        &mut self,
        parked: &Parked<'_>,
        ram: &GuestRam,
        running: &RunningKernel,
        at: Gva,
    ) -> Result<(Gpa, u8), TextError> {
        let gpa = self.translate(ram, running, at)?;
        let mut original = [0];
        ram.read(gpa, &mut original).map_err(|_| TextError::NotMapped(at))?;
        self.replace(parked, ram, running, at, original, [INT3])?;
        let [original] = original;
        Ok((gpa, original))
    }

    /// Writes `ours` over one instruction of as many bytes at `at`, which is `original`.
    pub(super) fn replace<const N: usize>(
        &mut self,
        parked: &Parked<'_>,
        ram: &GuestRam,
        running: &RunningKernel,
        at: Gva,
        original: [u8; N],
        ours: [u8; N],
    ) -> Result<(), TextError> {
        // It may lie in two pages, and they anywhere.
        let bytes = (0..).zip(original).zip(ours).map(|((n, original), ours)| {
            let at = at.add(n);
            Ok((at, Planted { gpa: self.translate(ram, running, at)?, ours, original }))
        });
        let placed: Vec<_> = bytes.collect::<Result<_, TextError>>()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    const START: Gva = Gva(0xffff_ffff_8100_0000);
    /// `push rbp` behind ftrace's site.
    const INSIDE: Gva = Gva(START.0 + 5);

    #[test]
    fn what_follows_a_site_that_ftrace_is_writing_is_found() {
        let halves: [[u8; 5]; 4] = [
            [0xcc, 0x1f, 0x44, 0x00, 0x00],
            [0xcc, 0x12, 0x34, 0x56, 0x78],
            [0xe8, 0x12, 0x34, 0x56, 0x78],
            FTRACE_NOP,
        ];
        for half in halves {
            let mut text = [&half[..], &[0x55, 0xc3]].concat();
            stand_still(&mut text, START);
            assert!(instruction_at(&text, START, INSIDE).is_ok(), "{half:x?}");
        }
        let mut behind_endbr =
            [&[0xf3, 0x0f, 0x1e, 0xfa][..], &[0xcc, 0x1f, 0x44, 0x00, 0x00, 0x55]].concat();
        stand_still(&mut behind_endbr, START);
        assert!(instruction_at(&behind_endbr, START, START.add(9)).is_ok());
        let mut short = [0xcc, 0x1f];
        stand_still(&mut short, START);
        assert_eq!(short, [0xcc, 0x1f]);
    }
}
