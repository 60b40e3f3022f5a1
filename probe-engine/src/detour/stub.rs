//! The code that a detour leads to.
//!
//! ```text
//!         pushfq
//!         cli
//! gate:   nop                     five bytes: a jump out of the stub once it is retired, so that nobody counts here who is
//!                                 going to be counted elsewhere
//!         push ...
//!         inc [hits]              for each probe, in this CPU's slot if there is one, if its condition holds; then its record. [unread] if that is open.
//!                                 [outside] if this is not in its scope, and nothing else
//!         pop ...
//! end:    ...                     see [`ending`], and [`relocation`] where several instructions are moved
//! ```
//!
//! A record that finds its ring full traps, to wait for room: whoever takes the trap lets it try again.
//!
//! Where a probe is of a function's returns, its call is [followed](calls) instead, and counted at the return.

mod calls;
mod condition;
mod consumer;
mod count;
mod ending;
mod groups;
mod memory;
mod pattern;
mod record;
mod relocation;
mod scope;

pub use calls::{LEAVE, leave, trampolines};
pub(super) use calls::{RET, SAVED};

use condition::Branch;

use super::condition::HitCondition;
use super::instances::instance;
use super::layout::{Rings, TRAMPOLINES, UNREAD};
use super::relocation::RelocatedCode;
use super::work::Work;
use crate::addr::Gva;
use crate::capture::Register;
use crate::insn::copy::{JUMP, OutOfReach, jump};
use crate::linux::branches::Branches;
use crate::linux::ftrace_site::FTRACE_SITE;
use crate::linux::nofault::Copies;
use crate::linux::scope::Scope;
use crate::linux::task::TaskLayout;
use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, qword_ptr, r8, r9, r10, r11, r12, r13, r14,
    r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::{BlockEncoderOptions, Code, IcedError, MemoryOperand};
use std::ops::Range;

/// What a stub knows of the guest that it runs in.
#[derive(Debug, Clone, Copy)]
pub struct Guest {
    /// The data window (GVA).
    pub window: Gva,
    /// The rings in it.
    pub rings: Rings,
    /// What a CPU says of itself; `None` where the kernel's types do not tell. Without it a stub only counts.
    pub cpu: Option<Cpu>,
    /// What KASLR added to the kernel's link-time addresses.
    pub slide: u64,
    /// The [`trampolines`] (GVA).
    pub trampolines: Gva,
    /// What copies memory, if the guest has that.
    pub copies: Option<Copies>,
    /// What brings a program's memory in that is not there, in a task that may sleep: `fault_in_readable(address, size)` (GVA).
    pub fault_in: Option<Gva>,
    /// How the guest branches: [`leave`] does the same.
    pub branches: Branches,
}

impl Guest {
    /// Where code of ours goes to return, in [`leave`] (GVA).
    #[must_use]
    pub fn ret(&self) -> Gva {
        self.trampolines.add(TRAMPOLINES + calls::RET as u64)
    }
}

/// What a CPU says of itself, in bytes from the kernel's GS base.
#[derive(Debug, Clone, Copy)]
pub struct Cpu {
    /// Where it keeps its number.
    pub number: u64,
    /// How its task is found, and what is known of that.
    pub task: TaskLayout,
    /// Where it keeps what lies between a per-CPU variable and its own one; `None` where the kernel does not tell.
    pub per_cpu: Option<u64>,
}

/// A stub for one site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    /// Its code.
    pub code: Vec<u8>,
    /// Where the gate begins in it.
    gate: usize,
    /// The jump from there to the end.
    shut: [u8; JUMP],
    /// The part that is for the returns of calls, and not for the site itself.
    returns: Range<usize>,
    /// Where moved instructions begin.
    copies: Vec<usize>,
    /// Where it traps to wait for room in a ring.
    waits: Vec<usize>,
}

/// No stub is longer, in bytes.
const LONGEST: usize = 128 << 10;
/// Nor is what it does for one probe.
const LONGEST_WORK: usize = 8192;

/// A stub cannot be assembled: it is too far from where it has to lead, or too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no detour can be assembled for it: {0}")]
pub struct NoStub(String);

impl From<IcedError> for NoStub {
    fn from(error: IcedError) -> Self {
        Self(error.to_string())
    }
}

impl From<OutOfReach> for NoStub {
    fn from(error: OutOfReach) -> Self {
        Self(error.to_string())
    }
}

impl Stub {
    /// The stub at `at` for one of ftrace's nops at `site`. There is `next`, one instruction behind the nop, if it is to be
    /// moved: see [`ending`].
    ///
    /// # Errors
    /// [`NoStub`].
    pub fn assemble(
        guest: &Guest,
        at: Gva,
        site: Gva,
        next: Option<&RelocatedCode>,
        works: &[Work],
    ) -> Result<Self, NoStub> {
        let back = site.add(FTRACE_SITE);
        // What does not reach would become a branch through memory.
        jump(at, back)?;
        jump(at.add(LONGEST as u64), back)?;
        let stub = match works {
            [work] if work.only_counts() => count::only_counting(guest, at, work.probe)?,
            _ => Self::assemble_any(guest, at, site, works, |code, end| {
                code.asm.set_label(end)?;
                Ok(code.asm.zero_bytes()?)
            })?,
        };
        stub.end(guest, at, back, next)
    }

    /// One that does any `works`, and then what `finish` makes from the label on, to which the gate leads. What is to follow
    /// that is still missing.
    fn assemble_any(
        guest: &Guest,
        at: Gva,
        site: Gva,
        works: &[Work],
        finish: impl FnOnce(&mut Assembler<'_>, &mut CodeLabel) -> Done,
    ) -> Result<Self, NoStub> {
        let asm = CodeAssembler::new(64)?;
        let mut code = Assembler { asm, guest, site: Some(site), saved: &[], area: 0, waits: Vec::new() };
        let (mut gate, mut end) = (code.asm.create_label(), code.asm.create_label());
        code.begin(&mut gate)?;
        if works.iter().any(|work| !work.reads.is_empty() && work.calls.is_none()) {
            code.save(memory::SAVED)?;
        } else if works.iter().any(|work| work.calls.is_some()) {
            code.save(calls::SAVED)?;
        } else if works.iter().any(Work::uses_registers) {
            code.save(&[rax, rcx, rdx, r8])?;
        }
        let mut returns = Vec::new();
        for work in works {
            let others = code.begin_consumer(work)?;
            let outside = code.begin_scope(work)?;
            match work.calls {
                None => code.work(work)?,
                Some(calls) => {
                    let label = code.asm.create_label();
                    code.enter(work, calls, label)?;
                    returns.push((work, calls, label));
                }
            }
            code.end_scope(work, outside)?;
            code.end_consumer(others)?;
        }
        code.restore()?;
        let (mut entry, mut tail) = (code.asm.create_label(), code.asm.create_label());
        finish(&mut code, &mut end)?;
        if !returns.is_empty() {
            code.asm.jmp(tail)?;
        }
        code.asm.set_label(&mut entry)?;
        code.asm.zero_bytes()?;
        code.site = None;
        for (work, calls, label) in &mut returns {
            code.leave(work, *calls, label)?;
        }
        code.asm.set_label(&mut tail)?;
        code.asm.zero_bytes()?;
        let waits = std::mem::take(&mut code.waits);
        let done = code.asm.assemble_options(at.0, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
        let offset = |label: &CodeLabel| -> Result<usize, NoStub> {
            Ok(done.label_ip(label)?.wrapping_sub(at.0) as usize)
        };
        let (gate, end, entry) = (offset(&gate)?, offset(&end)?, offset(&entry)?);
        let waits = waits.iter().map(offset).collect::<Result<_, _>>()?;
        let code = done.inner.code_buffer;
        match code.len() + ending::LONGEST {
            0..=LONGEST => Self { waits, ..Self::with_gate(code, gate, entry) }.shut_to(end),
            _ => Err(NoStub("so many probes stand here".to_owned())),
        }
    }

    /// No stub for these takes more bytes.
    #[must_use]
    pub fn most_bytes(works: &[Work]) -> usize {
        let of = |work: &Work| match (&work.condition, &work.record, work.calls) {
            _ if !work.reads.is_empty() || work.groups.is_some() => LONGEST_WORK,
            (Some(_), ..) => LONGEST_WORK,
            (None, None, None) if work.scope != Scope::Boot || work.consumer.is_some() => 256,
            (None, None, None) => 32,
            (None, Some(_), None) => 512,
            (None, _, Some(_)) => 1024,
        };
        (64 + ending::LONGEST + works.iter().map(of).sum::<usize>()).min(LONGEST)
    }

    /// One of which all behind `entry` is for the returns of calls.
    fn with_gate(code: Vec<u8>, gate: usize, entry: usize) -> Self {
        let returns = entry..code.len();
        Self { code, gate, shut: [0; JUMP], returns, copies: Vec::new(), waits: Vec::new() }
    }

    /// The gate leads to `end` when it is shut.
    fn shut_to(self, end: usize) -> Result<Self, NoStub> {
        Ok(Self { shut: jump(Gva(self.gate as u64), Gva(end as u64))?, ..self })
    }

    /// Where in the code its gate is, and what shuts it: whoever comes there afterwards does nothing.
    #[must_use]
    pub fn shut(&self) -> (usize, [u8; JUMP]) {
        (self.gate, self.shut)
    }

    /// Where a CPU is that has passed the gate of this stub at `at`, and is still to come to the instruction behind the nop:
    /// nowhere, if that runs in the stub.
    pub fn passed(&self, at: Gva) -> impl Iterator<Item = Range<Gva>> {
        let parts = [self.gate + JUMP..self.returns.start, self.returns.end..self.code.len()];
        let comes_there = self.copies.is_empty();
        let part = move |part: Range<usize>| at.add(part.start as u64)..at.add(part.end as u64);
        parts.into_iter().filter(move |_| comes_there).map(part)
    }

    /// Where it traps, as the stub at `at`, to wait for room in a ring.
    pub fn waits(&self, at: Gva) -> impl Iterator<Item = Gva> {
        self.waits.iter().map(move |offset| at.add(*offset as u64))
    }

    /// Where the moved instructions of `region` are in its stub at `at`, each with its original.
    pub fn moved(&self, at: Gva, region: &RelocatedCode) -> impl Iterator<Item = (Gva, Gva)> {
        let places = move |start: &usize| {
            let start = at.add(*start as u64);
            region.places().map(move |(offset, original)| (start.add(offset), original))
        };
        self.copies.iter().flat_map(places)
    }
}

struct Assembler<'a> {
    asm: CodeAssembler,
    guest: &'a Guest,
    /// The site (GVA) while its own hit is dealt with, and not the return of a call.
    site: Option<Gva>,
    /// What has been pushed behind the flags, in this order.
    saved: &'static [AsmRegister64],
    /// Bytes behind that for what is read of memory, and for the keys of a group.
    area: u64,
    /// Where it traps to wait for room in a ring.
    waits: Vec<CodeLabel>,
}

type Done = Result<(), NoStub>;

impl Assembler<'_> {
    /// What the CPU says of itself, which all but counting needs.
    fn cpu(&self) -> Result<Cpu, NoStub> {
        let unknown = "the kernel does not tell where a CPU has its number and its task (CONFIG_DEBUG_INFO_BTF, CONFIG_KALLSYMS_ALL and CONFIG_SMP do), so that only a plain count can be a detour";
        self.guest.cpu.ok_or_else(|| NoStub(unknown.to_owned()))
    }

    fn begin(&mut self, gate: &mut CodeLabel) -> Done {
        self.asm.pushfq()?;
        self.asm.cli()?;
        self.asm.set_label(gate)?;
        self.asm.db(&[0x0f, 0x1f, 0x44, 0x00, 0x00])?;
        Ok(())
    }

    /// Saves these registers, of which the first may be already.
    fn save(&mut self, registers: &'static [AsmRegister64]) -> Done {
        let mut more = registers.iter().skip(self.saved.len());
        self.saved = registers;
        more.try_for_each(|register| self.asm.push(*register))?;
        Ok(())
    }

    fn restore(&mut self) -> Done {
        self.saved.iter().rev().try_for_each(|register| self.asm.pop(*register))?;
        Ok(())
    }

    /// Reads, counts, and records.
    fn work(&mut self, work: &Work) -> Done {
        match &work.groups {
            _ if !work.reads.is_empty() => self.reading(work),
            None => self.count_and_record(work),
            Some(groups) => {
                self.area = groups.area();
                self.asm.sub(rsp, imm(self.area)?)?;
                self.count_and_record(work)?;
                self.asm.add(rsp, imm(self.area)?)?;
                self.area = 0;
                Ok(())
            }
        }
    }

    fn count_and_record(&mut self, work: &Work) -> Done {
        let (mut next, mut open) = (self.asm.create_label(), self.asm.create_label());
        if let Some(condition) = &work.condition {
            self.branch(condition, Branch { wanted: false, to: next, open })?;
        }
        self.count_hit(work.probe)?;
        if let Some(groups) = &work.groups {
            self.group(work, groups, next)?;
        }
        if let Some(registers) = &work.record {
            self.record(work, registers, next)?;
        }
        // Whether it would have counted depends on more of a string than has been read.
        if work.condition.as_ref().is_some_and(HitCondition::may_stay_open) {
            self.asm.jmp(next)?;
            self.asm.set_label(&mut open)?;
            self.count(Code::Inc_rm64, UNREAD, work.probe)?;
        }
        self.asm.set_label(&mut next)?;
        // A label is of an instruction.
        self.asm.zero_bytes()?;
        Ok(())
    }

    /// Where the value of a register at the hit is: in itself, or in rax.
    fn register(&mut self, register: Register) -> Result<AsmRegister64, NoStub> {
        let itself = match register {
            Register::Rax => rax,
            Register::Rbx => rbx,
            Register::Rcx => rcx,
            Register::Rdx => rdx,
            Register::Rsi => rsi,
            Register::Rdi => rdi,
            Register::Rbp => rbp,
            Register::R8 => r8,
            Register::R9 => r9,
            Register::R10 => r10,
            Register::R11 => r11,
            Register::R12 => r12,
            Register::R13 => r13,
            Register::R14 => r14,
            Register::R15 => r15,
            Register::Rsp => {
                // At a return, that is as it will be behind it.
                let popped = if self.site.is_some() { 0 } else { 8 };
                self.asm.lea(rax, qword_ptr(rsp + self.pushed() + 8 + popped))?;
                return Ok(rax);
            }
            Register::Rflags => {
                self.asm.mov(rax, qword_ptr(rsp + self.pushed()))?;
                return Ok(rax);
            }
            Register::Rip => {
                match self.site {
                    Some(site) => self.asm.mov(rax, site.0)?,
                    None => self.asm.mov(rax, qword_ptr(rbx + instance::CALLER))?,
                }
                return Ok(rax);
            }
        };
        match self.saved.iter().rev().position(|saved| *saved == itself) {
            Some(depth) => {
                self.asm.mov(rax, qword_ptr(rsp + (self.area + 8 * depth as u64)))?;
                Ok(rax)
            }
            None => Ok(itself),
        }
    }

    /// Bytes of the stack behind the flags.
    fn pushed(&self) -> u64 {
        8 * self.saved.len() as u64 + self.area
    }
}

/// In the CPU's own area.
fn own(at: AsmMemoryOperand) -> AsmMemoryOperand {
    at.gs()
}

/// An offset from GS's base as a displacement of 32 bits, which the CPU extends by its sign.
fn displacement(offset: u64) -> Result<u64, NoStub> {
    let fits = i32::try_from(offset.cast_signed());
    fits.map(|_| offset).map_err(|_| NoStub(format!("{offset:#x} is too far from a CPU's own area")))
}

/// A number as an immediate or a displacement of 32 bits.
fn imm(number: u64) -> Result<i32, NoStub> {
    i32::try_from(number).map_err(|_| NoStub(format!("{number:#x} is too large")))
}

fn rip_relative(at: Gva) -> MemoryOperand {
    MemoryOperand::with_base_displ_size(iced_x86::Register::RIP, at.0.cast_signed(), 8)
}

#[cfg(test)]
mod tests;
