//! The code at which a task waits that is held.
//!
//! It is entered with the address on top of the stack at which the task goes on, and leaves all registers and flags as they are.
//! Interrupts come as they did where the task was: the CPU serves them, and a task that may be preempted there may be here. It
//! waits for a byte in the same slot, which the guest only reads, and then traps.

use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::regs::Regs;
use crate::virt_memory::VirtMemory;

/// `pushfq; 1: pause; test byte [rip + OPENED], 1; jz 1b; popfq; int3`, and the byte.
pub const CODE: [u8; 15] =
    [0x9c, 0xf3, 0x90, 0xf6, 0x05, 0x04, 0x00, 0x00, 0x00, 0x01, 0x74, 0xf5, 0x9d, 0xcc, 0x00];
/// Where the trap is.
pub const TRAP: u64 = 13;
/// Where the byte is: 1 once the task may go on.
pub const OPENED: u64 = 14;

/// The registers with which a task goes on that is in the code at `entry`, where `regs` are those of the moment. `None` where it is not there.
///
/// # Errors
/// The [`PageFault`] of its stack.
pub fn past<M: PhysMemory + ?Sized>(
    regs: &Regs,
    entry: Gva,
    memory: &VirtMemory<'_, M>,
) -> Result<Option<Regs>, PageFault> {
    let Some(offset) = Gva(regs.rip).offset_from(entry).filter(|offset| *offset <= TRAP) else {
        return Ok(None);
    };
    // The flags lie above the address meanwhile.
    let flags = if (1..TRAP).contains(&offset) { 8 } else { 0 };
    let at = regs.rsp.wrapping_add(flags);
    let rip = memory.read_u64(Gva(at))?;
    Ok(Some(Regs { rip, rsp: at.wrapping_add(8), ..*regs }))
}

/// Where the code begins that `at` is in, if there is such, known by its bytes.
pub fn around<M: PhysMemory + ?Sized>(at: Gva, memory: &VirtMemory<'_, M>) -> Option<Gva> {
    const LEN: usize = OPENED as usize;
    let mut bytes = [0; 2 * LEN - 1];
    let start = Gva(at.0.wrapping_sub(TRAP));
    memory.read(start, &mut bytes).ok()?;
    let found = bytes.windows(LEN).position(|window| CODE.starts_with(window))?;
    Some(start.add(found as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;
    use iced_x86::{Code, Decoder, DecoderOptions, Instruction};

    #[test]
    fn the_code_is_what_is_said_of_it() {
        const AT: u64 = 0xffff_ffff_c000_0020;
        let mut decoder = Decoder::with_ip(64, &CODE[..OPENED as usize], AT, DecoderOptions::NONE);
        let code: Vec<Instruction> = decoder.iter().collect();
        let codes: Vec<Code> = code.iter().map(Instruction::code).collect();
        let expected =
            [Code::Pushfq, Code::Pause, Code::Test_rm8_imm8, Code::Je_rel8_64, Code::Popfq, Code::Int3];
        assert_eq!(codes, expected);
        assert_eq!(code[2].ip_rel_memory_address(), AT + OPENED);
        assert_eq!(code[2].immediate8(), 1);
        assert_eq!(code[3].near_branch_target(), code[1].ip());
        assert_eq!(code[5].ip(), AT + TRAP);
        assert_eq!(CODE[OPENED as usize], 0);
    }

    #[test]
    fn the_code_is_known_by_its_bytes() {
        let ram = Ram::new();
        let entry = Ram::BASE.add(0x100);
        ram.put(entry, &CODE);
        let around = |offset| around(entry.offset(offset), &ram.memory());
        assert!((0..=TRAP as i64).all(|offset| around(offset) == Some(entry)));
        assert_eq!([-1, OPENED as i64, -0x200].map(around), [None; 3]);
    }
}
