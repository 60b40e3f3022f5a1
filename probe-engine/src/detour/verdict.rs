//! May the bytes at a probed instruction be overwritten by a jump?

use std::ops::Range;

use iced_x86::{FlowControl, Instruction, Mnemonic};

use super::moved::{Moved, NotMovable, movable};
use super::relocation::RelocatedCode;
use crate::addr::Gva;
use crate::insn::copy::JUMP;
use crate::insn::decode::{instruction_at, instructions, text};
use crate::insn::plan::skip_endbr;
use crate::linux::targets::branch_target;
use crate::linux::thunks::Thunks;
use crate::probe::jump_constraints::JumpConstraints;

/// One function as it stands, in the kernel's file or in its memory, and what is known about it.
#[derive(Debug, Clone, Copy)]
pub struct FunctionText<'a> {
    /// Where it starts: its run-time address, for bytes of a running guest.
    pub start: Gva,
    /// All its bytes, up to the next symbol, without any trap bytes of ours. In a file, ftrace's sites are calls of
    /// `__fentry__`; whether one is a nop at the moment is for the caller to see.
    pub bytes: &'a [u8],
    /// How far its addresses are above those at which the kernel was linked.
    pub slide: u64,
    /// What the kernel's tables say of the instruction that is to make room, and of what follows it.
    pub constraints: &'a JumpConstraints,
    /// What its indirect jumps may look like.
    pub thunks: &'a Thunks,
}

/// Whether a jump may be written where `function` has its [`constraints`](FunctionText::constraints), over the instructions that it
/// returns, as far as text can tell. Addresses are those of `function`; the region's are the same.
///
/// As good as the bytes: what the kernel's file allows may be refused in the running kernel, and the other way
/// round.
///
/// # Errors
/// [`NotMovable`], the first reason why not.
pub fn verdict(function: &FunctionText<'_>) -> Result<RelocatedCode, NotMovable> {
    let at = function.constraints.start().add(function.slide);
    if at.is_in(&(function.start..skip_endbr(function.bytes, function.start))) {
        return Err(NotMovable::Endbr(at));
    }
    let region = function.region(at)?;
    let range = region.range();
    if let Some(target) = function.constraints.target_before(function.link(range.end)) {
        return Err(NotMovable::Target(target.add(function.slide)));
    }
    // No way through the function leads into a single instruction.
    if !region.is_one_instruction() {
        function.is_followed(&range)?;
    }
    Ok(region)
}

impl FunctionText<'_> {
    /// The least run of instructions from `at` on that a jump fits into, if each can be moved. A call that can be is
    /// the last of them, as the kernel wants it: it has the 5 bytes by itself.
    fn region(&self, at: Gva) -> Result<RelocatedCode, NotMovable> {
        let mut previous = instruction_at(self.bytes, self.start, at)?.previous;
        let offset = at.offset_from(self.start).and_then(|offset| usize::try_from(offset).ok());
        let bytes = offset.and_then(|offset| self.bytes.get(offset..)).unwrap_or_default();
        let mut moved: Vec<Moved> = Vec::new();
        let (mut length, mut padding) = (0u8, 0u8);
        for instruction in instructions(bytes, at) {
            if instruction.is_invalid() {
                return Err(NotMovable::Undecodable(Gva(instruction.ip())));
            }
            self.may_go(&instruction)?;
            if moved.last().is_none_or(Moved::goes_on) {
                let rest = bytes.get(usize::from(length)..).unwrap_or_default();
                moved.push(movable(rest, &instruction, previous.as_ref())?);
            } else if instruction.mnemonic() == Mnemonic::Int3 {
                // It stops speculation, or fills up, and never runs.
                padding += 1;
            } else {
                return Err(NotMovable::Leaves(previous.as_ref().map(text).unwrap_or_default()));
            }
            // Fewer than 5 bytes were there, and no instruction has more than 15.
            length = length.saturating_add(instruction.len() as u8);
            if usize::from(length) >= JUMP {
                return Ok(RelocatedCode::new(at, length, padding, moved));
            }
            previous = Some(instruction);
        }
        Err(NotMovable::ShortFunction { left: bytes.len() as u64 })
    }

    /// Whether the guest itself has no business with this instruction.
    fn may_go(&self, instruction: &Instruction) -> Result<(), NotMovable> {
        let at = Gva(instruction.ip());
        let link = self.linked(&(at..Gva(instruction.next_ip())));
        if let Some(why) = self.constraints.covers(&link) {
            return Err(NotMovable::LeftAlone { at, why });
        }
        match self.constraints.has_fixup(&link) {
            true => Err(NotMovable::Fixup(at)),
            false => Ok(()),
        }
    }

    /// Whether all ways through the function are known, and none leads into `region`: the jumps may be others now
    /// than in the kernel's file.
    fn is_followed(&self, region: &Range<Gva>) -> Result<(), NotMovable> {
        for instruction in instructions(self.bytes, self.start) {
            let at = Gva(instruction.ip());
            if instruction.is_invalid() {
                return Err(NotMovable::Undecodable(at));
            }
            let target = branch_target(&instruction);
            if let Some(target) = target.filter(|at| *at != region.start && at.is_in(region)) {
                return Err(NotMovable::Target(target));
            }
            let is_indirect = match (instruction.flow_control(), target) {
                (FlowControl::UnconditionalBranch, Some(target)) => self.thunks.stand_at(self.link(target)),
                (FlowControl::IndirectBranch, _) => true,
                // `sync_core` jumps by `iretq`.
                (FlowControl::Return, _) => instruction.mnemonic() != Mnemonic::Ret,
                _ => false,
            };
            if is_indirect {
                return Err(NotMovable::IndirectJump(at));
            }
        }
        Ok(())
    }

    /// The link-time address of `at`.
    fn link(&self, at: Gva) -> Gva {
        Gva(at.0.wrapping_sub(self.slide))
    }

    fn linked(&self, range: &Range<Gva>) -> Range<Gva> {
        self.link(range.start)..self.link(range.end)
    }
}

#[cfg(test)]
mod tests;
