//! Noting a hit down in the ring of the CPU.

use super::{Assembler, Done, displacement, imm, own};
use crate::capture::Register;
use crate::detour::layout::{self, CELLS, DROPS, HEAD, TAIL, UNKNOWN, record};
use crate::detour::work::Work;
use crate::linux::task::{self, TaskLayout};
use iced_x86::Code;
use iced_x86::code_asm::{AsmRegister64, CodeLabel, dword_ptr, eax, qword_ptr, r8, rax, rcx, rdi, rdx};

impl Assembler<'_> {
    /// In the end goes to `next`. Where there is no room it traps, with the ring in rcx, and whoever takes the trap waits
    /// for some: with CF the hit is noted down then, and without it is given up. Uses what is saved.
    pub(super) fn record(&mut self, work: &Work, registers: &[Register], next: CodeLabel) -> Done {
        let rings = self.guest.rings;
        let number = self.cpu()?.number;
        let probe = work.probe;
        let cells = layout::cells_of(work.words());
        let (mut full, mut lost) = (self.asm.create_label(), self.asm.create_label());
        let (mut claim, mut again) = (self.asm.create_label(), self.asm.create_label());
        // The ring of this CPU. Its number is the guest's word.
        self.asm.mov(eax, own(dword_ptr(displacement(number)?)))?;
        self.asm.cmp(eax, rings.cpus.cast_signed())?;
        self.asm.jae(lost)?;
        self.asm.imul_3(eax, eax, imm(rings.stride)?)?;
        self.asm.lea(rcx, qword_ptr(rax + self.at(rings.offset(0))?))?;
        // Claims its cells. No other CPU does in this ring, but an NMI may: then it is tried again.
        self.asm.set_label(&mut claim)?;
        self.asm.mov(rax, qword_ptr(rcx + HEAD))?;
        self.asm.set_label(&mut again)?;
        self.asm.lea(rdx, qword_ptr(rax + cells))?;
        self.asm.mov(r8, rdx)?;
        self.asm.sub(r8, qword_ptr(rcx + TAIL))?;
        self.asm.cmp(r8, imm(rings.cells)?)?;
        self.asm.ja(full)?;
        self.asm.cmpxchg(qword_ptr(rcx + HEAD), rdx)?;
        self.asm.jne(again)?;
        // From here on: rcx the record, r8 its sequence number, rax and rdx for anything.
        self.asm.lea(r8, qword_ptr(rax + 1))?;
        self.asm.and(eax, imm(rings.cells - 1)?)?;
        self.asm.shl(eax, layout::CELL.ilog2())?;
        self.asm.lea(rcx, qword_ptr(rcx + rax + CELLS))?;
        self.ticks()?;
        self.asm.mov(qword_ptr(rcx + record::TICKS), rax)?;
        self.asm.mov(dword_ptr(rcx + record::PROBE), layout::head(probe, cells).cast_signed())?;
        let mut places = (record::REGISTERS..).step_by(8);
        match work.calls {
            None => {
                self.put(rcx, (record::ARGUMENTS..).step_by(8), (0..6).filter_map(Register::of_argument))?
            }
            Some(_) => self.returned()?,
        }
        if work.keeps_arguments() {
            self.entered_with(&mut places)?;
        }
        self.put(rcx, &mut places, registers.iter().copied())?;
        if let Some(area) = places.next().filter(|_| !work.reads.is_empty()) {
            self.asm.lea(rdi, qword_ptr(rcx + area))?;
            self.copy_area(&work.reads)?;
        }
        self.task()?;
        self.asm.mov(qword_ptr(rcx + record::SEQUENCE), r8)?;
        self.asm.jmp(next)?;
        self.asm.set_label(&mut full)?;
        self.asm.int3()?;
        self.waits.push(full);
        self.asm.jb(claim)?;
        self.asm.set_label(&mut lost)?;
        self.count(Code::Inc_rm64, DROPS, probe)
    }

    /// The time-stamp counter, in rax. Uses rdx.
    pub(super) fn ticks(&mut self) -> Done {
        self.asm.rdtsc()?;
        self.asm.shl(rdx, 32u32)?;
        self.asm.or(rax, rdx)?;
        Ok(())
    }

    /// Notes registers down at `places` behind `base`.
    pub(super) fn put(
        &mut self,
        base: AsmRegister64,
        places: impl Iterator<Item = u64>,
        registers: impl Iterator<Item = Register>,
    ) -> Done {
        // In this order: no place is taken for nothing.
        for (register, at) in registers.zip(places) {
            let value = self.register(register)?;
            self.asm.mov(qword_ptr(base + at), value)?;
        }
        Ok(())
    }

    /// Notes the current task down, in the record at rcx.
    fn task(&mut self) -> Done {
        let TaskLayout { current, preempt_count, softirq_count, comm, pid, tgid, user, namespace, .. } =
            self.cpu()?.task;
        if let Some(at) = preempt_count {
            self.asm.mov(eax, own(dword_ptr(displacement(at)?)))?;
        } else {
            self.asm.xor(eax, eax)?;
        }
        self.asm.mov(dword_ptr(rcx + record::PREEMPT_COUNT), eax)?;
        self.asm.mov(rdx, own(qword_ptr(displacement(current.offset)?)))?;
        self.asm.mov(qword_ptr(rcx + record::TASK), rdx)?;
        if let Some(at) = softirq_count {
            self.asm.mov(eax, dword_ptr(rdx + imm(at)?))?;
            self.asm.and(eax, task::SOFTIRQS.cast_signed())?;
            self.asm.or(dword_ptr(rcx + record::PREEMPT_COUNT), eax)?;
        }
        for (from, to) in [(pid, record::PID), (tgid, record::TGID)] {
            self.asm.mov(eax, dword_ptr(rdx + imm(from)?))?;
            self.asm.mov(dword_ptr(rcx + to), eax)?;
        }
        for half in [0, 8] {
            self.asm.mov(rax, qword_ptr(rdx + imm(comm + half)?))?;
            self.asm.mov(qword_ptr(rcx + (record::COMM + half)), rax)?;
        }
        match user {
            Some(task::User { cred, uid }) => {
                self.asm.mov(rax, qword_ptr(rdx + imm(cred)?))?;
                self.asm.mov(eax, dword_ptr(rax + imm(uid)?))?;
            }
            None => self.asm.mov(rax, UNKNOWN)?,
        }
        self.asm.mov(qword_ptr(rcx + record::UID), rax)?;
        let (mut unknown, mut known) = (self.asm.create_label(), self.asm.create_label());
        if let Some(task::Namespace { thread_pid, level, numbers, stride, number }) = namespace {
            // A task that has exited has none.
            self.asm.mov(rdx, qword_ptr(rdx + imm(thread_pid)?))?;
            self.asm.test(rdx, rdx)?;
            self.asm.jz(unknown)?;
            self.asm.mov(eax, dword_ptr(rdx + imm(level)?))?;
            self.asm.cmp(eax, task::MOST_LEVELS.cast_signed())?;
            self.asm.jae(unknown)?;
            self.asm.imul_3(eax, eax, imm(stride)?)?;
            self.asm.mov(eax, dword_ptr(rdx + rax + imm(numbers + number)?))?;
            self.asm.jmp(known)?;
        }
        self.asm.set_label(&mut unknown)?;
        self.asm.mov(rax, UNKNOWN)?;
        self.asm.set_label(&mut known)?;
        self.asm.mov(qword_ptr(rcx + record::NAMESPACE_PID), rax)?;
        Ok(())
    }
}
