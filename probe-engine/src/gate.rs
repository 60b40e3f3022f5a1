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
use crate::paging::{Access, PageFault};
use crate::regs::{Register, Regs};
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
    /// What is on the stack in the loop, in the order in which it is pushed.
    kept: &'static [Register],
    /// Where each word has been pushed or popped, in bytes from the entry.
    pushed: &'static [u64],
    popped: &'static [u64],
    /// Where the distance of a call is.
    call: Option<usize>,
}

/// `pushfq; 1: pause; test byte [rip + opened], 1; jz 1b; popfq; int3`, and the byte.
const SPINS: Layout = Layout {
    code: &[0x9c, 0xf3, 0x90, 0xf6, 0x05, 0x04, 0x00, 0x00, 0x00, 0x01, 0x74, 0xf5, 0x9d, 0xcc, 0x00],
    kept: &[Register::Rflags],
    pushed: &[1],
    popped: &[13],
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
    kept: &[
        Register::Rbp,
        Register::Rflags,
        Register::Rax,
        Register::Rcx,
        Register::Rdx,
        Register::Rsi,
        Register::Rdi,
        Register::R8,
        Register::R9,
        Register::R10,
        Register::R11,
    ],
    pushed: &[1, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18],
    popped: &[47, 49, 51, 53, 54, 55, 56, 57, 58, 59, 60],
    call: Some(19),
};
/// So many gates are passed one behind the other: a task may be held several times at one place.
const MOST_GATES: usize = 8;

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
        let Layout { kept, pushed, popped, .. } = self.layout();
        let count = |at: &[u64]| at.iter().filter(|at| **at <= offset).count();
        // What the code has on the stack lies below the address.
        let words = count(pushed) - count(popped);
        let at = Gva(regs.rsp.wrapping_add(8 * words as u64));
        let mut past = Regs { rip: memory.read_u64(at)?, rsp: at.0.wrapping_add(8), ..*regs };
        for (n, register) in (1_i64..).zip(kept.iter().take(words)) {
            *register.slot(&mut past) = memory.read_u64(at.offset(-8 * n))?;
        }
        Ok(Some(past))
    }

    /// Where the code begins that `at` is in, if there is such, known by its bytes.
    fn around<M: PhysMemory + ?Sized>(self, at: Gva, memory: &VirtMemory<'_, M>) -> Option<Gva> {
        let Layout { code, call, .. } = self.layout();
        let code = code.get(..self.opened() as usize)?;
        let is_distance = |n: usize| call.is_some_and(|call| (call..call + 4).contains(&n));
        let is_code = |there: &[u8]| {
            there.iter().zip(code).enumerate().all(|(n, (there, code))| there == code || is_distance(n))
        };
        // All that may be of it. Where not all of that is there, each beginning is looked at for itself.
        let mut bytes = [0; 2 * YIELDS.code.len()];
        let bytes = bytes.get_mut(..2 * code.len() - 1)?;
        let first = Gva(at.0.wrapping_sub(self.trap()));
        if memory.read(first, bytes).is_ok() {
            let found = bytes.windows(code.len()).position(is_code)?;
            return Some(first.add(found as u64));
        }
        let bytes = bytes.get_mut(..code.len())?;
        (0..=self.trap())
            .map(|offset| first.add(offset))
            .find(|entry| memory.read(*entry, bytes).is_ok() && is_code(bytes))
    }
}

/// The registers with which a task goes on that is in code of gates with `regs`, one behind the other; `regs` where it is in none. `behind`
/// says those behind one gate.
pub fn behind_all(regs: Regs, behind: impl Fn(&Regs) -> Option<Regs>) -> Regs {
    let mut at = regs;
    for _ in 0..MOST_GATES {
        match behind(&at) {
            Some(next) => at = next,
            None => break,
        }
    }
    at
}

/// The same where it is not known which gates there are: they are known by their bytes. `None` where it is in none.
#[must_use]
pub fn behind<M: PhysMemory + ?Sized>(regs: &Regs, memory: &VirtMemory<'_, M>) -> Option<Regs> {
    let found = |at: &Regs| {
        memory.translate(Gva(at.rip), Access::Read).ok()?;
        Form::ALL.into_iter().find_map(|form| {
            let entry = form.around(Gva(at.rip), memory)?;
            form.past(at, entry, memory).ok().flatten()
        })
    };
    found(regs).map(|past| behind_all(past, found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;
    use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind};

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
        assert_eq!(at(Code::Mov_rm64_r64).op0_register(), iced_x86::Register::RBP);
        assert_eq!(at(Code::Mov_rm64_r64).op1_register(), iced_x86::Register::RSP);
        // Whatever a function may change comes back, in the order in which it went.
        let moved = |with: fn(&Instruction) -> bool| -> Vec<iced_x86::Register> {
            let those = code.iter().filter(|found| with(found) && found.op0_kind() == OpKind::Register);
            those.map(Instruction::op0_register).collect()
        };
        let mut back = moved(|found| found.code() == Code::Pop_r64);
        back.reverse();
        let away = moved(|found| found.code() == Code::Push_r64);
        assert_eq!(away, back);
        use iced_x86::Register::{R8, R9, R10, R11, RAX, RBP, RCX, RDI, RDX, RSI};
        assert_eq!(away, [RBP, RAX, RCX, RDX, RSI, RDI, R8, R9, R10, R11]);
        assert!(Form::Yields.bytes(AT, None).is_none());
        assert!(Form::Yields.bytes(AT, Some(Gva(0x1000_0000_0000))).is_none(), "out of reach");
    }

    /// What the tables say of the stack is what the instructions do to it, and no register is lost in a function that is called.
    #[test]
    fn a_task_goes_on_with_all_of_its_registers() {
        let ram = Ram::new();
        let (entry, stack) = (Ram::BASE.add(0x100), Ram::BASE.add(0x800));
        ram.put(stack, &0x1234_u64.to_le_bytes());
        let first = Regs {
            rip: 0x1234,
            rsp: stack.0 + 8,
            rax: 1,
            rcx: 2,
            rdx: 3,
            rsi: 4,
            rdi: 5,
            r8: 6,
            r9: 7,
            r10: 8,
            r11: 9,
            rbp: 10,
            r13: 11,
            rflags: 0x246,
            ..Regs::default()
        };
        for form in Form::ALL {
            ram.put(entry, &form.bytes(entry, Some(entry)).unwrap());
            let memory = ram.memory();
            let mut regs = Regs { rip: entry.0, rsp: stack.0, ..first };
            for instruction in decoded(form) {
                regs.rip = entry.0 + (instruction.ip() - AT.0);
                assert_eq!(form.past(&regs, entry, &memory), Ok(Some(first)), "{form:?} at {:#x}", regs.rip);
                assert_eq!(behind(&regs, &memory), Some(first));
                let register = Register::named(&format!("{:?}", instruction.op0_register()).to_lowercase());
                let push = |regs: &mut Regs, register: Register| {
                    let word = register.of(regs);
                    regs.rsp -= 8;
                    ram.put(Gva(regs.rsp), &word.to_le_bytes());
                };
                let pop = |regs: &mut Regs, register: Register| {
                    *register.slot(regs) = memory.read_u64(Gva(regs.rsp)).unwrap();
                    regs.rsp += 8;
                };
                match instruction.code() {
                    Code::Push_r64 => push(&mut regs, register.unwrap()),
                    Code::Pushfq => push(&mut regs, Register::Rflags),
                    Code::Pop_r64 => pop(&mut regs, register.unwrap()),
                    Code::Popfq => pop(&mut regs, Register::Rflags),
                    Code::Mov_rm64_r64 => regs.rbp = regs.rsp,
                    Code::Call_rel32_64 => {
                        let (rax, rcx, rdx, rsi, rdi) = (70, 71, 72, 73, 74);
                        regs = Regs { rax, rcx, rdx, rsi, rdi, r8: 75, r9: 76, r10: 77, r11: 78, ..regs };
                    }
                    Code::Test_rm8_imm8 => regs.rflags = 2,
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

    /// A task that is held twice at one place goes from one gate into the other.
    #[test]
    fn gates_lie_one_behind_the_other() {
        let ram = Ram::new();
        let (outer, inner) = (Ram::BASE.add(0x100), Ram::BASE.add(0x200));
        ram.put(outer, &Form::Yields.bytes(outer, Some(outer)).unwrap());
        ram.put(inner, &Form::Spins.bytes(inner, None).unwrap());
        let stack = Ram::BASE.add(0x800);
        ram.put(stack, &[outer.0.to_le_bytes(), 0x1234_u64.to_le_bytes()].concat());
        let regs = Regs { rip: inner.0, rsp: stack.0, ..Regs::default() };
        let expected = Regs { rip: 0x1234, rsp: stack.0 + 16, ..regs };
        assert_eq!(behind(&regs, &ram.memory()), Some(expected));
        // Its own gate, for ever.
        ram.put(stack, &[inner.0.to_le_bytes(); 64].concat());
        assert!(behind(&regs, &ram.memory()).is_some());
    }
}
