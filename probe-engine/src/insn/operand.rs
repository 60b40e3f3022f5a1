//! Operands as the run-time path wants them: registers by index, widths and addresses resolved.

use crate::regs::{Register, Regs};
use iced_x86::{Instruction, OpKind};

/// The general register that `register` is, or is a part of.
pub(crate) fn general(register: iced_x86::Register) -> Option<Register> {
    Some(match register.full_register() {
        iced_x86::Register::RAX => Register::Rax,
        iced_x86::Register::RCX => Register::Rcx,
        iced_x86::Register::RDX => Register::Rdx,
        iced_x86::Register::RBX => Register::Rbx,
        iced_x86::Register::RSP => Register::Rsp,
        iced_x86::Register::RBP => Register::Rbp,
        iced_x86::Register::RSI => Register::Rsi,
        iced_x86::Register::RDI => Register::Rdi,
        iced_x86::Register::R8 => Register::R8,
        iced_x86::Register::R9 => Register::R9,
        iced_x86::Register::R10 => Register::R10,
        iced_x86::Register::R11 => Register::R11,
        iced_x86::Register::R12 => Register::R12,
        iced_x86::Register::R13 => Register::R13,
        iced_x86::Register::R14 => Register::R14,
        iced_x86::Register::R15 => Register::R15,
        _ => return None,
    })
}

/// How many bytes an operand has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    Byte,
    Word,
    Dword,
    Qword,
}

impl Width {
    fn new(bytes: usize) -> Option<Self> {
        Some(match bytes {
            1 => Self::Byte,
            2 => Self::Word,
            4 => Self::Dword,
            8 => Self::Qword,
            _ => return None,
        })
    }

    pub(super) fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Word => 2,
            Self::Dword => 4,
            Self::Qword => 8,
        }
    }

    pub(super) fn bits(self) -> u32 {
        self.bytes() as u32 * 8
    }

    /// The bits of a value of this width.
    pub(super) fn mask(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// The top bit of a value of this width.
    pub(super) fn sign(self) -> u64 {
        1 << (self.bits() - 1)
    }

    /// The 64-bit value with the sign of the low part of `value`.
    pub(super) fn sign_extend(self, value: u64) -> u64 {
        let unused = 64 - self.bits();
        (((value << unused) as i64) >> unused) as u64
    }
}

/// A register, or the part of one, that an instruction names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RegisterPart {
    pub(super) register: Register,
    pub(super) width: Width,
    /// ah, ch, dh or bh: the byte above the lowest.
    pub(super) high: bool,
}

impl RegisterPart {
    /// The part that operand `index` names; `None` when it is not a general-purpose register.
    pub(super) fn of(instruction: &Instruction, index: u32) -> Option<Self> {
        let register = instruction.try_op_register(index).ok()?;
        let high = matches!(
            register,
            iced_x86::Register::AH | iced_x86::Register::CH | iced_x86::Register::DH | iced_x86::Register::BH
        );
        Some(Self { register: general(register)?, width: Width::new(register.size())?, high })
    }

    /// The low part of `register`.
    pub(super) fn low(register: Register, width: Width) -> Self {
        Self { register, width, high: false }
    }

    pub(super) fn get(self, regs: &Regs) -> u64 {
        let full = self.register.of(regs);
        (if self.high { full >> 8 } else { full }) & self.width.mask()
    }

    /// Writes as the CPU does (SDM volume 1, 3.4.1.1): 32 bits clear the upper half, 16 and 8 keep the rest.
    pub(super) fn set(self, regs: &mut Regs, value: u64) {
        let value = value & self.width.mask();
        let slot = self.register.slot(regs);
        *slot = match self.width {
            Width::Qword | Width::Dword => value,
            Width::Byte if self.high => (*slot & !0xff00) | value << 8,
            Width::Word | Width::Byte => (*slot & !self.width.mask()) | value,
        };
    }
}

/// The segments that 64-bit mode tells apart: FS and GS have a base, and a bad address through SS has an exception of
/// its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Segment {
    Flat,
    Stack,
    Fs,
    Gs,
}

/// A memory operand's address: `segment + truncated(base + index * scale + displacement)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) segment: Segment,
    base: Option<Register>,
    index: Option<Register>,
    scale: u64,
    /// Absolute for a RIP-relative operand.
    displacement: u64,
    /// Address-size prefix: the effective address has 32 bits.
    narrow: bool,
}

impl Address {
    /// The address of the memory operand; `None` when it has registers that no general-purpose instruction has.
    pub(super) fn of(instruction: &Instruction) -> Option<Self> {
        let segment = match instruction.memory_segment() {
            iced_x86::Register::FS => Segment::Fs,
            iced_x86::Register::GS => Segment::Gs,
            // 64-bit mode ignores the other segments' prefixes: the base decides (SDM volume 1, 3.7.4).
            _ if matches!(
                instruction.memory_base().full_register(),
                iced_x86::Register::RSP | iced_x86::Register::RBP
            ) =>
            {
                Segment::Stack
            }
            _ => Segment::Flat,
        };
        let displacement = instruction.memory_displacement64();
        if instruction.is_ip_rel_memory_operand() {
            let displacement = instruction.ip_rel_memory_address();
            return Some(Self { segment, base: None, index: None, scale: 1, displacement, narrow: false });
        }
        let register = |register| match register {
            iced_x86::Register::None => Some(None),
            other => general(other).map(Some),
        };
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        Some(Self {
            segment,
            base: register(base)?,
            index: register(index)?,
            scale: u64::from(instruction.memory_index_scale()),
            displacement,
            narrow: base.size() == 4 || index.size() == 4,
        })
    }

    /// The effective address: what `lea` yields, without a segment base.
    pub(super) fn effective(&self, regs: &Regs) -> u64 {
        let value = |register: Option<Register>| register.map_or(0, |register| register.of(regs));
        let sum = value(self.base)
            .wrapping_add(value(self.index).wrapping_mul(self.scale))
            .wrapping_add(self.displacement);
        if self.narrow { sum & 0xffff_ffff } else { sum }
    }
}

/// What an instruction can both read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OperandPlace {
    Register(RegisterPart),
    Memory(Address, Width),
}

impl OperandPlace {
    /// Operand `index`; `None` when it is neither memory of 1, 2, 4 or 8 bytes nor a general-purpose register.
    pub(super) fn of(instruction: &Instruction, index: u32) -> Option<Self> {
        match instruction.try_op_kind(index).ok()? {
            OpKind::Register => RegisterPart::of(instruction, index).map(Self::Register),
            OpKind::Memory => {
                let width = Width::new(instruction.memory_size().size())?;
                Some(Self::Memory(Address::of(instruction)?, width))
            }
            _ => None,
        }
    }

    pub(super) fn width(&self) -> Width {
        match self {
            Self::Register(part) => part.width,
            Self::Memory(_, width) => *width,
        }
    }
}

/// What an instruction can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    OperandPlace(OperandPlace),
    /// Sign-extended where the encoding says so, and a branch's absolute target.
    Immediate(u64),
}

impl Source {
    /// Operand `index`; `None` when it is of no kind that is emulated.
    pub(super) fn of(instruction: &Instruction, index: u32) -> Option<Self> {
        if let Ok(value) = instruction.try_immediate(index) {
            return Some(Self::Immediate(value));
        }
        match instruction.try_op_kind(index).ok()? {
            OpKind::NearBranch64 => Some(Self::Immediate(instruction.near_branch64())),
            _ => OperandPlace::of(instruction, index).map(Self::OperandPlace),
        }
    }
}
