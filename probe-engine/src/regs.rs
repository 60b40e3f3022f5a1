//! The registers of one vCPU, as a handler and the emulator see them.

use serde::{Deserialize, Serialize};

/// General-purpose registers, instruction pointer and flags of a vCPU that is stopped at a trap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the fields are the architecture's own register names")]
pub struct Regs {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

impl Regs {
    /// The six integer argument registers in the order of the System V ABI (rdi, rsi, rdx, rcx, r8, r9).
    #[must_use]
    pub fn args(&self) -> [u64; 6] {
        [self.rdi, self.rsi, self.rdx, self.rcx, self.r8, self.r9]
    }
}

/// A general register, RIP or RFLAGS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the architecture's own names")]
pub enum Register {
    Rax,
    Rbx,
    Rcx,
    Rdx,
    Rsi,
    Rdi,
    Rsp,
    Rbp,
    R8,
    R9,
    R10,
    R11,
    R12,
    R13,
    R14,
    R15,
    Rip,
    Rflags,
}

impl Register {
    /// All of them: RIP, the general registers, RFLAGS.
    pub const ALL: [Self; 18] = [
        Self::Rip,
        Self::Rax,
        Self::Rbx,
        Self::Rcx,
        Self::Rdx,
        Self::Rsi,
        Self::Rdi,
        Self::Rsp,
        Self::Rbp,
        Self::R8,
        Self::R9,
        Self::R10,
        Self::R11,
        Self::R12,
        Self::R13,
        Self::R14,
        Self::R15,
        Self::Rflags,
    ];

    /// By the name that the kernel's probes have for it (`di`, `ip`, `flags`) or the processor's (`rdi`).
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "ax" | "rax" => Self::Rax,
            "bx" | "rbx" => Self::Rbx,
            "cx" | "rcx" => Self::Rcx,
            "dx" | "rdx" => Self::Rdx,
            "si" | "rsi" => Self::Rsi,
            "di" | "rdi" => Self::Rdi,
            "sp" | "rsp" => Self::Rsp,
            "bp" | "rbp" => Self::Rbp,
            "r8" => Self::R8,
            "r9" => Self::R9,
            "r10" => Self::R10,
            "r11" => Self::R11,
            "r12" => Self::R12,
            "r13" => Self::R13,
            "r14" => Self::R14,
            "r15" => Self::R15,
            "ip" | "rip" => Self::Rip,
            "flags" | "rflags" => Self::Rflags,
            _ => return None,
        })
    }

    /// By the name that the kernel's probes have for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Rax => "ax",
            Self::Rbx => "bx",
            Self::Rcx => "cx",
            Self::Rdx => "dx",
            Self::Rsi => "si",
            Self::Rdi => "di",
            Self::Rsp => "sp",
            Self::Rbp => "bp",
            Self::R8 => "r8",
            Self::R9 => "r9",
            Self::R10 => "r10",
            Self::R11 => "r11",
            Self::R12 => "r12",
            Self::R13 => "r13",
            Self::R14 => "r14",
            Self::R15 => "r15",
            Self::Rip => "ip",
            Self::Rflags => "flags",
        }
    }

    /// By the processor's name.
    #[must_use]
    pub fn processor_name(self) -> &'static str {
        match self {
            Self::Rax => "rax",
            Self::Rbx => "rbx",
            Self::Rcx => "rcx",
            Self::Rdx => "rdx",
            Self::Rsi => "rsi",
            Self::Rdi => "rdi",
            Self::Rsp => "rsp",
            Self::Rbp => "rbp",
            Self::Rip => "rip",
            Self::Rflags => "rflags",
            other => other.name(),
        }
    }

    /// Where it lies among the registers that the kernel saves of a program, in bytes (`struct pt_regs` in
    /// arch/x86/include/asm/ptrace.h, which programs know as `struct user_regs_struct`).
    #[must_use]
    pub fn saved(self) -> u16 {
        match self {
            Self::R15 => 0,
            Self::R14 => 8,
            Self::R13 => 16,
            Self::R12 => 24,
            Self::Rbp => 32,
            Self::Rbx => 40,
            Self::R11 => 48,
            Self::R10 => 56,
            Self::R9 => 64,
            Self::R8 => 72,
            Self::Rax => 80,
            Self::Rcx => 88,
            Self::Rdx => 96,
            Self::Rsi => 104,
            Self::Rdi => 112,
            Self::Rip => 128,
            Self::Rflags => 144,
            Self::Rsp => 152,
        }
    }

    /// The register of argument `n`, from 0 on (System V ABI, 3.2.3); `None` for those on the stack.
    #[must_use]
    pub fn of_argument(n: usize) -> Option<Self> {
        [Self::Rdi, Self::Rsi, Self::Rdx, Self::Rcx, Self::R8, Self::R9].get(n).copied()
    }

    /// The place of its value.
    pub fn slot(self, regs: &mut Regs) -> &mut u64 {
        match self {
            Self::Rax => &mut regs.rax,
            Self::Rbx => &mut regs.rbx,
            Self::Rcx => &mut regs.rcx,
            Self::Rdx => &mut regs.rdx,
            Self::Rsi => &mut regs.rsi,
            Self::Rdi => &mut regs.rdi,
            Self::Rsp => &mut regs.rsp,
            Self::Rbp => &mut regs.rbp,
            Self::R8 => &mut regs.r8,
            Self::R9 => &mut regs.r9,
            Self::R10 => &mut regs.r10,
            Self::R11 => &mut regs.r11,
            Self::R12 => &mut regs.r12,
            Self::R13 => &mut regs.r13,
            Self::R14 => &mut regs.r14,
            Self::R15 => &mut regs.r15,
            Self::Rip => &mut regs.rip,
            Self::Rflags => &mut regs.rflags,
        }
    }

    /// Its value among `regs`.
    #[must_use]
    pub fn of(self, regs: &Regs) -> u64 {
        match self {
            Self::Rax => regs.rax,
            Self::Rbx => regs.rbx,
            Self::Rcx => regs.rcx,
            Self::Rdx => regs.rdx,
            Self::Rsi => regs.rsi,
            Self::Rdi => regs.rdi,
            Self::Rsp => regs.rsp,
            Self::Rbp => regs.rbp,
            Self::R8 => regs.r8,
            Self::R9 => regs.r9,
            Self::R10 => regs.r10,
            Self::R11 => regs.r11,
            Self::R12 => regs.r12,
            Self::R13 => regs.r13,
            Self::R14 => regs.r14,
            Self::R15 => regs.r15,
            Self::Rip => regs.rip,
            Self::Rflags => regs.rflags,
        }
    }
}

/// Bits of RFLAGS (Intel SDM volume 1, 3.4.3).
pub mod rflags {
    /// Carry.
    pub const CF: u64 = 1 << 0;
    /// Parity of the low byte of a result.
    pub const PF: u64 = 1 << 2;
    /// Carry out of bit 3.
    pub const AF: u64 = 1 << 4;
    /// Zero.
    pub const ZF: u64 = 1 << 6;
    /// Sign.
    pub const SF: u64 = 1 << 7;
    /// Single step.
    pub const TF: u64 = 1 << 8;
    /// Interrupts enabled.
    pub const IF: u64 = 1 << 9;
    /// Direction of string instructions.
    pub const DF: u64 = 1 << 10;
    /// Signed overflow.
    pub const OF: u64 = 1 << 11;
    /// I/O privilege level, two bits.
    pub const IOPL: u64 = 3 << 12;
    /// Nested task.
    pub const NT: u64 = 1 << 14;
    /// Resume: the next instruction raises no debug exception for an execution breakpoint on itself.
    pub const RF: u64 = 1 << 16;
    /// Virtual-8086 mode, which 64-bit mode does not have.
    pub const VM: u64 = 1 << 17;
    /// Alignment check in user mode; in kernel mode, access to user pages that SMAP forbids.
    pub const AC: u64 = 1 << 18;
    /// A flag that can be changed: the CPU has CPUID.
    pub const ID: u64 = 1 << 21;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_register_has_two_names_and_a_place_of_its_own() {
        let mut regs = Regs::default();
        for (n, register) in (1..).zip(Register::ALL) {
            assert_eq!(Register::named(register.name()), Some(register));
            assert_eq!(Register::named(register.processor_name()), Some(register));
            assert_eq!(register.of(&regs), 0, "{register:?}");
            *register.slot(&mut regs) = n;
            assert_eq!(register.of(&regs), n);
        }
    }
}
