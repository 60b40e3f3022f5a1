//! The instructions that a detour's jump overwrites, and how they run elsewhere.

use std::ops::Range;

use iced_x86::{FlowControl, Instruction};

use super::verdict::movable;
use crate::addr::Gva;
use crate::insn::copy::{Ending, JMP_REL32, JUMP, OutOfLine, OutOfReach, distance, jump};
use crate::insn::decode::{instructions, text};
use crate::insn::plan::{Refusal, plan, plan_copy};
use crate::linux::targets::branch_target;

/// Bytes of a branch's distance.
const DISTANCE: u64 = 4;

/// The least run of whole instructions that covers the 5 bytes of a jump, at the addresses that it was found at.
///
/// Only [`verdict`](super::verdict::verdict) makes one. When the jump is written, no CPU and no task may be inside:
/// behind [`at`](Self::at), and before [`end`](Self::end). Where it [is one
/// instruction](Self::is_one_instruction), none can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    at: Gva,
    length: u8,
    /// Bytes at its end that never run and are not moved.
    padding: u8,
    moved: Vec<Moved>,
}

/// One instruction, as it is moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moved {
    at: Gva,
    form: Form,
    goes_on: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    /// Its own bytes, with the displacement of a RIP-relative operand changed.
    Copy(OutOfLine),
    /// Other bytes that do the same and end in a branch, whose distance follows.
    Branch { code: Vec<u8>, target: Gva },
    /// A jump to where code of ours returns as the guest does.
    Return,
}

impl Form {
    /// Bytes, wherever it is placed.
    fn length(&self) -> u64 {
        match self {
            Self::Copy(copy) => copy.length() as u64,
            Self::Branch { code, .. } => code.len() as u64 + DISTANCE,
            Self::Return => JUMP as u64,
        }
    }
}

impl Moved {
    /// How to move `instruction`, the first of `bytes`, with `previous` before it.
    pub(super) fn new(
        bytes: &[u8],
        instruction: &Instruction,
        previous: Option<&Instruction>,
    ) -> Result<Self, Refusal> {
        let at = Gva(instruction.ip());
        let refused = || Refusal::Branch(text(instruction));
        let flow = instruction.flow_control();
        let form = match (flow, branch_target(instruction)) {
            (FlowControl::Next, _) => Form::Copy(plan_copy(bytes, at, previous, false)?),
            (FlowControl::Return, _) => {
                // The plan refuses all returns but near ones.
                plan(bytes, at, previous, false)?;
                match instruction.op_count() {
                    0 => Form::Return,
                    // One that takes arguments off the stack.
                    _ => return Err(refused()),
                }
            }
            (_, Some(target)) => {
                plan(bytes, at, previous, false)?;
                let code = branch(bytes, instruction).ok_or_else(refused)?;
                Form::Branch { code, target }
            }
            (_, None) => {
                plan(bytes, at, previous, false)?;
                return Err(refused());
            }
        };
        let goes_on = matches!(flow, FlowControl::Next | FlowControl::ConditionalBranch);
        Ok(Self { at, form, goes_on })
    }

    /// Whether what follows in the region may run next. What a call returns to is never inside.
    pub(super) fn goes_on(&self) -> bool {
        self.goes_on
    }
}

/// What does the same as the direct branch at the start of `bytes` once its distance of 32 bits follows. `None` for
/// a call whose return address cannot be pushed.
fn branch(bytes: &[u8], instruction: &Instruction) -> Option<Vec<u8>> {
    /// `push imm32`, which is extended by its sign: as the kernel's addresses are, the topmost 2 GiB.
    const PUSH_IMM32: u8 = 0x68;
    /// `jcc rel32`; the condition is added to the second byte.
    const JCC_REL32: [u8; 2] = [0x0f, 0x80];
    match instruction.flow_control() {
        FlowControl::UnconditionalBranch => Some(vec![JMP_REL32]),
        // The callee has to return behind the original, where stack traces have to see it.
        FlowControl::Call => {
            let back = i32::try_from(instruction.next_ip() as i64).ok()?;
            Some([&[PUSH_IMM32][..], &back.to_le_bytes(), &[JMP_REL32]].concat())
        }
        FlowControl::ConditionalBranch if instruction.is_jcc_short_or_near() => {
            let [escape, opcode] = JCC_REL32;
            Some(vec![escape, opcode | (instruction.condition_code() as u8).checked_sub(1)?])
        }
        // `loop` and `jrcxz` have a distance of 8 bits only: over a jump around the jump.
        FlowControl::ConditionalBranch => {
            let (_, opcode) = bytes.get(..instruction.len())?.split_last()?;
            Some([opcode, &[2, 0xeb, JUMP as u8, JMP_REL32]].concat())
        }
        _ => None,
    }
}

impl Region {
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
        self.moved.iter().any(|moved| moved.form == Form::Return)
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
                Form::Copy(copy) => {
                    let placed = copy.place(here, Ending::Trap)?;
                    assembled.extend(placed.into_iter().take(copy.length()));
                }
                Form::Branch { code, target } => {
                    assembled.extend(code);
                    assembled.extend(distance(here, here.add(form.length()), *target)?);
                }
                Form::Return => assembled.extend(jump(here, ret)?),
            }
        }
        Ok(assembled)
    }
}
