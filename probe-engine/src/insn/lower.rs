//! From a decoded instruction to what the host does in its place.

use super::flags::{Binary, Bit, Shift};
use super::operand::{Address, OperandPlace, RegisterPart, Source, Width};
use crate::regs::Register;
use crate::regs::rflags::{CF, DF, IF};
use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind};

/// What the host does in place of an instruction, besides moving RIP past it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EmulatedAction {
    Nothing,
    /// `stc`, `std`, `sti`.
    SetFlag(u64),
    /// `clc`, `cld`, `cli`.
    ClearFlag(u64),
    ComplementCarry,
    /// `lahf`.
    FlagsToAh,
    /// `sahf`.
    AhToFlags,
    PushFlags,
    PopFlags,
    Push(Source),
    Pop(Register),
    /// `mov rsp, rbp; pop rbp`.
    Leave,
    Move {
        to: OperandPlace,
        from: Source,
    },
    Extend {
        to: RegisterPart,
        from: OperandPlace,
        signed: bool,
    },
    LoadAddress {
        to: RegisterPart,
        address: Address,
    },
    Binary {
        operation: Binary,
        to: OperandPlace,
        from: Source,
    },
    /// A binary operation of which only the flags are kept.
    Compare {
        operation: Binary,
        left: OperandPlace,
        right: Source,
    },
    Increment(OperandPlace),
    Decrement(OperandPlace),
    Negate(OperandPlace),
    Invert(OperandPlace),
    Shift {
        operation: Shift,
        to: OperandPlace,
        count: Source,
    },
    /// A signed product, cut to the width of its operands.
    Multiply {
        to: RegisterPart,
        left: OperandPlace,
        right: Source,
    },
    /// A product with rax, of which the high half goes to rdx, or to ah.
    MultiplyWide {
        by: OperandPlace,
        is_signed: bool,
    },
    Bit {
        operation: Bit,
        to: OperandPlace,
        index: Source,
    },
    Exchange(RegisterPart, RegisterPart),
    SwapBytes(RegisterPart),
    /// Fills `to` with the sign of `from` (cwd, cdq, cqo).
    SpreadSign {
        to: RegisterPart,
        from: RegisterPart,
    },
    MoveIf {
        condition: ConditionCode,
        to: RegisterPart,
        from: OperandPlace,
    },
    SetIf {
        condition: ConditionCode,
        to: OperandPlace,
    },
    Jump(Source),
    JumpIf {
        condition: ConditionCode,
        target: u64,
    },
    /// `loop` and its conditional forms: counts down, and jumps while something is left and the condition holds.
    Loop {
        counter: RegisterPart,
        condition: ConditionCode,
        target: u64,
    },
    /// `jrcxz`, `jecxz`.
    JumpIfZero {
        counter: RegisterPart,
        target: u64,
    },
    Call(Source),
    Return {
        /// Bytes of arguments that the callee drops.
        release: u64,
    },
}

impl EmulatedAction {
    /// What to do in place of `instruction`; `None` when the host does not emulate it.
    pub(super) fn of(instruction: &Instruction) -> Option<Self> {
        // The host's load and store are not atomic versus other vCPUs.
        if instruction.has_lock_prefix() {
            return None;
        }
        let place = |index| OperandPlace::of(instruction, index);
        let source = |index| Source::of(instruction, index);
        let part = |index| RegisterPart::of(instruction, index);
        let binary = |operation| Some(Self::Binary { operation, to: place(0)?, from: source(1)? });
        let compare = |operation| Some(Self::Compare { operation, left: place(0)?, right: source(1)? });
        let shift = |operation| Some(Self::Shift { operation, to: place(0)?, count: source(1)? });
        let bit = |operation| {
            is_in_operand(instruction).then_some(Self::Bit { operation, to: place(0)?, index: source(1)? })
        };
        let extend_rax = |to, from| {
            let from = OperandPlace::Register(RegisterPart::low(Register::Rax, from));
            Some(Self::Extend { to: RegisterPart::low(Register::Rax, to), from, signed: true })
        };
        let spread_rax = |width| {
            Some(Self::SpreadSign {
                to: RegisterPart::low(Register::Rdx, width),
                from: RegisterPart::low(Register::Rax, width),
            })
        };
        match instruction.mnemonic() {
            Mnemonic::Nop | Mnemonic::Pause | Mnemonic::Endbr64 | Mnemonic::Endbr32 => Some(Self::Nothing),
            Mnemonic::Stc => Some(Self::SetFlag(CF)),
            Mnemonic::Std => Some(Self::SetFlag(DF)),
            Mnemonic::Sti => Some(Self::SetFlag(IF)),
            Mnemonic::Clc => Some(Self::ClearFlag(CF)),
            Mnemonic::Cld => Some(Self::ClearFlag(DF)),
            Mnemonic::Cli => Some(Self::ClearFlag(IF)),
            Mnemonic::Cmc => Some(Self::ComplementCarry),
            Mnemonic::Lahf => Some(Self::FlagsToAh),
            Mnemonic::Sahf => Some(Self::AhToFlags),
            Mnemonic::Mov => Some(Self::Move { to: place(0)?, from: source(1)? }),
            Mnemonic::Movzx => Some(Self::Extend { to: part(0)?, from: place(1)?, signed: false }),
            Mnemonic::Movsx | Mnemonic::Movsxd => {
                Some(Self::Extend { to: part(0)?, from: place(1)?, signed: true })
            }
            Mnemonic::Lea => Some(Self::LoadAddress { to: part(0)?, address: Address::of(instruction)? }),
            Mnemonic::Add => binary(Binary::Add),
            Mnemonic::Adc => binary(Binary::AddWithCarry),
            Mnemonic::Sub => binary(Binary::Sub),
            Mnemonic::Sbb => binary(Binary::SubWithBorrow),
            Mnemonic::And => binary(Binary::And),
            Mnemonic::Or => binary(Binary::Or),
            Mnemonic::Xor => binary(Binary::Xor),
            Mnemonic::Cmp => compare(Binary::Sub),
            Mnemonic::Test => compare(Binary::And),
            Mnemonic::Inc => place(0).map(Self::Increment),
            Mnemonic::Dec => place(0).map(Self::Decrement),
            Mnemonic::Neg => place(0).map(Self::Negate),
            Mnemonic::Not => place(0).map(Self::Invert),
            Mnemonic::Shl | Mnemonic::Sal => shift(Shift::Left),
            Mnemonic::Shr => shift(Shift::LogicalRight),
            Mnemonic::Sar => shift(Shift::ArithmeticRight),
            Mnemonic::Rol => shift(Shift::RotateLeft),
            Mnemonic::Ror => shift(Shift::RotateRight),
            Mnemonic::Rcl => shift(Shift::RotateLeftThroughCarry),
            Mnemonic::Rcr => shift(Shift::RotateRightThroughCarry),
            Mnemonic::Imul => match instruction.op_count() {
                2 => Some(Self::Multiply { to: part(0)?, left: place(0)?, right: source(1)? }),
                3 => Some(Self::Multiply { to: part(0)?, left: place(1)?, right: source(2)? }),
                _ => Some(Self::MultiplyWide { by: place(0)?, is_signed: true }),
            },
            Mnemonic::Mul => Some(Self::MultiplyWide { by: place(0)?, is_signed: false }),
            Mnemonic::Bt => bit(Bit::Test),
            Mnemonic::Bts => bit(Bit::Set),
            Mnemonic::Btr => bit(Bit::Reset),
            Mnemonic::Btc => bit(Bit::Complement),
            // With memory it locks the bus, prefix or not.
            Mnemonic::Xchg => Some(Self::Exchange(part(0)?, part(1)?)),
            Mnemonic::Bswap => part(0).filter(|part| part.width != Width::Word).map(Self::SwapBytes),
            Mnemonic::Cbw => extend_rax(Width::Word, Width::Byte),
            Mnemonic::Cwde => extend_rax(Width::Dword, Width::Word),
            Mnemonic::Cdqe => extend_rax(Width::Qword, Width::Dword),
            Mnemonic::Cwd => spread_rax(Width::Word),
            Mnemonic::Cdq => spread_rax(Width::Dword),
            Mnemonic::Cqo => spread_rax(Width::Qword),
            _ => stack_or_branch(instruction)
                .or_else(|| counting(instruction))
                .or_else(|| conditional(instruction)),
        }
    }
}

/// Those with a stack slot or a target of 64 bits. The operand-size prefix makes others, which kernels do not use.
fn stack_or_branch(instruction: &Instruction) -> Option<EmulatedAction> {
    match instruction.code() {
        Code::Push_r64 | Code::Push_rm64 | Code::Pushq_imm8 | Code::Pushq_imm32 => {
            Source::of(instruction, 0).map(EmulatedAction::Push)
        }
        Code::Pop_r64 | Code::Pop_rm64 => {
            RegisterPart::of(instruction, 0).map(|to| EmulatedAction::Pop(to.register))
        }
        Code::Pushfq => Some(EmulatedAction::PushFlags),
        Code::Popfq => Some(EmulatedAction::PopFlags),
        Code::Leaveq => Some(EmulatedAction::Leave),
        Code::Call_rel32_64 | Code::Call_rm64 => Source::of(instruction, 0).map(EmulatedAction::Call),
        Code::Jmp_rel8_64 | Code::Jmp_rel32_64 | Code::Jmp_rm64 => {
            Source::of(instruction, 0).map(EmulatedAction::Jump)
        }
        Code::Retnq => Some(EmulatedAction::Return { release: 0 }),
        Code::Retnq_imm16 => Some(EmulatedAction::Return { release: instruction.try_immediate(0).ok()? }),
        _ => None,
    }
}

/// Branches that look at rcx, or at ecx with an address-size prefix.
fn counting(instruction: &Instruction) -> Option<EmulatedAction> {
    let counter = match instruction.code() {
        Code::Loop_rel8_64_RCX | Code::Loope_rel8_64_RCX | Code::Loopne_rel8_64_RCX | Code::Jrcxz_rel8_64 => {
            RegisterPart::low(Register::Rcx, Width::Qword)
        }
        Code::Loop_rel8_64_ECX | Code::Loope_rel8_64_ECX | Code::Loopne_rel8_64_ECX | Code::Jecxz_rel8_64 => {
            RegisterPart::low(Register::Rcx, Width::Dword)
        }
        _ => return None,
    };
    let target = instruction.near_branch64();
    if matches!(instruction.mnemonic(), Mnemonic::Jrcxz | Mnemonic::Jecxz) {
        return Some(EmulatedAction::JumpIfZero { counter, target });
    }
    Some(EmulatedAction::Loop { counter, condition: instruction.condition_code(), target })
}

fn conditional(instruction: &Instruction) -> Option<EmulatedAction> {
    let condition = instruction.condition_code();
    if condition == ConditionCode::None {
        return None;
    }
    if instruction.op0_kind() == OpKind::NearBranch64 {
        let target = instruction.near_branch64();
        return instruction.is_jcc_short_or_near().then_some(EmulatedAction::JumpIf { condition, target });
    }
    match instruction.op_count() {
        1 => Some(EmulatedAction::SetIf { condition, to: OperandPlace::of(instruction, 0)? }),
        2 => Some(EmulatedAction::MoveIf {
            condition,
            to: RegisterPart::of(instruction, 0)?,
            from: OperandPlace::of(instruction, 1)?,
        }),
        _ => None,
    }
}

/// Whether a bit number counts within the operand: one in a register may lead to memory far behind it.
fn is_in_operand(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Register || instruction.op1_kind() != OpKind::Register
}
