//! The code at which a task waits that is held.
//!
//! It is entered with the address on top of the stack at which the task goes on, and leaves all registers and flags as they are.
//! Interrupts come as they did where the task was: the CPU serves them, and a task that may be preempted there may be here. It
//! waits for a byte in the same slot, which the guest only reads, and then traps.
//!
//! One [form](Form) calls the guest's own scheduler while it waits. `preempt_schedule` (kernel/sched/core.c) does what an interrupt
//! does that preempts a task, and nothing where interrupts or preemption are held off; the task is as it was afterwards, but for the
//! registers that any function may change.

use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::regs::Regs;
use crate::virt_memory::VirtMemory;

/// The kernel's function that a waiting task calls.
pub const SCHEDULE: &str = "preempt_schedule";

/// How the code waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// It only looks at its byte.
    Spins,
    /// It has the CPU run other tasks meanwhile.
    Yields,
}

/// The code of one form.
struct Layout {
    code: &'static [u8],
    /// Where each word has been pushed or popped, in bytes from the entry.
    pushed: &'static [u64],
    popped: &'static [u64],
    /// Whether the first word is RBP, which points to it behind [`FRAME`].
    has_frame: bool,
    /// Where the distance of a call is.
    call: Option<usize>,
}

/// `pushfq; 1: pause; test byte [rip + opened], 1; jz 1b; popfq; int3`, and the byte.
const SPINS: Layout = Layout {
    code: &[0x9c, 0xf3, 0x90, 0xf6, 0x05, 0x04, 0x00, 0x00, 0x00, 0x01, 0x74, 0xf5, 0x9d, 0xcc, 0x00],
    pushed: &[1],
    popped: &[13],
    has_frame: false,
    call: None,
};

/// A frame of its own, by which the guest's unwinder finds its way; the registers that a function may change; `1: call SCHEDULE; mov ecx, 256;
/// 2: pause; test byte [rip + opened], 1; jnz 3f; dec ecx; jnz 2b; jmp 1b; 3:` all of them back; `int3`, and the byte.
const YIELDS: Layout = Layout {
    code: &[
        0x55, 0x48, 0x89, 0xe5, 0x9c, 0x50, 0x51, 0x52, 0x56, 0x57, 0x41, 0x50, 0x41, 0x51, 0x41, 0x52, 0x41,
        0x53, 0xe8, 0x00, 0x00, 0x00, 0x00, 0xb9, 0x00, 0x01, 0x00, 0x00, 0xf3, 0x90, 0xf6, 0x05, 0x18, 0x00,
        0x00, 0x00, 0x01, 0x75, 0x06, 0xff, 0xc9, 0x75, 0xf1, 0xeb, 0xe5, 0x41, 0x5b, 0x41, 0x5a, 0x41, 0x59,
        0x41, 0x58, 0x5f, 0x5e, 0x5a, 0x59, 0x58, 0x9d, 0x5d, 0xcc, 0x00,
    ],
    pushed: &[1, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18],
    popped: &[47, 49, 51, 53, 54, 55, 56, 57, 58, 59, 60],
    has_frame: true,
    call: Some(19),
};
/// Where RBP points to the frame.
const FRAME: u64 = 4;
/// Where it points there no more.
const NO_FRAME: u64 = 60;

impl Form {
    const ALL: [Self; 2] = [Self::Spins, Self::Yields];

    const fn layout(self) -> &'static Layout {
        match self {
            Self::Spins => &SPINS,
            Self::Yields => &YIELDS,
        }
    }

    /// How many bytes the code takes, with its byte.
    #[must_use]
    pub const fn size(self) -> usize {
        self.layout().code.len()
    }

    /// Where the byte is, in bytes from the entry: 1 once the task may go on.
    #[must_use]
    pub const fn opened(self) -> u64 {
        self.size() as u64 - 1
    }

    /// Where the trap is.
    #[must_use]
    pub const fn trap(self) -> u64 {
        self.opened() - 1
    }

    /// The code at `entry`, with the byte, where the kernel's [`SCHEDULE`] is at `schedule`. `None` where the code needs that and does not reach
    /// it.
    #[must_use]
    pub fn bytes(self, entry: Gva, schedule: Option<Gva>) -> Option<Vec<u8>> {
        let Layout { code, call, .. } = self.layout();
        let mut bytes = code.to_vec();
        if let Some(at) = *call {
            let next = entry.add(at as u64 + 4);
            let distance = i32::try_from(schedule?.0.wrapping_sub(next.0).cast_signed()).ok()?;
            bytes.get_mut(at..at + 4)?.copy_from_slice(&distance.to_le_bytes());
        }
        Some(bytes)
    }

    /// The registers with which a task goes on that is in the code at `entry`, where `regs` are those of the moment. `None` where it is not there.
    ///
    /// # Errors
    /// The [`PageFault`] of its stack.
    pub fn past<M: PhysMemory + ?Sized>(
        self,
        regs: &Regs,
        entry: Gva,
        memory: &VirtMemory<'_, M>,
    ) -> Result<Option<Regs>, PageFault> {
        let Some(offset) = Gva(regs.rip).offset_from(entry).filter(|offset| *offset <= self.trap()) else {
            return Ok(None);
        };
        let Layout { pushed, popped, has_frame, .. } = self.layout();
        let count = |at: &[u64]| at.iter().filter(|at| **at <= offset).count() as u64;
        // What the code has on the stack lies below the address.
        let words = count(pushed) - count(popped);
        let at = Gva(regs.rsp.wrapping_add(8 * words));
        let rip = memory.read_u64(at)?;
        let is_framed = *has_frame && (FRAME..NO_FRAME).contains(&offset);
        let rbp = if is_framed { memory.read_u64(at.offset(-8))? } else { regs.rbp };
        Ok(Some(Regs { rip, rsp: at.0.wrapping_add(8), rbp, ..*regs }))
    }

    /// Where the code begins that `at` is in, if there is such, known by its bytes.
    fn around<M: PhysMemory + ?Sized>(self, at: Gva, memory: &VirtMemory<'_, M>) -> Option<Gva> {
        let Layout { code, call, .. } = self.layout();
        let own = self.opened() as usize;
        let is_there = |entry: &Gva| {
            let mut bytes = [0; YIELDS.code.len()];
            let Some(there) = bytes.get_mut(..own) else { return false };
            if memory.read(*entry, there).is_err() {
                return false;
            }
            let is_distance = |n: usize| call.is_some_and(|call| (call..call + 4).contains(&n));
            there.iter().zip(*code).enumerate().all(|(n, (there, code))| there == code || is_distance(n))
        };
        (0..=self.trap()).map(|offset| Gva(at.0.wrapping_sub(offset))).find(is_there)
    }
}

/// The registers with which the task goes on that is in code of some gate with `regs`. `None` where it is in none.
#[must_use]
pub fn behind<M: PhysMemory + ?Sized>(regs: &Regs, memory: &VirtMemory<'_, M>) -> Option<Regs> {
    let found = |form: Form| {
        let entry = form.around(Gva(regs.rip), memory)?;
        form.past(regs, entry, memory).ok().flatten()
    };
    Form::ALL.into_iter().find_map(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;
    use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};

    const AT: Gva = Gva(0xffff_ffff_c000_0020);
    const SCHEDULER: Gva = Gva(0xffff_ffff_81a1_1690);

    fn decoded(form: Form) -> Vec<Instruction> {
        let bytes = form.bytes(AT, Some(SCHEDULER)).unwrap();
        let code = &bytes[..form.opened() as usize];
        Decoder::with_ip(64, code, AT.0, DecoderOptions::NONE).iter().collect()
    }

    #[test]
    fn spinning_code_is_what_is_said_of_it() {
        let code = decoded(Form::Spins);
        let codes: Vec<Code> = code.iter().map(Instruction::code).collect();
        let expected =
            [Code::Pushfq, Code::Pause, Code::Test_rm8_imm8, Code::Je_rel8_64, Code::Popfq, Code::Int3];
        assert_eq!(codes, expected);
        assert_eq!(code[2].ip_rel_memory_address(), AT.0 + Form::Spins.opened());
        assert_eq!(code[2].immediate8(), 1);
        assert_eq!(code[3].near_branch_target(), code[1].ip());
        assert_eq!(code[5].ip(), AT.0 + Form::Spins.trap());
    }

    #[test]
    fn yielding_code_is_what_is_said_of_it() {
        let code = decoded(Form::Yields);
        let at = |wanted: Code| code.iter().find(|found| found.code() == wanted).unwrap();
        assert_eq!(at(Code::Call_rel32_64).near_branch_target(), SCHEDULER.0);
        assert_eq!(at(Code::Jmp_rel8_64).near_branch_target(), at(Code::Call_rel32_64).ip());
        let (test, out) = (at(Code::Test_rm8_imm8), at(Code::Jne_rel8_64));
        assert_eq!(test.ip_rel_memory_address(), AT.0 + Form::Yields.opened());
        assert_eq!(out.near_branch_target(), at(Code::Pop_r64).ip());
        let again = code.iter().rfind(|found| found.code() == Code::Jne_rel8_64).unwrap();
        assert_eq!(again.near_branch_target(), at(Code::Pause).ip());
        assert_eq!(code.last().map(Instruction::ip), Some(AT.0 + Form::Yields.trap()));
        assert_eq!(at(Code::Mov_rm64_r64).next_ip(), AT.0 + FRAME);
        assert_eq!(at(Code::Mov_rm64_r64).op1_register(), Register::RSP);
        // Whatever a function may change comes back, in the order in which it went.
        let moved = |with: fn(&Instruction) -> bool| -> Vec<Register> {
            let those = code.iter().filter(|found| with(found) && found.op0_kind() == OpKind::Register);
            those.map(Instruction::op0_register).collect()
        };
        let mut back = moved(|found| found.code() == Code::Pop_r64);
        back.reverse();
        let away = moved(|found| found.code() == Code::Push_r64);
        assert_eq!(away, back);
        use Register::{R8, R9, R10, R11, RAX, RBP, RCX, RDI, RDX, RSI};
        assert_eq!(away, [RBP, RAX, RCX, RDX, RSI, RDI, R8, R9, R10, R11]);
        assert!(Form::Yields.bytes(AT, None).is_none());
        assert!(Form::Yields.bytes(AT, Some(Gva(0x1000_0000_0000))).is_none(), "out of reach");
    }

    /// What the tables say of the stack is what the instructions do to it.
    #[test]
    fn the_words_on_the_stack_are_those_that_are_pushed() {
        let ram = Ram::new();
        let (entry, stack) = (Ram::BASE.add(0x100), Ram::BASE.add(0x800));
        for form in Form::ALL {
            ram.put(entry, &form.bytes(entry, Some(entry)).unwrap());
            let memory = ram.memory();
            let mut regs = Regs { rip: entry.0, rsp: stack.0, rbp: 7, ..Regs::default() };
            ram.put(stack, &0x1234_u64.to_le_bytes());
            for instruction in decoded(form) {
                let offset = instruction.ip() - AT.0;
                regs.rip = entry.0 + offset;
                let there = form.past(&regs, entry, &memory).unwrap().unwrap();
                assert_eq!(
                    (there.rip, there.rsp, there.rbp),
                    (0x1234, stack.0 + 8, 7),
                    "{form:?} + {offset}"
                );
                assert_eq!(behind(&regs, &memory), Some(there));
                match instruction.code() {
                    Code::Push_r64 => {
                        regs.rsp -= 8;
                        let word = if instruction.op0_register() == Register::RBP { regs.rbp } else { 1 };
                        ram.put(Gva(regs.rsp), &word.to_le_bytes());
                    }
                    Code::Pushfq => {
                        regs.rsp -= 8;
                        ram.put(Gva(regs.rsp), &2_u64.to_le_bytes());
                    }
                    Code::Mov_rm64_r64 => regs.rbp = regs.rsp,
                    Code::Pop_r64 => {
                        if instruction.op0_register() == Register::RBP {
                            regs.rbp = memory.read_u64(Gva(regs.rsp)).unwrap();
                        }
                        regs.rsp += 8;
                    }
                    Code::Popfq => regs.rsp += 8,
                    _ => {}
                }
            }
            assert_eq!(regs.rsp, stack.0);
            for outside in [entry.offset(-1), entry.add(form.opened())] {
                let regs = Regs { rip: outside.0, ..regs };
                assert_eq!(form.past(&regs, entry, &memory), Ok(None));
                assert_eq!(behind(&regs, &memory), None);
            }
        }
    }
}
