//! The instructions that a detour's jump overwrites, and how they run elsewhere.

use std::ops::Range;

use super::moved::{Moved, Substitute, movable};
use crate::addr::Gva;
use crate::insn::copy::{Ending, OutOfReach, distance, jump};
use crate::insn::decode::instructions;

/// The least run of whole instructions that covers the 5 bytes of a jump, at the addresses that it was found at.
///
/// Only [`verdict`](super::verdict::verdict) makes one. When the jump is written, no CPU and no task may be inside:
/// behind [`at`](Self::at), and before [`end`](Self::end). Where it [is one
/// instruction](Self::is_one_instruction), none can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelocatedCode {
    at: Gva,
    length: u8,
    /// Bytes at its end that never run and are not moved.
    padding: u8,
    moved: Vec<Moved>,
}

impl RelocatedCode {
    pub(super) fn new(at: Gva, length: u8, padding: u8, moved: Vec<Moved>) -> Self {
        Self { at, length, padding, moved }
    }

    /// The instruction at `at` alone, the first of `bytes`, which stays where it is and runs elsewhere as well. `None` if it
    /// cannot, or must not: the guest's tables are not asked.
    #[must_use]
    pub fn single(bytes: &[u8], at: Gva) -> Option<Self> {
        let instruction = instructions(bytes, at).next().filter(|first| !first.is_invalid())?;
        let moved = movable(bytes, &instruction, None).ok()?;
        Some(Self::new(at, instruction.len() as u8, 0, vec![moved]))
    }

    /// Whether no second instruction is overwritten: then there is no place inside where anyone could be.
    #[must_use]
    pub fn is_one_instruction(&self) -> bool {
        self.moved.len() == 1 && self.padding == 0
    }

    /// Where it starts: the probed instruction.
    #[must_use]
    pub fn at(&self) -> Gva {
        self.at
    }

    /// Where it ends: the first instruction that stays.
    #[must_use]
    pub fn end(&self) -> Gva {
        self.at.add(self.length.into())
    }

    /// All its addresses.
    #[must_use]
    pub fn range(&self) -> Range<Gva> {
        self.at..self.end()
    }

    /// The addresses of its instructions, rising. The bytes behind the last may be padding.
    pub fn instructions(&self) -> impl Iterator<Item = Gva> {
        self.moved.iter().map(|moved| moved.at)
    }

    /// Whether the moved instructions go on at [`end`](Self::end), so that a jump there has to follow them. They do
    /// not behind a jump, a return, or a call, which returns there by itself.
    #[must_use]
    pub fn goes_on(&self) -> bool {
        self.moved.last().is_none_or(Moved::goes_on)
    }

    /// Whether one of the moved instructions is a return.
    #[must_use]
    pub fn returns(&self) -> bool {
        self.moved.iter().any(|moved| moved.form == Substitute::Return)
    }

    /// Bytes of the moved instructions, wherever they are.
    #[must_use]
    pub fn moved_length(&self) -> u64 {
        self.moved.iter().map(|moved| moved.form.length()).sum()
    }

    /// Where each instruction is among the bytes that [`assemble`](Self::assemble) returns, and its original.
    pub(super) fn places(&self) -> impl Iterator<Item = (u64, Gva)> {
        self.moved.iter().scan(0, |end, moved| {
            let offset = *end;
            *end += moved.form.length();
            Some((offset, moved.at))
        })
    }

    /// The moved instructions, to be written to `stub_at`. Registers and stack have to be those of the region's start
    /// when they run. Unless the region [`goes_on`](Self::goes_on), nothing behind them runs. Code of ours returns at `ret`.
    ///
    /// # Errors
    /// [`OutOfReach`] when a branch or an operand does not reach from there.
    pub fn assemble(&self, stub_at: Gva, ret: Gva) -> Result<Vec<u8>, OutOfReach> {
        let mut assembled = Vec::with_capacity(self.moved_length() as usize);
        for Moved { form, .. } in &self.moved {
            let here = stub_at.add(assembled.len() as u64);
            match form {
                Substitute::Copy(copy) => {
                    let placed = copy.place(here, Ending::Trap)?;
                    assembled.extend(placed.into_iter().take(copy.length()));
                }
                Substitute::Branch { code, target } => {
                    assembled.extend(code);
                    assembled.extend(distance(here, here.add(form.length()), *target)?);
                }
                Substitute::Return => assembled.extend(jump(here, ret)?),
            }
        }
        Ok(assembled)
    }
}
