//! How the guest calls functions of its own for somebody outside.
//!
//! An *errand* is a number of such calls. It begins with a [`slot`] of the data window that is linked into the list of irq_works
//! that a CPU is to run. In the interrupt that follows, the CPU runs [`IRQ_FUNCTION`](Code::irq_function), which queues the
//! slot's work. A worker of the kernel's then comes to the [`CALL_GATE`], in a task of its own, where it may sleep. At each trap
//! there the host has it make one call more, which returns to the trap, or lets the gate return.
//!
//! The gate has a frame, because the kernel has no other way to walk its stack there.

use crate::addr::Gva;
use crate::linux::errands::{self as layout, CLAIMED, ErrandLayout};
use crate::memory::PhysMemory;
use crate::paging::PageFault;
use crate::regs::Regs;
use crate::virt_memory::VirtMemory;

/// `endbr64; push rbp; mov rbp, rsp; int3; pop rbp; ret`. The stack is aligned for a call at the trap.
pub const CALL_GATE: [u8; 11] = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0xcc, 0x5d, 0xc3];
/// Where the trap is, to which calls return.
const TRAP: u64 = 8;
/// What is behind it.
const LEAVE: u64 = TRAP + 1;
/// Where the other function begins, behind the gate.
const IRQ_FUNCTION: u64 = 16;
/// `endbr64; lea rdx, [rdi+WORK]; mov rsi, [rdi+QUEUE]; mov edi, CPU; jmp queue_work_on`, without the last two numbers.
const IRQ_CODE: [u8; 13] =
    [0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x57, slot::WORK as u8, 0x48, 0x8b, 0x77, slot::QUEUE as u8, 0xbf];
/// Bytes of both.
pub const CODE: usize = IRQ_FUNCTION as usize + IRQ_CODE.len() + 9;

/// What one worker on its way to the gate takes in the data window.
pub mod slot {
    use crate::linux::errands;

    /// Bytes of a slot.
    pub const SIZE: u64 = 128;
    /// `struct irq_work`
    pub const IRQ_WORK: u64 = 0;
    /// `struct work_struct`
    pub const WORK: u64 = IRQ_WORK + errands::IRQ_WORK;
    /// The queue that it goes to.
    pub const QUEUE: u64 = WORK + errands::WORK;
}

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What is called, where it is in the running kernel.
    pub function: Gva,
    /// Its first arguments.
    pub args: [u64; 6],
}

impl Call {
    /// A call of `function` with these `args`, six at most.
    #[must_use]
    pub fn new(function: Gva, args: &[u64]) -> Self {
        let mut all = [0; 6];
        all.iter_mut().zip(args).for_each(|(to, from)| *to = *from);
        Self { function, args: all }
    }
}

/// Code in the guest, by where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub Gva);

impl Code {
    /// Its bytes, in a kernel that was moved by `slide`: without a `layout` the gate alone, to which no worker comes. `None` where it
    /// is too far from the kernel's text.
    #[must_use]
    pub fn bytes(self, layout: Option<&ErrandLayout>, slide: u64) -> Option<[u8; CODE]> {
        let mut code = [crate::insn::INT3; CODE];
        code.iter_mut().zip(CALL_GATE).for_each(|(to, from)| *to = from);
        let Some(layout) = layout else { return Some(code) };
        let end = self.0.add(CODE as u64);
        let distance = layout.queue_work.add(slide).0.wrapping_sub(end.0).cast_signed();
        let distance = i32::try_from(distance).ok()?;
        let (_, rest) = code.split_at_mut(IRQ_FUNCTION as usize);
        let numbers = [&layout.any_cpu.to_le_bytes()[..], &[0xe9], &distance.to_le_bytes()];
        let irq = IRQ_CODE.iter().chain(numbers.into_iter().flatten());
        rest.iter_mut().zip(irq).for_each(|(to, from)| *to = *from);
        Some(code)
    }

    /// The gate's trap.
    #[must_use]
    pub fn trap(self) -> Gva {
        self.0.add(TRAP)
    }

    /// What a CPU runs in its interrupt.
    #[must_use]
    pub fn irq_function(self) -> Gva {
        self.0.add(IRQ_FUNCTION)
    }

    /// A slot at `at` that is to go to `queue`, in front of the irq_work at `next`, or of none.
    #[must_use]
    pub fn slot(self, layout: &ErrandLayout, at: Gva, queue: Gva, next: Gva) -> [u8; slot::SIZE as usize] {
        let mut bytes = [0; slot::SIZE as usize];
        let entry = at.add(slot::WORK + layout::WORK_ENTRY).0;
        let words = [
            (slot::IRQ_WORK, next.0),
            (slot::IRQ_WORK + layout::IRQ_WORK_FLAGS, CLAIMED.into()),
            (slot::IRQ_WORK + layout::IRQ_WORK_FUNCTION, self.irq_function().0),
            (slot::WORK, layout.idle),
            (slot::WORK + layout::WORK_ENTRY, entry),
            (slot::WORK + layout::WORK_ENTRY + 8, entry),
            (slot::WORK + layout::WORK_FUNCTION, self.0.0),
            (slot::QUEUE, queue.0),
        ];
        for (offset, word) in words {
            let place = bytes.iter_mut().skip(offset as usize);
            place.zip(word.to_le_bytes()).for_each(|(to, from)| *to = from);
        }
        bytes
    }

    /// The registers with which a task is as if it were at the trap, that is at the entry of a function with `regs`, where it may
    /// sleep: calls are made below its stack.
    #[must_use]
    pub fn from_entry(self, regs: &Regs) -> Regs {
        Regs { rip: self.trap().0, rsp: regs.rsp & !15, ..*regs }
    }

    /// The registers with which a worker makes `call` that is at the trap with `regs`.
    ///
    /// # Errors
    /// The [`PageFault`] of its stack.
    pub fn call<M: PhysMemory + ?Sized>(
        self,
        call: &Call,
        regs: &Regs,
        memory: &VirtMemory<'_, M>,
    ) -> Result<Regs, PageFault> {
        let rsp = regs.rsp.wrapping_sub(8);
        memory.write(Gva(rsp), &self.trap().0.to_le_bytes())?;
        let [rdi, rsi, rdx, rcx, r8, r9] = call.args;
        // A function of variable arguments has none in vector registers.
        Ok(Regs { rdi, rsi, rdx, rcx, r8, r9, rax: 0, rsp, rip: call.function.0, ..*regs })
    }

    /// The stack pointer that a worker has at the trap when a call with these registers has returned.
    #[must_use]
    pub fn rsp_at_trap(self, regs: &Regs) -> u64 {
        regs.rsp.wrapping_add(8)
    }

    /// Those with which one leaves the gate.
    #[must_use]
    pub fn leave(self, regs: &Regs) -> Regs {
        Regs { rip: self.0.add(LEAVE).0, ..*regs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;
    use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

    const AT: Code = Code(Gva(0xffff_ffff_c000_0040));
    const SLIDE: u64 = 0x1200_0000;

    fn layout() -> ErrandLayout {
        ErrandLayout {
            interrupt: Gva(0xffff_ffff_8100_0b00),
            raised: 0x2_0040,
            per_cpu: Gva(0xffff_ffff_8260_0000),
            online: Gva(0xffff_ffff_8260_1000),
            queue_work: Gva(0xffff_ffff_810b_0000),
            queue: Gva(0xffff_ffff_8280_0000),
            any_cpu: 0x2000,
            idle: 0x7fff_ffff << 21,
        }
    }

    fn decoded(code: &[u8], at: Gva) -> Vec<String> {
        let mut formatter = IntelFormatter::new();
        let text = |instruction| {
            let mut text = String::new();
            formatter.format(&instruction, &mut text);
            text
        };
        Decoder::with_ip(64, code, at.0, DecoderOptions::NONE).iter().map(text).collect()
    }

    #[test]
    fn the_code_is_what_is_said_of_it() {
        let code = AT.bytes(Some(&layout()), SLIDE).unwrap();
        let gate = ["endbr64", "push rbp", "mov rbp,rsp", "int3", "pop rbp", "ret"];
        assert_eq!(decoded(&code[..CALL_GATE.len()], AT.0), gate);
        assert_eq!(code[AT.trap().offset_from(AT.0).unwrap() as usize], crate::insn::INT3);
        let left = AT.leave(&Regs::default());
        assert_eq!(code[(left.rip - AT.0.0) as usize..][..2], [0x5d, 0xc3]);
        let start = AT.irq_function();
        assert!(start.0.is_multiple_of(16) && AT.0.0.is_multiple_of(16));
        let irq = decoded(&code[start.offset_from(AT.0).unwrap() as usize..], start);
        let expected =
            ["endbr64", "lea rdx,[rdi+20h]", "mov rsi,[rdi+40h]", "mov edi,2000h", "jmp 0FFFFFFFF930B0000h"];
        assert_eq!(irq, expected);
        assert_eq!(AT.bytes(Some(&layout()), 1 << 40), None);
    }

    #[test]
    fn a_slot_is_an_irq_work_and_a_work_that_are_to_run() {
        let (at, queue, next) = (Gva(0xffff_ffff_c080_0000), Gva(0xffff_8880_0100_0000), Gva(0xabc0));
        let slot = AT.slot(&layout(), at, queue, next);
        let words: Vec<u64> = slot.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let entry = at.0 + 40;
        let expected =
            [next.0, 0x2b, AT.irq_function().0, 0, 0xf_ffff_ffe0_0000, entry, entry, AT.0.0, queue.0];
        assert_eq!(words[..9], expected);
        assert!(words[9..].iter().all(|word| *word == 0));
    }

    #[test]
    fn a_call_returns_to_the_trap() {
        let ram = Ram::new();
        let rsp = Ram::BASE.add(0x1000).0;
        let before = Regs { rip: AT.trap().0, rsp, rbp: rsp, rbx: 3, rax: 9, rflags: 2, ..Regs::default() };
        let call = Call::new(Gva(0xffff_ffff_8120_0000), &[1, 2, 3]);
        let regs = AT.call(&call, &before, &ram.memory()).unwrap();
        assert_eq!(regs.args(), [1, 2, 3, 0, 0, 0]);
        assert_eq!((regs.rip, regs.rsp, regs.rax, regs.rbx, regs.rbp), (call.function.0, rsp - 8, 0, 3, rsp));
        assert_eq!(ram.memory().read_u64(Gva(regs.rsp)), Ok(AT.trap().0));
        assert!(AT.call(&call, &Regs { rsp: 1 << 40, ..before }, &ram.memory()).is_err());
        assert_eq!(Call::new(call.function, &[7; 9]).args, [7; 6]);
    }
}
