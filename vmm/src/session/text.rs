//! The guest's text as the guest knows it: memory, with our trap bytes and jumps undone.

use super::patches::{PAGE, Patches};
use super::reasons::{NoTrap, TextError};
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::insn::decode::instruction_at;
use probe_engine::insn::plan::{StepPlan, plan, plan_copy, skip_endbr};
use probe_engine::linux::ftrace_site::FTRACE_NOP;
use probe_engine::linux::running::RunningKernel;
use probe_engine::memory::PhysMemory;
use probe_engine::probe::jump_constraints::JumpConstraints;
use std::ops::Range;

/// Bytes of the longest instruction.
const LONGEST: usize = 15;

/// The text of a guest's kernel.
#[derive(Clone, Copy)]
pub(super) struct GuestText<'a> {
    pub(super) ram: &'a GuestRam,
    pub(super) running: &'a RunningKernel,
    pub(super) patches: &'a Patches,
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
    /// The instruction behind ftrace's site, where that may run elsewhere as well.
    pub(super) next: Option<BehindNop>,
}

/// The instruction behind ftrace's nop may run in a stub.
#[derive(Debug, Clone, Copy)]
pub(super) struct BehindNop {
    /// Whether the guest has done with branches, which it rewrites while it boots.
    pub(super) late: bool,
}

impl BehindNop {
    /// It, as it is at `at` in the live text, if it can be moved.
    pub(super) fn read(self, at: Gva, text: &GuestText<'_>) -> Option<RelocatedCode> {
        let bytes: [u8; LONGEST] = text.first(at)?;
        RelocatedCode::single(&bytes, at).filter(|next| self.late || next.goes_on())
    }
}

/// ftrace's site at the start of a function may be half written at this moment: it is one instruction, whatever it is.
fn stand_still(text: &mut [u8], start: Gva) {
    let entry = skip_endbr(text, start).offset_from(start).unwrap_or(0) as usize;
    if let Some(site) = text.get_mut(entry..).and_then(|text| text.first_chunk_mut()) {
        *site = FTRACE_NOP;
    }
}

impl GuestText<'_> {
    /// Fills `buf` with the text from `at` on.
    pub(super) fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), TextError> {
        let (mut next, mut rest) = (at, &mut *buf);
        while !rest.is_empty() {
            let in_page = rest.len().min((PAGE - next.0 % PAGE) as usize);
            let (now, later) = rest.split_at_mut(in_page);
            let gpa = self.patches.translate(self.ram, self.running, next)?;
            self.ram.read(gpa, now).map_err(|_| TextError::NotMapped(next))?;
            (next, rest) = (next.add(in_page as u64), later);
        }
        self.patches.undo(at, buf);
        Ok(())
    }

    /// The first bytes of the text at `at`.
    pub(super) fn first<const N: usize>(&self, at: Gva) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes).ok().map(|()| bytes)
    }

    /// The text of `function`, up to `end` at most.
    pub(super) fn function(&self, function: &ProbedFunction, end: Gva) -> Result<Vec<u8>, TextError> {
        /// No function is longer; a symbol table that says so is wrong.
        const LONGEST: u64 = 1 << 20;
        let ProbedFunction { range, traced, .. } = function;
        let length = range.end.min(end).offset_from(range.start).unwrap_or(0).min(LONGEST);
        let mut text = vec![0; length as usize];
        self.read(range.start, &mut text)?;
        if *traced {
            stand_still(&mut text, range.start);
        }
        Ok(text)
    }

    /// How the instruction at `at` in `function` is passed: by a copy if `only_copy` will do. A boundary is proven
    /// from the function's start.
    pub(super) fn plan(
        &self,
        function: &ProbedFunction,
        at: Gva,
        only_copy: bool,
    ) -> Result<StepPlan, NoTrap> {
        let ProbedFunction { range, fixup, .. } = function;
        let text = self.function(function, at.add(LONGEST as u64))?;
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
