//! The decision, made when a probe is armed, of how the guest gets past the probed instruction.

use super::decode::{decode, text};
use super::emulate::Emulation;
use crate::addr::Gva;
use iced_x86::{CpuidFeature, Decoder, DecoderOptions, Instruction, Mnemonic, Register};

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
        Some(emulation) if !differs_between_vendors(bytes, &instruction) => Ok(Plan::Emulate(emulation)),
        _ => Err(Refusal::NotCovered(text(&instruction))),
    }
}

/// An operand-size prefix on a near branch means 16 bits to AMD's CPUs and nothing to Intel's.
fn differs_between_vendors(bytes: &[u8], instruction: &Instruction) -> bool {
    let mut decoder = Decoder::with_ip(64, bytes, instruction.ip(), DecoderOptions::AMD);
    decoder.decode().code() != instruction.code()
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

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Gva = Gva(0xffff_ffff_8100_0000);

    fn refusal(bytes: &[u8]) -> String {
        plan(bytes, AT, None).unwrap_err().to_string()
    }

    #[test]
    fn refusals_name_the_instruction_and_the_reason() {
        let bug = "is meant to fault: it marks a BUG or WARN";
        let system = "returns from the kernel or from an exception";
        let virtualization = "belongs to virtualization, and the hypervisor answers it where it stands";
        let cases: [(&[u8], String); 16] = [
            (&[], "the bytes at 0xffffffff81000000 are no instruction".into()),
            (&[0x48, 0x89], "the bytes at 0xffffffff81000000 are no instruction".into()),
            (&[0x06], "the bytes at 0xffffffff81000000 are no instruction".into()),
            (
                &[0xcc],
                "there is an int3 at 0xffffffff81000000 already, which is padding or the guest's own breakpoint"
                    .into(),
            ),
            (
                &[0x8e, 0xd0],
                "`mov ss, ax` loads the stack segment and holds off traps until after the next instruction"
                    .into(),
            ),
            (&[0x48, 0xcb], "`data64 ret far` is a far branch".into()),
            (&[0xff, 0x28], "`jmp far fword ptr [rax]` is a far branch".into()),
            (&[0x48, 0xcf], format!("`iretq` {system}")),
            (&[0x48, 0x0f, 0x07], format!("`sysretq` {system}")),
            (&[0x0f, 0x0b], format!("`ud2` {bug}")),
            (&[0x0f, 0xb9, 0x40, 0x10], format!("`ud1 eax, [rax+0x10]` {bug}")),
            (&[0x0f, 0x01, 0xc1], format!("`vmcall` {virtualization}")),
            (&[0x0f, 0x01, 0xd9], format!("`vmmcall` {virtualization}")),
            (&[0x0f, 0x01, 0xd8], format!("`vmrun rax` {virtualization}")),
            (&[0xfb], "not covered yet: `sti`".into()),
            (&[0x9c], "not covered yet: `pushfq`".into()),
        ];
        for (bytes, expected) in cases {
            assert_eq!(refusal(bytes), expected, "{bytes:02x?}");
        }
    }

    #[test]
    fn what_looks_like_a_covered_form_and_is_not() {
        let cases: [&[u8]; 21] = [
            &[0xf0, 0x48, 0x01, 0x03], // lock add [rbx], rax
            &[0x48, 0x87, 0x03],       // xchg [rbx], rax locks by itself
            &[0x66, 0x50],             // push ax
            &[0x66, 0x58],             // pop ax
            &[0x66, 0x6a, 0x01],       // push 1 as a word
            &[0x66, 0xc9],             // leave with bp
            &[0x66, 0xc3],             // ret to a word
            &[0x66, 0x74, 0x00],       // je with an operand-size prefix
            &[0x0f, 0xa0],             // push fs
            &[0x0f, 0xa1],             // pop fs
            &[0x8f, 0x03],             // pop [rbx]
            &[0x8c, 0xd8],             // mov eax, ds
            &[0x8e, 0xd8],             // mov ds, eax
            &[0x0f, 0x20, 0xd8],       // mov rax, cr3
            &[0x0f, 0x23, 0xf8],       // mov dr7, rax
            &[0xd3, 0xe0],             // shl eax, cl
            &[0x66, 0x0f, 0xc8],       // bswap ax, which is undefined
            &[0xe3, 0x00],             // jrcxz
            &[0xe1, 0x00],             // loope
            &[0x48, 0x11, 0xd8],       // adc rax, rbx
            &[0xf3, 0x48, 0xab],       // rep stosq
        ];
        for bytes in cases {
            let refusal = plan(bytes, AT, None);
            assert!(matches!(refusal, Err(Refusal::NotCovered(_))), "{bytes:02x?}: {refusal:?}");
        }
    }

    #[test]
    fn the_shadow_of_sti_and_of_mov_ss_is_refused() {
        let nop = [0x90];
        for (previous, is_shadow) in
            [(&[0xfb][..], true), (&[0x8e, 0xd0], true), (&[0xfa], false), (&[0x8e, 0xd8], false)]
        {
            let previous = decode(previous, AT.offset(-2)).unwrap();
            let plan = plan(&nop, AT, Some(&previous));
            assert_eq!(matches!(plan, Err(Refusal::Shadow { .. })), is_shadow, "{}", text(&previous));
        }
    }

    #[test]
    fn a_probe_on_a_function_goes_behind_its_endbr() {
        let cases: [(&[u8], u64); 7] = [
            (&[0xf3, 0x0f, 0x1e, 0xfa, 0x90], 4),
            (&[0xf3, 0x0f, 0x1e, 0xfb], 4),
            (&[0x66, 0x0f, 0x1f, 0x00, 0x90], 4),
            (&[0x0f, 0x1f, 0x40, 0xd6, 0x90], 4),
            (&[0x0f, 0x1f, 0x44, 0x00, 0x00], 0),
            (&[0xf3, 0x0f, 0x1e], 0),
            (&[], 0),
        ];
        for (bytes, skipped) in cases {
            assert_eq!(skip_endbr(bytes, AT), AT.add(skipped), "{bytes:02x?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..20), at: u64) {
            let _ = plan(&bytes, Gva(at), None);
            let _ = super::super::decode::instruction_at(&bytes, Gva(at), Gva(at).add(bytes.len() as u64 / 2));
        }
    }
}
