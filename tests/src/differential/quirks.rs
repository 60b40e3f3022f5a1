//! What QEMU's CPU, as of version 10.0, does and no other.

use super::guest::{BP, End, FS_BASE, GP, GS_BASE, PF, SS, UD};
use super::start::Case;
use iced_x86::{Code, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register, UsedMemory};
use probe_engine::regs::Regs;

/// What there is to be said of what QEMU's CPU left behind an instruction.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Quirk {
    /// It left what every CPU leaves.
    None,
    /// The end has been made what another CPU leaves.
    Corrected(&'static str),
    /// There is nothing to compare with.
    Incomparable(&'static str),
}

/// Makes of what QEMU's CPU left behind an instruction what a CPU leaves. Where two exceptions are right, it is that of
/// `ours`.
pub(super) fn correct(end: &mut End, ours: &End, case: &Case) -> Quirk {
    const WRITE: u64 = 1 << 1;
    let instruction = &case.instruction;
    let mut factory = InstructionInfoFactory::new();
    let memory = factory.info(instruction).used_memory();
    if end.vector == GP && end.code == 0 {
        let is_bad = |used: &&UsedMemory| !is_canonical(used, &case.start.regs);
        let (stack, others): (Vec<&UsedMemory>, Vec<_>) =
            memory.iter().filter(is_bad).partition(|used| is_stack(used));
        if !stack.is_empty() && (others.is_empty() || ours.vector == SS) {
            end.vector = SS;
            return Quirk::Corrected("a bad stack address raises #GP");
        }
    }
    if is_whole_turn(case) {
        return Quirk::Incomparable("rcl and rcr by a whole turn change the operand");
    }
    let modifies = memory.iter().any(|used| used.access() == OpAccess::ReadWrite);
    if end.vector == PF && end.code & WRITE == 0 && modifies {
        // The load of a read-modify-write needs write access (SDM volume 3, 4.7).
        end.code |= WRITE;
        return Quirk::Corrected("a read-modify-write faults as a load");
    }
    if end.vector == BP && instruction.code() == Code::Retnq_imm16 && instruction.immediate16() >> 15 != 0 {
        // It takes the operand for a signed number.
        end.regs.rsp = end.regs.rsp.wrapping_add(0x1_0000);
        return Quirk::Corrected("ret with an operand above 32767 goes back");
    }
    if end.vector == UD && instruction.mnemonic() == Mnemonic::Test {
        return Quirk::Incomparable("the second encoding of test is none");
    }
    Quirk::None
}

/// Whether an access goes through SS. 64-bit mode ignores the prefixes of all segments but FS and GS: otherwise the base
/// decides (SDM volume 1, 3.7.4).
fn is_stack(used: &UsedMemory) -> bool {
    !matches!(used.segment(), Register::FS | Register::GS)
        && matches!(used.base().full_register(), Register::RSP | Register::RBP)
}

/// Whether the guest, whose addresses have 48 bits, could have memory where `used` is when `regs` are what they are. What
/// cannot be told is taken for an address like any other.
fn is_canonical(used: &UsedMemory, regs: &Regs) -> bool {
    let value = |register: Register, _, _| match register {
        Register::FS => Some(FS_BASE),
        Register::GS => Some(GS_BASE),
        Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
        register => Some(general(register, regs)? & u64::MAX >> (64 - 8 * register.size())),
    };
    let Some(at) = used.virtual_address(0, value) else { return true };
    let last = at.wrapping_add(used.memory_size().size().max(1) as u64 - 1);
    [at, last].into_iter().all(|at| (at as i64) << 16 >> 16 == at as i64)
}

fn general(register: Register, r: &Regs) -> Option<u64> {
    let all = [
        r.rax, r.rcx, r.rdx, r.rbx, r.rsp, r.rbp, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
        r.r14, r.r15,
    ];
    let number = (register.full_register() as usize).checked_sub(Register::RAX as usize)?;
    all.get(number).copied()
}

/// Whether it rotates an operand of 8 or 16 bits through the carry to where it was.
fn is_whole_turn(case: &Case) -> bool {
    let instruction = &case.instruction;
    let size = match instruction.op0_kind() {
        OpKind::Memory => instruction.memory_size().size(),
        _ => instruction.op0_register().size(),
    };
    let count = instruction.try_immediate(1).unwrap_or(case.start.regs.rcx) as usize & 0x1f;
    matches!(instruction.mnemonic(), Mnemonic::Rcl | Mnemonic::Rcr)
        && count != 0
        && count.is_multiple_of(8 * size + 1)
}

#[cfg(test)]
mod tests {
    use super::super::guest::{FX, Start, WINDOW};
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::insn::decode::decode;

    const BAD: u64 = 0x0123_4567_89ab_c000;
    const GOOD: u64 = 0xffff_ffff_8800_2000;

    /// What becomes of a #GP(0) when all registers but RSP and RBP hold `others`, these two `stack`, and the emulation
    /// raises `ours`.
    fn corrected(bytes: &[u8], stack: u64, others: u64, ours: u64) -> u64 {
        let regs = Regs {
            rsp: stack,
            rbp: stack,
            rax: others,
            rbx: others,
            rsi: others,
            rdi: others,
            ..Regs::default()
        };
        let instruction = decode(bytes, Gva(GOOD)).unwrap();
        let start = Start { regs, fx: [0; FX], window: [0; WINDOW] };
        let case = Case { bytes: bytes.to_vec(), instruction, start };
        let mut end = End { regs, vector: GP, code: 0, cr2: 0, fx: [0; FX], window: [0; WINDOW] };
        let ours = End { vector: ours, ..end.clone() };
        let _ = correct(&mut end, &ours, &case);
        end.vector
    }

    #[test]
    fn a_general_protection_fault_is_one_of_the_stack_only_where_the_stack_is_accessed() {
        let push = [0x50];
        let store_by_rbp = [0x48, 0x89, 0x45, 0x08];
        let load_by_rbx = [0x48, 0x8b, 0x03];
        let load_by_rbp_of_gs = [0x65, 0x48, 0x8b, 0x45, 0x00];
        let push_from_rbx = [0xff, 0x33];
        for (bytes, stack, others, ours, expected) in [
            (&push[..], BAD, GOOD, SS, SS),
            // The emulation is not asked where only one is right.
            (&push, BAD, GOOD, GP, SS),
            (&store_by_rbp, BAD, GOOD, SS, SS),
            (&store_by_rbp, GOOD, BAD, SS, GP),
            (&load_by_rbx, GOOD, BAD, SS, GP),
            (&load_by_rbx, BAD, BAD, SS, GP),
            (&load_by_rbp_of_gs, BAD, GOOD, SS, GP),
            (&push_from_rbx, GOOD, BAD, SS, GP),
            (&push_from_rbx, BAD, BAD, SS, SS),
            (&push_from_rbx, BAD, BAD, GP, GP),
        ] {
            assert_eq!(corrected(bytes, stack, others, ours), expected, "{bytes:02x?} {stack:x} {others:x}");
        }
    }
}
