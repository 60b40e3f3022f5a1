//! Reading memory for a probe, by the guest's own functions that survive a fault.
//!
//! ```text
//!         if this CPU reads for another hit, or the stack is not the current task's or that of interrupts, or has less
//!         than 2 KiB to spare: lock inc [unread], and that is all
//!         the CPU reads
//!         sub rsp, area           see [`reads`](crate::detour::reads)
//!         push 2; popfq           DF and AC are clear, interrupts stay off
//!         call ...                for each entry, until one cannot be read. For a program's memory in a task that may sleep,
//!                                 before that: the CPU has read; sti; call fault_in; cli; the CPU reads
//!         lock inc [hits]         if the condition holds; then the record, with the area
//!         add rsp, area
//!         the CPU has read
//! ```
//!
//! Addresses in the upper half are the kernel's. Nothing can preempt this, and what a page fault in these functions leads to
//! comes back by their entry in the exception table (mm/maccess.c, arch/x86/mm/maccess.c). The area is on the stack because
//! that is where the checks of hardened user copies let a destination be (mm/usercopy.c).

use super::{Assembler, Done, NoStub, displacement, imm, own};
use crate::addr::Gva;
use crate::detour::groups::Groups;
use crate::detour::layout::{POOL, POOLS, READING, UNREAD};
use crate::detour::reads::{ADDRESS, DATA, Given, Kept, LENGTH, ReadEntry, Reads};
use crate::detour::work::Work;
use crate::linux::nofault::{Copies, STACK};
use iced_x86::Code;
use iced_x86::code_asm::{
    AsmRegister64, CodeLabel, dword_ptr, eax, ecx, edx, esi, qword_ptr, r8, r9, r10, r11, rax, rbx, rcx, rdi,
    rdx, rsi, rsp,
};

/// What is saved where memory is read: all that a function may use, behind what [calls](super::calls) need.
pub(super) const SAVED: &[AsmRegister64] = &[rax, rcx, rdx, r8, rbx, r9, rsi, rdi, r10, r11];

/// Bytes of the stack for the guest's functions, and for the fault that they may meet.
const SPARE: u64 = 2048;

impl Assembler<'_> {
    /// Reads what `work` needs, and does it then. Uses what is saved.
    pub(super) fn reading(&mut self, work: &Work) -> Done {
        let copies =
            self.guest.copies.ok_or_else(|| NoStub("nothing copies memory in this kernel".into()))?;
        let fault_in = self.guest.fault_in.filter(|_| work.consumer.is_some());
        let length = work.reads.length + work.groups.as_ref().map_or(0, Groups::area);
        let (mut missed, mut end) = (self.asm.create_label(), self.asm.create_label());
        self.own_line(missed)?;
        let reading = dword_ptr(rcx + self.at(POOLS + READING)?);
        self.asm.cmp(reading, 0)?;
        self.asm.jne(missed)?;
        self.check_stack(&copies, length + SPARE, missed)?;
        self.asm.mov(reading, 1)?;
        self.asm.sub(rsp, imm(length)?)?;
        self.area = length;
        self.asm.push(2)?;
        self.asm.popfq()?;
        for entry in work.reads.entries() {
            self.asm.mov(qword_ptr(rsp + entry.at + LENGTH), 0)?;
        }
        if let Some(at) = work.reads.per_cpu {
            let unknown = || NoStub("the kernel does not say where a CPU has its own variables".to_owned());
            let own_area = self.cpu()?.per_cpu.ok_or_else(unknown)?;
            self.asm.mov(rax, own(qword_ptr(displacement(own_area)?)))?;
            self.asm.mov(qword_ptr(rsp + at), rax)?;
        }
        for chain in &work.reads.chains {
            let mut next = self.asm.create_label();
            self.given(chain.start)?;
            for (n, entry) in chain.entries.iter().enumerate() {
                if n > 0 {
                    let before = chain.entries.get(n - 1).map_or(0, |before| before.at);
                    self.asm.mov(rax, qword_ptr(rsp + before + DATA))?;
                }
                if let Some(at) = work.reads.per_cpu.filter(|_| entry.per_cpu) {
                    self.asm.add(rax, qword_ptr(rsp + at))?;
                }
                if let Some(fault_in) = fault_in.filter(|_| entry.user && entry.kept != Kept::Address) {
                    self.fault_in(fault_in, entry, next)?;
                }
                self.read(&copies, entry, next)?;
            }
            self.asm.set_label(&mut next)?;
            self.asm.zero_bytes()?;
        }
        self.count_and_record(work)?;
        self.asm.add(rsp, imm(length)?)?;
        self.area = 0;
        self.own_line(end)?;
        self.asm.mov(reading, 0)?;
        self.asm.jmp(end)?;
        self.asm.set_label(&mut missed)?;
        self.count(Code::Inc_rm64, UNREAD, work.probe)?;
        self.asm.set_label(&mut end)?;
        self.asm.zero_bytes()?;
        Ok(())
    }

    /// Loads a value that is there into rax.
    pub(super) fn given(&mut self, given: Given) -> Done {
        match given {
            Given::Register(register) => {
                let value = self.register(register)?;
                if value != rax {
                    self.asm.mov(rax, value)?;
                }
            }
            Given::Entered(n) => self.entered(n)?,
            Given::Constant(number) => self.asm.mov(rax, number)?,
            Given::Kernel(link) => self.asm.mov(rax, link.add(self.guest.slide).0)?,
            Given::Current => {
                let current = self.cpu()?.task.current.offset;
                self.asm.mov(rax, own(qword_ptr(displacement(current)?)))?;
            }
        }
        Ok(())
    }

    /// The offset of this CPU's line among the pools, in rcx. Its number is the guest's word: goes to `none` with another.
    fn own_line(&mut self, none: CodeLabel) -> Done {
        self.asm.mov(ecx, own(dword_ptr(displacement(self.cpu()?.number)?)))?;
        self.asm.cmp(ecx, self.guest.rings.cpus.cast_signed())?;
        self.asm.jae(none)?;
        self.asm.shl(ecx, POOL.ilog2())?;
        Ok(())
    }

    /// Goes to `short` unless so many bytes are left of the stack. Uses rax and rdx.
    fn check_stack(&mut self, copies: &Copies, needed: u64, short: CodeLabel) -> Done {
        let mut enough = self.asm.create_label();
        let current = self.cpu()?.task.current.offset;
        self.asm.mov(rax, own(qword_ptr(displacement(current)?)))?;
        self.asm.lea(rdx, qword_ptr(rsp - needed))?;
        self.asm.sub(rdx, qword_ptr(rax + imm(copies.stack)?))?;
        self.asm.cmp(rdx, imm(STACK - needed)?)?;
        self.asm.jb(enough)?;
        let Some(top) = copies.irq_stack else {
            self.asm.jmp(short)?;
            self.asm.set_label(&mut enough)?;
            return Ok(self.asm.zero_bytes()?);
        };
        self.asm.lea(rdx, qword_ptr(rsp + imm(STACK - needed)?))?;
        self.asm.sub(rdx, own(qword_ptr(displacement(top)?)))?;
        self.asm.cmp(rdx, imm(STACK - needed)?)?;
        self.asm.jae(short)?;
        self.asm.set_label(&mut enough)?;
        Ok(self.asm.zero_bytes()?)
    }

    /// Brings the memory in to which rax leads, or goes to `fails`. The task may sleep meanwhile, and go on on another CPU.
    fn fault_in(&mut self, function: Gva, entry: &ReadEntry, fails: CodeLabel) -> Done {
        let bytes = match entry.kept {
            Kept::Bytes(bytes) => bytes,
            Kept::String(most) => most + 1,
            Kept::Address => 0,
        };
        let kept = qword_ptr(rsp + (entry.at + DATA));
        self.asm.mov(kept, rax)?;
        self.asm.lea(rdi, qword_ptr(rax + entry.offset as i32))?;
        self.asm.mov(esi, u32::from(bytes))?;
        self.own_line(fails)?;
        let reading = dword_ptr(rcx + self.at(POOLS + READING)?);
        self.asm.mov(reading, 0)?;
        self.asm.sti()?;
        self.asm.call(function.0)?;
        self.asm.cli()?;
        self.own_line(fails)?;
        self.asm.mov(reading, 1)?;
        self.asm.mov(rax, kept)?;
        Ok(())
    }

    /// Fills an entry from where rax leads, or goes to `fails`.
    fn read(&mut self, copies: &Copies, entry: &ReadEntry, fails: CodeLabel) -> Done {
        let (mut kernel, mut read, mut fits) =
            (self.asm.create_label(), self.asm.create_label(), self.asm.create_label());
        let at = |part: u64| qword_ptr(rsp + (entry.at + part));
        self.asm.lea(rsi, qword_ptr(rax + entry.offset as i32))?;
        self.asm.mov(at(ADDRESS), rsi)?;
        let (most, [of_kernel, of_user]) = match entry.kept {
            Kept::Bytes(bytes) => (u32::from(bytes), copies.bytes),
            // One more than is kept tells whether it goes on.
            Kept::String(most) => (u32::from(most) + 1, copies.string),
            Kept::Address => {
                self.asm.mov(at(DATA), rsi)?;
                self.asm.mov(at(LENGTH), 8)?;
                return Ok(());
            }
        };
        self.asm.lea(rdi, at(DATA))?;
        self.asm.mov(edx, most)?;
        self.asm.test(rsi, rsi)?;
        if entry.user {
            self.asm.js(fails)?;
            self.asm.call(of_user.0)?;
        } else {
            self.asm.js(kernel)?;
            self.asm.call(of_user.0)?;
            self.asm.jmp(read)?;
            self.asm.set_label(&mut kernel)?;
            self.asm.call(of_kernel.0)?;
            self.asm.set_label(&mut read)?;
        }
        self.asm.test(rax, rax)?;
        match entry.kept {
            Kept::Bytes(bytes) => {
                self.asm.jnz(fails)?;
                self.asm.mov(at(LENGTH), i32::from(bytes))?;
            }
            Kept::String(most) => {
                self.asm.js(fails)?;
                // Where there is only a NUL, some kernels say 0 for a process's memory (strncpy_from_user_nofault).
                self.asm.cmp(rax, 1)?;
                self.asm.adc(rax, 0)?;
                self.asm.cmp(rax, i32::from(most))?;
                self.asm.jle(fits)?;
                self.asm.mov(eax, u32::from(most))?;
                self.asm.set_label(&mut fits)?;
                self.asm.mov(at(LENGTH), rax)?;
            }
            Kept::Address => {}
        }
        Ok(())
    }

    /// Copies what was read to where rdi leads.
    pub(super) fn copy_area(&mut self, reads: &Reads) -> Done {
        self.asm.mov(r9, rcx)?;
        self.asm.mov(rsi, rsp)?;
        self.asm.mov(ecx, u32::try_from(reads.length / 8).unwrap_or_default())?;
        self.asm.rep().movsq()?;
        self.asm.mov(rcx, r9)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
