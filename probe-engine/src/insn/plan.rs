//! The decision, made when a probe is armed, of how the guest gets past the probed instruction.

use super::decode::{decode, text};
use super::emulate::Emulation;
use crate::addr::Gva;
use iced_x86::{CpuidFeature, Instruction, Mnemonic, Register};

/// How the guest gets past a probed instruction whose first byte stays an `int3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// The host does what the instruction would have done.
    Emulate(Emulation),
}

/// Why an instruction cannot be probed, as a sentence for the user who asked for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The bytes are no instruction, or end before it does.
    #[error("the bytes at {at} are no instruction")]
    Undecodable {
        /// The address asked for.
        at: Gva,
    },
    /// `int3` itself: padding, or a breakpoint of the guest's own.
    #[error("there is an int3 at {at} already, which is padding or the guest's own breakpoint")]
    Breakpoint {
        /// The address asked for.
        at: Gva,
    },
    /// It stands in the shadow of its predecessor: the CPU delivers no interrupt between the two, and a trap
    /// there would open the gap.
    #[error("`{instruction}` must follow `{previous}` with nothing between them")]
    Shadow {
        /// The instruction asked for.
        instruction: String,
        /// The one before it.
        previous: String,
    },
    /// Loads SS, which holds off interrupts and breakpoints for one more instruction.
    #[error("`{0}` loads the stack segment and holds off traps until after the next instruction")]
    StackSegment(String),
    /// Loads CS.
    #[error("`{0}` is a far branch")]
    FarBranch(String),
    /// Leaves the kernel or an exception handler.
    #[error("`{0}` returns from the kernel or from an exception")]
    SystemReturn(String),
    /// `ud0`, `ud1`, `ud2`: the guest's handler looks its own address up.
    #[error("`{0}` is meant to fault: it marks a BUG or WARN")]
    Bug(String),
    /// An instruction of VMX or SVM: the host answers it by its address.
    #[error("`{0}` belongs to virtualization, and the hypervisor answers it where it stands")]
    Virtualization(String),
    /// Nothing forbids it; the host has no way past it so far.
    #[error("not covered yet: `{0}`")]
    NotCovered(String),
}

/// Decides how to get past the instruction at `at`, of which `bytes` are the guest's own (without any probe's
/// `int3`). `previous` is the instruction before it, where there is one in the same symbol: see
/// [`instruction_at`](super::decode::instruction_at).
///
/// What the guest knows about the address (exception table, jump labels, blacklist) is not looked at here.
///
/// # Errors
/// [`Refusal`], the reason to give to whoever asked for the probe.
pub fn plan(bytes: &[u8], at: Gva, previous: Option<&Instruction>) -> Result<Plan, Refusal> {
    let instruction = decode(bytes, at).ok_or(Refusal::Undecodable { at })?;
    if let Some(refusal) = never(&instruction, previous) {
        return Err(refusal);
    }
    match Emulation::new(&instruction) {
        Some(emulation) => Ok(Plan::Emulate(emulation)),
        None => Err(Refusal::NotCovered(text(&instruction))),
    }
}

/// Where a probe on a function whose first bytes are `bytes`, at `at`, belongs: behind the ENDBR, which an
/// indirect call has to find in place, or behind the nop that Linux writes over it once it has shown that no
/// such call comes (`gen_endbr_poison` in arch/x86/include/asm/ibt.h; the second form since 6.15).
#[must_use]
pub fn skip_endbr(bytes: &[u8], at: Gva) -> Gva {
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    const ENDBR32: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfb];
    const SEALED: [u8; 4] = [0x66, 0x0f, 0x1f, 0x00];
    const SEALED_UDB: [u8; 4] = [0x0f, 0x1f, 0x40, 0xd6];
    match bytes.first_chunk() {
        Some(first) if [ENDBR64, ENDBR32, SEALED, SEALED_UDB].contains(first) => at.add(4),
        _ => at,
    }
}

/// The reason for which `instruction` may not be probed however it would be passed.
fn never(instruction: &Instruction, previous: Option<&Instruction>) -> Option<Refusal> {
    if let Some(previous) = previous
        && (previous.mnemonic() == Mnemonic::Sti || loads_ss(previous))
    {
        return Some(Refusal::Shadow { instruction: text(instruction), previous: text(previous) });
    }
    let at = Gva(instruction.ip());
    let is_far = instruction.is_call_far()
        || instruction.is_call_far_indirect()
        || instruction.is_jmp_far()
        || instruction.is_jmp_far_indirect();
    let is_virtualization =
        instruction.cpuid_features().iter().any(|f| matches!(f, CpuidFeature::VMX | CpuidFeature::SVM));
    match instruction.mnemonic() {
        Mnemonic::Int3 => Some(Refusal::Breakpoint { at }),
        Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2 => Some(Refusal::Bug(text(instruction))),
        Mnemonic::Retf => Some(Refusal::FarBranch(text(instruction))),
        Mnemonic::Iretq
        | Mnemonic::Iretd
        | Mnemonic::Iret
        | Mnemonic::Sysretq
        | Mnemonic::Sysret
        | Mnemonic::Sysexitq
        | Mnemonic::Sysexit
        | Mnemonic::Eretu
        | Mnemonic::Erets => Some(Refusal::SystemReturn(text(instruction))),
        _ if is_far => Some(Refusal::FarBranch(text(instruction))),
        _ if loads_ss(instruction) => Some(Refusal::StackSegment(text(instruction))),
        _ if is_virtualization => Some(Refusal::Virtualization(text(instruction))),
        _ => None,
    }
}

/// `mov ss` and (before 64-bit mode) `pop ss` hold off interrupts for one instruction (SDM volume 3, 6.8.3).
fn loads_ss(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Mov | Mnemonic::Pop)
        && instruction.op0_register() == Register::SS
}
