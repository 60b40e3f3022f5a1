//! Operands as the run-time path wants them: registers by index, widths and addresses resolved.

use crate::regs::Regs;
use iced_x86::{Instruction, OpKind, Register};

/// A general-purpose register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gpr {
    Rax,
    Rcx,
    Rdx,
    Rbx,
    Rsp,
    Rbp,
    Rsi,
    Rdi,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
}

impl Gpr {
    /// The register that `register` is, or is a part of.
    fn new(register: Register) -> Option<Self> {
        Some(match register.full_register() {
            Register::RAX => Self::Rax,
            Register::RCX => Self::Rcx,
            Register::RDX => Self::Rdx,
            Register::RBX => Self::Rbx,
            Register::RSP => Self::Rsp,
            Register::RBP => Self::Rbp,
            Register::RSI => Self::Rsi,
            Register::RDI => Self::Rdi,
            Register::R8 => Self::R8,
            Register::R9 => Self::R9,
            Register::R10 => Self::R10,
            Register::R11 => Self::R11,
            Register::R12 => Self::R12,
            Register::R13 => Self::R13,
            Register::R14 => Self::R14,
            Register::R15 => Self::R15,
            _ => return None,
        })
    }

    /// All 64 bits.
    pub(super) fn get(self, regs: &Regs) -> u64 {
        match self {
            Self::Rax => regs.rax,
            Self::Rcx => regs.rcx,
            Self::Rdx => regs.rdx,
            Self::Rbx => regs.rbx,
            Self::Rsp => regs.rsp,
            Self::Rbp => regs.rbp,
            Self::Rsi => regs.rsi,
            Self::Rdi => regs.rdi,
            Self::R8 => regs.r8,
            Self::R9 => regs.r9,
            Self::R10 => regs.r10,
            Self::R11 => regs.r11,
            Self::R12 => regs.r12,
            Self::R13 => regs.r13,
            Self::R14 => regs.r14,
            Self::R15 => regs.r15,
        }
    }

    /// The place of all 64 bits.
    pub(super) fn slot(self, regs: &mut Regs) -> &mut u64 {
        match self {
            Self::Rax => &mut regs.rax,
            Self::Rcx => &mut regs.rcx,
            Self::Rdx => &mut regs.rdx,
            Self::Rbx => &mut regs.rbx,
            Self::Rsp => &mut regs.rsp,
            Self::Rbp => &mut regs.rbp,
            Self::Rsi => &mut regs.rsi,
            Self::Rdi => &mut regs.rdi,
            Self::R8 => &mut regs.r8,
            Self::R9 => &mut regs.r9,
            Self::R10 => &mut regs.r10,
            Self::R11 => &mut regs.r11,
            Self::R12 => &mut regs.r12,
            Self::R13 => &mut regs.r13,
            Self::R14 => &mut regs.r14,
            Self::R15 => &mut regs.r15,
        }
    }
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
pub(super) struct Part {
    pub(super) register: Gpr,
    pub(super) width: Width,
    /// ah, ch, dh or bh: the byte above the lowest.
    pub(super) high: bool,
}

impl Part {
    /// The part that operand `index` names; `None` when it is not a general-purpose register.
    pub(super) fn of(instruction: &Instruction, index: u32) -> Option<Self> {
        let register = instruction.try_op_register(index).ok()?;
        let high = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
        Some(Self { register: Gpr::new(register)?, width: Width::new(register.size())?, high })
    }

    /// The low part of `register`.
    pub(super) fn low(register: Gpr, width: Width) -> Self {
        Self { register, width, high: false }
    }

    pub(super) fn get(self, regs: &Regs) -> u64 {
        let full = self.register.get(regs);
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
    base: Option<Gpr>,
    index: Option<Gpr>,
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
            Register::FS => Segment::Fs,
            Register::GS => Segment::Gs,
            // 64-bit mode ignores the other segments' prefixes: the base decides (SDM volume 1, 3.7.4).
            _ if matches!(instruction.memory_base().full_register(), Register::RSP | Register::RBP) => {
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
            Register::None => Some(None),
            other => Gpr::new(other).map(Some),
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
        let value = |register: Option<Gpr>| register.map_or(0, |register| register.get(regs));
        let sum = value(self.base)
            .wrapping_add(value(self.index).wrapping_mul(self.scale))
            .wrapping_add(self.displacement);
        if self.narrow { sum & 0xffff_ffff } else { sum }
    }
}

/// What an instruction can both read and write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Register(Part),
    Memory(Address, Width),
}

impl Place {
    /// Operand `index`; `None` when it is neither memory of 1, 2, 4 or 8 bytes nor a general-purpose register.
    pub(super) fn of(instruction: &Instruction, index: u32) -> Option<Self> {
        match instruction.try_op_kind(index).ok()? {
            OpKind::Register => Part::of(instruction, index).map(Self::Register),
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
    Place(Place),
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
            _ => Place::of(instruction, index).map(Self::Place),
        }
    }
}
