//! The decision, made when a probe is armed, of how the guest gets past the probed instruction.

use super::copy::OutOfLine;
use super::decode::{decode, text};
use super::emulate::Emulation;
use crate::addr::Gva;
use iced_x86::{CpuidFeature, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

/// How the guest gets past a probed instruction whose first byte stays an `int3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepPlan {
    /// The host does what the instruction would have done.
    Emulate(Emulation),
    /// The guest runs a copy of it that lies elsewhere.
    OutOfLine(OutOfLine),
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
    /// An instruction of VMX, SVM or an encrypted guest: the host answers it by its address.
    #[error("`{0}` belongs to virtualization, and the hypervisor answers it where it stands")]
    Virtualization(String),
    /// A software interrupt or a system call: it leaves its own address where the handler finds it.
    #[error("`{0}` enters the kernel, and its handler gets the address of the instruction")]
    SystemCall(String),
    /// Begins, ends or aborts a transaction.
    #[error("`{0}` belongs to a transaction, which a trap aborts")]
    Transaction(String),
    /// Exchanges the GS base of the kernel and that of the process.
    #[error("`{0}` belongs to entry code, where the guest cannot take an exception")]
    SwapGs(String),
    /// Loads the IDT register.
    #[error("`{0}` replaces the interrupt table, through which breakpoints may come")]
    InterruptTable(String),
    /// Loads CR0, CR3 or CR4.
    #[error("`{0}` changes paging, and the copy that it runs from may not be mapped afterwards")]
    Paging(String),
    /// CPUs of different makers decode it differently.
    #[error("`{0}` means different things to different CPUs")]
    Ambiguous(String),
    /// A branch in a form that is not emulated: in a copy it would go, or return, elsewhere.
    #[error("`{0}` is a branch of a form that is not emulated, and a copy would go elsewhere")]
    Branch(String),
    /// An operand that is relative to the low half of RIP.
    #[error("`{0}` has an operand that a copy elsewhere cannot address")]
    Operand(String),
    /// It may fault, and the guest looks the address of the fault up.
    #[error("`{0}` may fault and be resumed elsewhere (exception table), so it cannot run from a copy")]
    Fixup(String),
}

/// Decides how to get past the instruction at `at`, of which `bytes` are the guest's own (without any probe's
/// `int3`). `previous` is the instruction before it, where there is one in the same symbol: see
/// [`instruction_at`](super::decode::instruction_at). `has_fixup` says that the guest's exception table has an
/// entry for it: then it never runs from a copy, where the guest could not find the entry.
///
/// What else the guest knows about the address (jump labels, blacklist) is not looked at here.
///
/// # Errors
/// [`Refusal`], the reason to give to whoever asked for the probe.
pub fn plan(
    bytes: &[u8],
    at: Gva,
    previous: Option<&Instruction>,
    has_fixup: bool,
) -> Result<StepPlan, Refusal> {
    let instruction = allowed(bytes, at, previous)?;
    match Emulation::new(&instruction) {
        Some(emulation) => Ok(StepPlan::Emulate(emulation)),
        None => copy(bytes, &instruction, has_fixup).map(StepPlan::OutOfLine),
    }
}

/// As [`plan`], but the instruction is to run from a copy even if it could be emulated: it accesses a device, which
/// only the guest's own CPU can.
///
/// # Errors
/// [`Refusal`] when it cannot.
pub fn plan_copy(
    bytes: &[u8],
    at: Gva,
    previous: Option<&Instruction>,
    has_fixup: bool,
) -> Result<OutOfLine, Refusal> {
    copy(bytes, &allowed(bytes, at, previous)?, has_fixup)
}

/// The instruction at `at`, if it may be probed however it is passed.
fn allowed(bytes: &[u8], at: Gva, previous: Option<&Instruction>) -> Result<Instruction, Refusal> {
    let instruction = decode(bytes, at).ok_or(Refusal::Undecodable { at })?;
    if let Some(refusal) = never(&instruction, previous) {
        return Err(refusal);
    }
    if differs_between_vendors(bytes, &instruction) {
        return Err(Refusal::Ambiguous(text(&instruction)));
    }
    Ok(instruction)
}

fn copy(bytes: &[u8], instruction: &Instruction, has_fixup: bool) -> Result<OutOfLine, Refusal> {
    match never_from_a_copy(instruction, has_fixup) {
        Some(refusal) => Err(refusal),
        None => {
            OutOfLine::new(bytes, Gva(instruction.ip())).ok_or_else(|| Refusal::Operand(text(instruction)))
        }
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
    let is_virtualization = instruction.cpuid_features().iter().any(|feature| {
        matches!(feature, CpuidFeature::VMX | CpuidFeature::SVM | CpuidFeature::SEV_ES | CpuidFeature::TDX)
    });
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
        | Mnemonic::Erets
        | Mnemonic::Uiret
        | Mnemonic::Rsm => Some(Refusal::SystemReturn(text(instruction))),
        Mnemonic::Int
        | Mnemonic::Int1
        | Mnemonic::Into
        | Mnemonic::Bound
        | Mnemonic::Syscall
        | Mnemonic::Sysenter => Some(Refusal::SystemCall(text(instruction))),
        Mnemonic::Xbegin | Mnemonic::Xabort | Mnemonic::Xend => Some(Refusal::Transaction(text(instruction))),
        Mnemonic::Swapgs => Some(Refusal::SwapGs(text(instruction))),
        Mnemonic::Lidt => Some(Refusal::InterruptTable(text(instruction))),
        _ if is_far => Some(Refusal::FarBranch(text(instruction))),
        _ if loads_ss(instruction) => Some(Refusal::StackSegment(text(instruction))),
        _ if is_virtualization => Some(Refusal::Virtualization(text(instruction))),
        _ => None,
    }
}

/// The reason for which `instruction`, which is not emulated, may not run from a copy either.
///
/// What is left may: string instructions, which resume at the copy after an interrupt; `hlt` and `mwait`, which
/// end behind it; and all that exits to the hypervisor, which goes by the RIP that it finds.
fn never_from_a_copy(instruction: &Instruction, has_fixup: bool) -> Option<Refusal> {
    let loads_control = instruction.mnemonic() == Mnemonic::Mov
        && matches!(instruction.op0_register(), Register::CR0 | Register::CR3 | Register::CR4);
    if has_fixup {
        Some(Refusal::Fixup(text(instruction)))
    } else if instruction.flow_control() != FlowControl::Next {
        Some(Refusal::Branch(text(instruction)))
    } else if loads_control {
        Some(Refusal::Paging(text(instruction)))
    } else {
        None
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
        plan(bytes, AT, None, false).unwrap_err().to_string()
    }

    #[test]
    fn refusals_name_the_instruction_and_the_reason() {
        let bug = "is meant to fault: it marks a BUG or WARN";
        let system = "returns from the kernel or from an exception";
        let virtualization = "belongs to virtualization, and the hypervisor answers it where it stands";
        let call = "enters the kernel, and its handler gets the address of the instruction";
        let transaction = "belongs to a transaction, which a trap aborts";
        let paging = "changes paging, and the copy that it runs from may not be mapped afterwards";
        let cases: [(&[u8], String); 35] = [
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
            (&[0xf3, 0x0f, 0x01, 0xd9], format!("`vmgexit` {virtualization}")),
            (&[0x66, 0x0f, 0x01, 0xcc], format!("`tdcall` {virtualization}")),
            (&[0x0f, 0x01, 0xf8], "`swapgs` belongs to entry code, where the guest cannot take an exception".into()),
            (
                &[0x0f, 0x01, 0x18],
                "`lidt [rax]` replaces the interrupt table, through which breakpoints may come".into(),
            ),
            (&[0xcd, 0x80], format!("`int 0x80` {call}")),
            (&[0xcd, 0x03], format!("`int 3` {call}")),
            (&[0xf1], format!("`int1` {call}")),
            (&[0x0f, 0x05], format!("`syscall` {call}")),
            (&[0x0f, 0x34], format!("`sysenter` {call}")),
            (&[0xc7, 0xf8, 0x10, 0, 0, 0], format!("`xbegin 0xffffffff81000016` {transaction}")),
            (&[0xc6, 0xf8, 0x01], format!("`xabort 1` {transaction}")),
            (&[0x0f, 0x01, 0xd5], format!("`xend` {transaction}")),
            (&[0x0f, 0xaa], format!("`rsm` {system}")),
            (&[0x0f, 0x22, 0xd8], format!("`mov cr3, rax` {paging}")),
            (&[0x0f, 0x22, 0xc0], format!("`mov cr0, rax` {paging}")),
            (&[0x0f, 0x22, 0xe0], format!("`mov cr4, rax` {paging}")),
            (&[0x66, 0x74, 0x00, 0x90, 0x90], "`je short 0xffffffff81000003` means different things to different CPUs".into()),
            (
                &[0x67, 0x48, 0x87, 0x05, 0, 0, 0, 0],
                "`xchg [0x81000008], rax` has an operand that a copy elsewhere cannot address".into(),
            ),
            // `into`, `bound` and `pop ss` are no instructions in 64-bit mode.
            (&[0xce], "the bytes at 0xffffffff81000000 are no instruction".into()),
            (&[0x62, 0x00], "the bytes at 0xffffffff81000000 are no instruction".into()),
            (&[0x17], "the bytes at 0xffffffff81000000 are no instruction".into()),
        ];
        for (bytes, expected) in cases {
            assert_eq!(refusal(bytes), expected, "{bytes:02x?}");
        }
    }

    #[test]
    fn what_is_not_emulated_runs_from_a_copy_unless_the_guest_looks_its_address_up() {
        let cases: [&[u8]; 20] = [
            &[0xf0, 0x48, 0x01, 0x03], // lock add [rbx], rax
            &[0x48, 0x87, 0x03],       // xchg [rbx], rax locks by itself
            &[0x66, 0x50],             // push ax
            &[0x66, 0x58],             // pop ax
            &[0x66, 0x6a, 0x01],       // push 1 as a word
            &[0x66, 0xc9],             // leave with bp
            &[0x0f, 0xa0],             // push fs
            &[0x0f, 0xa1],             // pop fs
            &[0x8f, 0x03],             // pop [rbx]
            &[0x8c, 0xd8],             // mov eax, ds
            &[0x8e, 0xd8],             // mov ds, eax
            &[0x0f, 0x20, 0xd8],       // mov rax, cr3
            &[0x0f, 0x23, 0xf8],       // mov dr7, rax
            &[0x66, 0x0f, 0xc8],       // bswap ax, which is undefined
            &[0xf3, 0x48, 0xab],       // rep stosq
            &[0x48, 0x0f, 0xab, 0x03], // bts [rbx], rax reaches far from rbx
            &[0x48, 0xf7, 0x33],       // div [rbx]
            &[0x0f, 0xa5, 0xc3],       // shld ebx, eax, cl
            &[0xf4],                   // hlt
            &[0x0f, 0x01, 0xca],       // clac
        ];
        for bytes in cases {
            let copied = plan(bytes, AT, None, false);
            assert!(matches!(copied, Ok(StepPlan::OutOfLine(_))), "{bytes:02x?}: {copied:?}");
            let refused = plan(bytes, AT, None, true);
            assert!(matches!(refused, Err(Refusal::Fixup(_))), "{bytes:02x?}: {refused:?}");
        }
        let load = plan(&[0x48, 0x8b, 0x03], AT, None, true);
        assert!(matches!(load, Ok(StepPlan::Emulate(_))), "{load:?}");
    }

    #[test]
    fn the_shadow_of_sti_and_of_mov_ss_is_refused() {
        let nop = [0x90];
        for (previous, is_shadow) in
            [(&[0xfb][..], true), (&[0x8e, 0xd0], true), (&[0xfa], false), (&[0x8e, 0xd8], false)]
        {
            let previous = decode(previous, AT.offset(-2)).unwrap();
            let plan = plan(&nop, AT, Some(&previous), false);
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

    #[test]
    fn what_accesses_a_device_can_run_from_a_copy_instead() {
        let load = [0x8b, 0x07]; // mov eax, [rdi]
        assert!(matches!(plan(&load, AT, None, false), Ok(StepPlan::Emulate(_))));
        assert_eq!(plan_copy(&load, AT, None, false).map(|copy| copy.next()), Ok(AT.add(2)));
        for never in [&[0xff, 0x17][..], &[0xc3], &[0x0f, 0x0b]] {
            assert!(plan_copy(never, AT, None, false).is_err(), "{never:02x?}");
        }
        assert!(plan_copy(&load, AT, None, true).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..20), at: u64) {
            let _ = plan(&bytes, Gva(at), None, at & 1 != 0);
            let _ = super::super::decode::instruction_at(&bytes, Gva(at), Gva(at).add(bytes.len() as u64 / 2));
        }
    }
}
