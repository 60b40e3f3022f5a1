//! May the bytes at a probed instruction be overwritten by a jump?

use std::ops::Range;

use iced_x86::{FlowControl, Instruction, Mnemonic};

use super::region::{Moved, Region};
use crate::addr::Gva;
use crate::insn::copy::JUMP;
use crate::insn::decode::{BoundaryError, instruction_at, instructions, text};
use crate::insn::plan::{Refusal, skip_endbr};
use crate::linux::patched::Why;
use crate::linux::targets::branch_target;
use crate::linux::thunks::Thunks;
use crate::probe::room::Room;

/// One function as it stands, in the kernel's file or in its memory, and what is known about it.
#[derive(Debug, Clone, Copy)]
pub struct Function<'a> {
    /// Where it starts: its run-time address, for bytes of a running guest.
    pub start: Gva,
    /// All its bytes, up to the next symbol, without any trap bytes of ours. In a file, ftrace's sites are calls of
    /// `__fentry__`; whether one is a nop at the moment is for the caller to see.
    pub bytes: &'a [u8],
    /// How far its addresses are above those at which the kernel was linked.
    pub slide: u64,
    /// What the kernel's tables say of the instruction that is to make room, and of what follows it.
    pub room: &'a Room,
    /// What its indirect jumps may look like.
    pub thunks: &'a Thunks,
}

/// Why the instructions at a probe cannot make room for a jump.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotMovable {
    /// Not the start of an instruction.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
    /// A function's entry proper, where an indirect call has to find its mark, or what Linux made of it.
    #[error("there is an endbr at {0}, which stays where it is")]
    Endbr(Gva),
    /// The function's end comes before the jump's.
    #[error("only {left} bytes are left to the function's end, and a jump has {JUMP}")]
    ShortFunction {
        /// From the probed instruction on.
        left: u64,
    },
    /// What follows is reached in another way, and is somebody's.
    #[error("`{0}` leaves, and what is behind it may be reached otherwise")]
    Leaves(String),
    /// The interrupt that it lets in comes after the instruction behind it, and not after a jump.
    #[error("`{0}` holds off interrupts until after the next instruction, which must not be a jump")]
    HoldsOffInterrupts(String),
    /// The guest's own code that must not trap, or that the guest rewrites.
    #[error("a jump would cover the instruction at {at}: {why}")]
    LeftAlone {
        /// The instruction.
        at: Gva,
        /// What the kernel says of it.
        why: Why,
    },
    /// The guest looks the address of the fault up (`__ex_table`).
    #[error(
        "the instruction at {0} may fault and be resumed elsewhere (exception table), so it cannot be moved"
    )]
    Fixup(Gva),
    /// Something else leads to what would be the middle of the jump.
    #[error("something leads to {0}, which would be the middle of the jump")]
    Target(Gva),
    /// Where it leads is not known.
    #[error("the function has an indirect jump at {0}, which may lead anywhere in it")]
    IndirectJump(Gva),
    /// What follows may be a jump that is not seen.
    #[error("the bytes of the function at {0} are no instruction, so that its jumps are not known")]
    Undecodable(Gva),
    /// An instruction that must stay in its place.
    #[error(transparent)]
    Instruction(#[from] Refusal),
}

/// Whether a jump may be written where `function` has [`room`](Function::room), over the instructions that it
/// returns, as far as text can tell. Addresses are those of `function`; the region's are the same.
///
/// As good as the bytes: what the kernel's file allows may be refused in the running kernel, and the other way
/// round.
///
/// # Errors
/// [`NotMovable`], the first reason why not.
pub fn verdict(function: &Function<'_>) -> Result<Region, NotMovable> {
    let at = function.room.start().add(function.slide);
    if at.is_in(&(function.start..skip_endbr(function.bytes, function.start))) {
        return Err(NotMovable::Endbr(at));
    }
    let region = function.region(at)?;
    let range = region.range();
    if let Some(target) = function.room.target_before(function.link(range.end)) {
        return Err(NotMovable::Target(target.add(function.slide)));
    }
    // No way through the function leads into a single instruction.
    if !region.is_one_instruction() {
        function.is_followed(&range)?;
    }
    Ok(region)
}

impl Function<'_> {
    /// The least run of instructions from `at` on that a jump fits into, if each can be moved. A call that can be is
    /// the last of them, as the kernel wants it: it has the 5 bytes by itself.
    fn region(&self, at: Gva) -> Result<Region, NotMovable> {
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
                return Ok(Region::new(at, length, padding, moved));
            }
            previous = Some(instruction);
        }
        Err(NotMovable::ShortFunction { left: bytes.len() as u64 })
    }

    /// Whether the guest itself has no business with this instruction.
    fn may_go(&self, instruction: &Instruction) -> Result<(), NotMovable> {
        let at = Gva(instruction.ip());
        let link = self.linked(&(at..Gva(instruction.next_ip())));
        if let Some(why) = self.room.covers(&link) {
            return Err(NotMovable::LeftAlone { at, why });
        }
        match self.room.has_fixup(&link) {
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

/// How to move `instruction`, the first of `bytes`, if it can be moved.
pub(super) fn movable(
    bytes: &[u8],
    instruction: &Instruction,
    previous: Option<&Instruction>,
) -> Result<Moved, NotMovable> {
    match instruction.mnemonic() {
        Mnemonic::Endbr64 | Mnemonic::Endbr32 => Err(NotMovable::Endbr(Gva(instruction.ip()))),
        Mnemonic::Sti => Err(NotMovable::HoldsOffInterrupts(text(instruction))),
        _ => Ok(Moved::new(bytes, instruction, previous)?),
    }
}

#[cfg(test)]
mod tests;
