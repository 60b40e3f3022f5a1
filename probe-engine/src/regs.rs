//! The registers of one vCPU, as a handler and the emulator see them.

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
