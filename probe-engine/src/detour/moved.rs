//! One instruction that makes room for a jump, as it runs elsewhere, or why it cannot.

use iced_x86::{FlowControl, Instruction, Mnemonic};

use crate::addr::Gva;
use crate::insn::copy::{JMP_REL32, JUMP, OutOfLine};
use crate::insn::decode::{BoundaryError, text};
use crate::insn::plan::{Refusal, plan, plan_copy};
use crate::linux::left_alone::Why;
use crate::linux::targets::branch_target;

/// Bytes of a branch's distance.
const DISTANCE: u64 = 4;

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

/// One instruction, as it is moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moved {
    /// Where it was.
    pub(super) at: Gva,
    pub(super) form: Substitute,
    goes_on: bool,
}

/// What runs in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Substitute {
    /// Its own bytes, with the displacement of a RIP-relative operand changed.
    Copy(OutOfLine),
    /// Other bytes that do the same and end in a branch, whose distance follows.
    Branch { code: Vec<u8>, target: Gva },
    /// A jump to where code of ours returns as the guest does.
    Return,
}

impl Substitute {
    /// Bytes, wherever it is placed.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Copy(copy) => copy.length() as u64,
            Self::Branch { code, .. } => code.len() as u64 + DISTANCE,
            Self::Return => JUMP as u64,
        }
    }
}

impl Moved {
    /// How to move `instruction`, the first of `bytes`, with `previous` before it.
    fn new(bytes: &[u8], instruction: &Instruction, previous: Option<&Instruction>) -> Result<Self, Refusal> {
        let at = Gva(instruction.ip());
        let refused = || Refusal::Branch(text(instruction));
        let flow = instruction.flow_control();
        let form = match (flow, branch_target(instruction)) {
            (FlowControl::Next, _) => Substitute::Copy(plan_copy(bytes, at, previous, false)?),
            (FlowControl::Return, _) => {
                // The plan refuses all returns but near ones.
                plan(bytes, at, previous, false)?;
                match instruction.op_count() {
                    0 => Substitute::Return,
                    // One that takes arguments off the stack.
                    _ => return Err(refused()),
                }
            }
            (_, Some(target)) => {
                plan(bytes, at, previous, false)?;
                let code = branch(bytes, instruction).ok_or_else(refused)?;
                Substitute::Branch { code, target }
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
