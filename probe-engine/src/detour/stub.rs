//! The code that a detour leads to.
//!
//! ```text
//!         pushfq
//!         cli
//! gate:   nop                     five bytes: a jump to `end` once the stub is retired, so that nobody counts here who is
//!                                 going to be counted elsewhere
//!         push ...
//!         lock inc [hits]         for each probe, if its condition holds; then its record
//!         pop ...
//! end:    test byte [rsp+1], 2    were interrupts on?
//!         jz quiet
//!         and byte [rsp+1], ~2
//!         popfq
//!         sti                     the CPU takes no interrupt behind it before the next instruction is over:
//!         jmp back                nothing comes between a hit and what is behind the site
//! quiet:  popfq
//!         jmp back
//! ```

use super::layout::{self, CELLS, DROPS, HEAD, HITS, Rings, TAIL, record};
use super::work::{Condition, Number, Origin, Work};
use crate::addr::Gva;
use crate::capture::Register;
use crate::capture::filter::{Order, Test};
use crate::linux::task::{self, COMM, TaskLayout};
use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, CodeLabel, byte_ptr, dword_ptr, eax, edx, qword_ptr, r8,
    r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::{BlockEncoderOptions, Code, IcedError, Instruction, MemoryOperand};
use std::ops::Range;

/// What a stub knows of the guest that it runs in.
#[derive(Debug, Clone, Copy)]
pub struct Guest {
    /// The data window (GVA).
    pub window: Gva,
    /// The rings in it.
    pub rings: Rings,
    /// Where a CPU keeps its number, in bytes from the start of its own area.
    pub cpu_number: u64,
    /// How the current task is found, and what is known of it.
    pub task: TaskLayout,
    /// What KASLR added to the kernel's link-time addresses.
    pub slide: u64,
}

/// A stub for one site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stub {
    /// Its code.
    pub code: Vec<u8>,
    /// Where the gate begins in it.
    gate: usize,
    /// Where the end begins.
    end: usize,
}

/// The stub of one probe that only counts, without what depends on where it is.
const COUNT: [u8; 40] = [
    0x9c, 0xfa, // pushfq; cli
    0x0f, 0x1f, 0x44, 0x00, 0x00, // gate
    0xf0, 0x48, 0xff, 0x05, 0, 0, 0, 0, // lock inc qword [rip + hits]
    0xf6, 0x44, 0x24, 0x01, 0x02, // test byte [rsp + 1], 2
    0x74, 0x0c, // jz quiet
    0x80, 0x64, 0x24, 0x01, 0xfd, // and byte [rsp + 1], ~2
    0x9d, 0xfb, // popfq; sti
    0xe9, 0, 0, 0, 0,    // jmp back
    0x9d, // quiet: popfq
    0xe9, 0, 0, 0, 0, // jmp back
];
/// Where in it the distances are: to the counter, and back.
const COUNT_HITS: usize = 11;
const COUNT_BACK: [usize; 2] = [30, 36];

/// No stub is longer, in bytes.
const LONGEST: usize = 4096;

/// Bytes of a jump, and of the gate.
pub const JUMP: usize = 5;

/// A stub cannot be assembled: it is too far from where it has to lead, or too long.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no detour can be assembled for it: {0}")]
pub struct NoStub(String);

impl From<IcedError> for NoStub {
    fn from(error: IcedError) -> Self {
        Self(error.to_string())
    }
}

/// The `jmp rel32` at `at` that leads to `to`.
///
/// # Errors
/// [`NoStub`] when it is too far.
pub fn jump(at: Gva, to: Gva) -> Result<[u8; JUMP], NoStub> {
    const JMP_REL32: u8 = 0xe9;
    let distance = to.0.wrapping_sub(at.add(JUMP as u64).0).cast_signed();
    let distance = i32::try_from(distance).map_err(|_| NoStub(format!("{to} is too far from {at}")))?;
    let [a, b, c, d] = distance.to_le_bytes();
    Ok([JMP_REL32, a, b, c, d])
}

impl Stub {
    /// The stub at `at` for a site at `site` that is a nop and leads on at `back`.
    ///
    /// # Errors
    /// [`NoStub`].
    pub fn assemble(guest: &Guest, at: Gva, site: Gva, back: Gva, works: &[Work]) -> Result<Self, NoStub> {
        // What does not reach would become a branch through memory.
        jump(at, back)?;
        jump(at.add(LONGEST as u64), back)?;
        match works {
            [Work { probe, condition: None, record: None }] => Self::count(guest, at, back, *probe),
            _ => Self::assemble_any(guest, at, site, back, works),
        }
    }

    /// One that only counts, which is what tens of thousands of functions get at a time.
    fn count(guest: &Guest, at: Gva, back: Gva, probe: u32) -> Result<Self, NoStub> {
        let mut code = COUNT.to_vec();
        let mut lead = |field: usize, to: Gva| -> Done {
            let [_, distance @ ..] = jump(at.add(field as u64 - 1), to)?;
            code.iter_mut().skip(field).zip(distance).for_each(|(to, from)| *to = from);
            Ok(())
        };
        lead(COUNT_HITS, guest.window.add(HITS).add(8 * u64::from(probe)))?;
        COUNT_BACK.into_iter().try_for_each(|field| lead(field, back))?;
        Ok(Self { code, gate: 2, end: COUNT_HITS + 4 })
    }

    fn assemble_any(guest: &Guest, at: Gva, site: Gva, back: Gva, works: &[Work]) -> Result<Self, NoStub> {
        let mut code = Assembler { asm: CodeAssembler::new(64)?, guest, site, saved: &[] };
        let (mut gate, mut end) = (code.asm.create_label(), code.asm.create_label());
        code.begin(&mut gate)?;
        if works.iter().any(|work| work.record.is_some() || work.condition.is_some()) {
            code.save(&[rax, rcx, rdx, r8])?;
        }
        for work in works {
            code.work(work)?;
        }
        code.restore()?;
        code.end(back, &mut end)?;
        let done = code.asm.assemble_options(at.0, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
        let offset = |label: &CodeLabel| -> Result<usize, NoStub> {
            Ok(done.label_ip(label)?.wrapping_sub(at.0) as usize)
        };
        let (gate, end, code) = (offset(&gate)?, offset(&end)?, done.inner.code_buffer);
        match code.len() {
            0..=LONGEST => Ok(Self { code, gate, end }),
            _ => Err(NoStub("so many probes stand here".to_owned())),
        }
    }

    /// No stub for these takes more bytes.
    #[must_use]
    pub fn most_bytes(works: &[Work]) -> usize {
        let of = |work: &Work| match (&work.condition, &work.record) {
            (None, None) => 16,
            (None, Some(_)) => 512,
            (Some(_), _) => LONGEST,
        };
        (64 + works.iter().map(of).sum::<usize>()).min(LONGEST)
    }

    /// Where in the code its gate is, and what shuts it: whoever comes there afterwards does nothing.
    ///
    /// # Errors
    /// Never.
    pub fn shut(&self) -> Result<(usize, [u8; JUMP]), NoStub> {
        Ok((self.gate, jump(Gva(self.gate as u64), Gva(self.end as u64))?))
    }

    /// Where a CPU is that has passed the gate of this stub at `at`, and has not left.
    #[must_use]
    pub fn passed(&self, at: Gva) -> Range<Gva> {
        at.add((self.gate + JUMP) as u64)..at.add(self.code.len() as u64)
    }
}

struct Assembler<'a> {
    asm: CodeAssembler,
    guest: &'a Guest,
    site: Gva,
    /// What has been pushed behind the flags, in this order.
    saved: &'static [AsmRegister64],
}

type Done = Result<(), NoStub>;

impl Assembler<'_> {
    fn begin(&mut self, gate: &mut CodeLabel) -> Done {
        self.asm.pushfq()?;
        self.asm.cli()?;
        self.asm.set_label(gate)?;
        self.asm.db(&[0x0f, 0x1f, 0x44, 0x00, 0x00])?;
        Ok(())
    }

    fn save(&mut self, registers: &'static [AsmRegister64]) -> Done {
        self.saved = registers;
        registers.iter().try_for_each(|register| self.asm.push(*register))?;
        Ok(())
    }

    fn restore(&mut self) -> Done {
        self.saved.iter().rev().try_for_each(|register| self.asm.pop(*register))?;
        Ok(())
    }

    fn end(&mut self, back: Gva, end: &mut CodeLabel) -> Done {
        const INTERRUPTS: u32 = 2;
        let mut quiet = self.asm.create_label();
        self.asm.set_label(end)?;
        self.asm.test(byte_ptr(rsp + 1), INTERRUPTS)?;
        self.asm.jz(quiet)?;
        self.asm.and(byte_ptr(rsp + 1), !INTERRUPTS as i8 as i32)?;
        self.asm.popfq()?;
        self.asm.sti()?;
        self.asm.jmp(back.0)?;
        self.asm.set_label(&mut quiet)?;
        self.asm.popfq()?;
        self.asm.jmp(back.0)?;
        Ok(())
    }

    /// Counts, and records.
    fn work(&mut self, work: &Work) -> Done {
        let mut next = self.asm.create_label();
        if let Some(condition) = &work.condition {
            self.branch(condition, false, next)?;
        }
        self.increment(HITS, work.probe)?;
        if let Some(registers) = &work.record {
            self.record(work.probe, registers, next)?;
        }
        self.asm.set_label(&mut next)?;
        // A label is of an instruction.
        self.asm.zero_bytes()?;
        Ok(())
    }

    /// `lock inc` of a counter: another CPU may count the same probe.
    fn increment(&mut self, table: u64, probe: u32) -> Done {
        let at = self.guest.window.add(table).add(8 * u64::from(probe));
        let mut inc = Instruction::with1(Code::Inc_rm64, rip_relative(at))?;
        inc.set_has_lock_prefix(true);
        self.asm.add_instruction(inc)?;
        Ok(())
    }

    fn record(&mut self, probe: u32, registers: &[Register], next: CodeLabel) -> Done {
        let Guest { window, rings, cpu_number, .. } = *self.guest;
        let cells = layout::cells_of(registers.len());
        let (mut full, mut again) = (self.asm.create_label(), self.asm.create_label());
        // The ring of this CPU. Its number is the guest's word.
        self.asm.mov(eax, own(dword_ptr(displacement(cpu_number)?)))?;
        self.asm.cmp(eax, rings.cpus.cast_signed())?;
        self.asm.jae(full)?;
        self.asm.imul_3(eax, eax, imm(rings.stride)?)?;
        self.asm.add_instruction(Instruction::with2(
            Code::Lea_r64_m,
            iced_x86::Register::RCX,
            rip_relative(window.add(rings.offset(0))),
        )?)?;
        self.asm.add(rcx, rax)?;
        // Claims its cells. No other CPU does in this ring, but an NMI may: then it is tried again.
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
        self.asm.rdtsc()?;
        self.asm.shl(rdx, 32u32)?;
        self.asm.or(rax, rdx)?;
        self.asm.mov(qword_ptr(rcx + record::TICKS), rax)?;
        self.asm.mov(dword_ptr(rcx + record::PROBE), layout::head(probe, cells).cast_signed())?;
        let arguments = (0..6).filter_map(Register::of_argument);
        let places = (record::ARGUMENTS..).step_by(8).zip(arguments);
        let others = (record::REGISTERS..).step_by(8).zip(registers.iter().copied());
        for (at, register) in places.chain(others) {
            let value = self.register(register)?;
            self.asm.mov(qword_ptr(rcx + at), value)?;
        }
        self.task()?;
        self.asm.mov(qword_ptr(rcx + record::SEQUENCE), r8)?;
        self.asm.jmp(next)?;
        self.asm.set_label(&mut full)?;
        self.increment(DROPS, probe)
    }

    /// Notes the current task down, in the record at rcx.
    fn task(&mut self) -> Done {
        let TaskLayout { current, preempt_count, comm, pid, tgid, user, namespace } = self.guest.task;
        if let Some(at) = preempt_count {
            self.asm.mov(eax, own(dword_ptr(displacement(at)?)))?;
        } else {
            self.asm.xor(eax, eax)?;
        }
        self.asm.mov(dword_ptr(rcx + record::PREEMPT_COUNT), eax)?;
        self.asm.mov(rdx, own(qword_ptr(displacement(current.offset)?)))?;
        self.asm.mov(qword_ptr(rcx + record::TASK), rdx)?;
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
                self.asm.lea(rax, qword_ptr(rsp + self.pushed() + 8))?;
                return Ok(rax);
            }
            Register::Rflags => {
                self.asm.mov(rax, qword_ptr(rsp + self.pushed()))?;
                return Ok(rax);
            }
            Register::Rip => {
                self.asm.mov(rax, self.site.0)?;
                return Ok(rax);
            }
        };
        match self.saved.iter().rev().position(|saved| *saved == itself) {
            Some(depth) => {
                self.asm.mov(rax, qword_ptr(rsp + 8 * depth as u64))?;
                Ok(rax)
            }
            None => Ok(itself),
        }
    }

    /// Bytes pushed behind the flags.
    fn pushed(&self) -> u64 {
        8 * self.saved.len() as u64
    }

    /// Goes to `to` if the condition is `wanted`, and falls through otherwise. Uses rax, rcx and rdx.
    fn branch(&mut self, condition: &Condition, wanted: bool, to: CodeLabel) -> Done {
        match condition {
            Condition::Not(condition) => self.branch(condition, !wanted, to),
            Condition::All(all) => self.branch_each(all, false, wanted, to),
            Condition::Any(any) => self.branch_each(any, true, wanted, to),
            Condition::Comm(equal, text) => self.branch_on_comm(text, *equal == wanted, to),
            Condition::Number(number, test) => {
                self.number(number)?;
                self.branch_on_rax(test, number.is_signed, wanted, to)
            }
        }
    }

    /// One of `conditions` that is `decisive` decides.
    fn branch_each(&mut self, conditions: &[Condition], decisive: bool, wanted: bool, to: CodeLabel) -> Done {
        if wanted == decisive {
            return conditions.iter().try_for_each(|condition| self.branch(condition, decisive, to));
        }
        let mut decided = self.asm.create_label();
        conditions.iter().try_for_each(|condition| self.branch(condition, decisive, decided))?;
        self.asm.jmp(to)?;
        self.asm.set_label(&mut decided)?;
        self.asm.zero_bytes()?;
        Ok(())
    }

    /// Loads a number into rax, extended to 64 bits.
    fn number(&mut self, number: &Number) -> Done {
        match number.from {
            Origin::Register(register) => {
                let value = self.register(register)?;
                if value != rax {
                    self.asm.mov(rax, value)?;
                }
            }
            Origin::Constant(value) => self.asm.mov(rax, value)?,
            Origin::Kernel(link) => self.asm.mov(rax, link.add(self.guest.slide).0)?,
            Origin::Pid => {
                self.asm.mov(rax, own(qword_ptr(displacement(self.guest.task.current.offset)?)))?;
                self.asm.mov(eax, dword_ptr(rax + imm(self.guest.task.pid)?))?;
            }
            Origin::Cpu => self.asm.mov(eax, own(dword_ptr(displacement(self.guest.cpu_number)?)))?,
        }
        let (low, width) = (u32::from(number.low), u32::from(number.width).clamp(1, 64));
        let unused = 64 - width;
        if let above @ 1.. = unused.saturating_sub(low) {
            self.asm.shl(rax, above)?;
        }
        match (unused, number.is_signed) {
            (0, _) => {}
            (_, true) => self.asm.sar(rax, unused)?,
            (_, false) => self.asm.shr(rax, unused)?,
        }
        Ok(())
    }

    fn branch_on_rax(&mut self, test: &Test, is_signed: bool, wanted: bool, to: CodeLabel) -> Done {
        match test {
            Test::Number(order, than) => self.branch_on_order(*order, *than, is_signed, wanted, to),
            Test::Bits(bits) => {
                self.asm.mov(rdx, *bits)?;
                self.asm.test(rax, rdx)?;
                if wanted {
                    self.asm.jnz(to)?
                } else {
                    self.asm.jz(to)?
                }
                Ok(())
            }
            Test::Among(ranges) => {
                let (mut inside, mut end) = (self.asm.create_label(), self.asm.create_label());
                for Range { start, end } in ranges {
                    let mut next = self.asm.create_label();
                    self.asm.mov(edx, start.cast_signed())?;
                    self.asm.cmp(rax, rdx)?;
                    self.asm.jb(next)?;
                    self.asm.mov(edx, end.cast_signed())?;
                    self.asm.cmp(rax, rdx)?;
                    self.asm.jb(if wanted { to } else { inside })?;
                    self.asm.set_label(&mut next)?;
                    self.asm.zero_bytes()?;
                }
                self.asm.jmp(if wanted { end } else { to })?;
                self.asm.set_label(&mut inside)?;
                self.asm.zero_bytes()?;
                self.asm.set_label(&mut end)?;
                self.asm.zero_bytes()?;
                Ok(())
            }
            // They are conditions of their own.
            Test::Text(..) | Test::Glob(_) => Err(NoStub("a comparison of strings".to_owned())),
        }
    }

    fn branch_on_order(
        &mut self,
        order: Order,
        than: i128,
        is_signed: bool,
        wanted: bool,
        to: CodeLabel,
    ) -> Done {
        let known =
            if is_signed { i64::try_from(than).ok() } else { u64::try_from(than).ok().map(u64::cast_signed) };
        let Some(than_bits) = known else {
            // Beyond what the number can be, on one side or the other.
            let is_above = than > 0;
            let holds = match order {
                Order::Equal => false,
                Order::NotEqual => true,
                Order::Less | Order::LessOrEqual => is_above,
                Order::Greater | Order::GreaterOrEqual => !is_above,
            };
            if holds == wanted {
                self.asm.jmp(to)?;
            }
            return Ok(());
        };
        self.asm.mov(rdx, than_bits.cast_unsigned())?;
        self.asm.cmp(rax, rdx)?;
        let order = match (order, wanted) {
            (order, true) => order,
            (Order::Equal, false) => Order::NotEqual,
            (Order::NotEqual, false) => Order::Equal,
            (Order::Less, false) => Order::GreaterOrEqual,
            (Order::LessOrEqual, false) => Order::Greater,
            (Order::Greater, false) => Order::LessOrEqual,
            (Order::GreaterOrEqual, false) => Order::Less,
        };
        match (order, is_signed) {
            (Order::Equal, _) => self.asm.je(to)?,
            (Order::NotEqual, _) => self.asm.jne(to)?,
            (Order::Less, true) => self.asm.jl(to)?,
            (Order::LessOrEqual, true) => self.asm.jle(to)?,
            (Order::Greater, true) => self.asm.jg(to)?,
            (Order::GreaterOrEqual, true) => self.asm.jge(to)?,
            (Order::Less, false) => self.asm.jb(to)?,
            (Order::LessOrEqual, false) => self.asm.jbe(to)?,
            (Order::Greater, false) => self.asm.ja(to)?,
            (Order::GreaterOrEqual, false) => self.asm.jae(to)?,
        }
        Ok(())
    }

    /// Goes to `to` if whether the task's name is `text` is `wanted`: its bytes with a NUL behind them, if there is room.
    fn branch_on_comm(&mut self, text: &str, wanted: bool, to: CodeLabel) -> Done {
        let mut bytes = text.as_bytes().to_vec();
        if bytes.len() > COMM {
            if !wanted {
                self.asm.jmp(to)?;
            }
            return Ok(());
        }
        if bytes.len() < COMM {
            bytes.push(0);
        }
        let mut differs = self.asm.create_label();
        self.asm.mov(rax, own(qword_ptr(displacement(self.guest.task.current.offset)?)))?;
        for (n, part) in (0..).zip(bytes.chunks(8)) {
            let name = part.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
            let unused = 64 - 8 * part.len() as u32;
            self.asm.mov(rcx, qword_ptr(rax + imm(self.guest.task.comm + 8 * n)?))?;
            self.asm.mov(rdx, name << unused)?;
            if unused > 0 {
                self.asm.shl(rcx, unused)?;
            }
            self.asm.cmp(rcx, rdx)?;
            self.asm.jne(if wanted { differs } else { to })?;
        }
        if wanted {
            self.asm.jmp(to)?;
        }
        self.asm.set_label(&mut differs)?;
        self.asm.zero_bytes()?;
        Ok(())
    }
}

/// What is not known, as `mov` takes it.
const UNKNOWN: u64 = layout::UNKNOWN;

/// In the CPU's own area.
fn own(at: AsmMemoryOperand) -> AsmMemoryOperand {
    at.gs()
}

/// An address as a displacement of 32 bits.
fn displacement(at: u64) -> Result<u64, NoStub> {
    i32::try_from(at).map(|_| at).map_err(|_| NoStub(format!("{at:#x} is no offset in a CPU's area")))
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
