//! What an instruction is about to store, found before it does.
//!
//! The instruction is carried out on registers and memory that only remember what is written. Who asks decides what becomes of that.

use crate::addr::{Gpa, Gva};
use crate::insn::decode;
use crate::insn::emulate::{Emulation, Segments};
use crate::insn::operand::general;
use crate::memory::{NoMemory, PhysMemory};
use crate::paging::{Access, AddressSpace, PageFault};
use crate::regs::Regs;
use crate::regs::rflags::DF;
use crate::virt_memory::VirtMemory;
use iced_x86::{
    Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register as X86Register, UsedMemory,
};
use std::cell::RefCell;

const PAGE: u64 = 4096;
/// The longest instruction, in bytes.
const LONGEST: usize = 15;
/// So many bytes of a string are stored in one piece wherever a page ends: the kernel changes no more of its text at once.
const LONGEST_PIECE: u64 = 16;

/// An instruction, or as many steps of one that repeats as stay in a page, and what comes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// What it stores, in its order.
    pub writes: Vec<Write>,
    /// The registers behind it.
    pub regs: Regs,
}

/// Bytes that are stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Where (GPA). They lie in one page.
    pub at: Gpa,
    /// What.
    pub bytes: Vec<u8>,
}

/// What an instruction is about to store is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAttempt {
    /// RIP is not at an instruction that can be read.
    #[error("there is no instruction")]
    NoInstruction,
    /// Its operands are not written: an exception that it raises, or a walk of the page tables, writes.
    #[error("`{0}` does not store there")]
    StoresElsewhere(String),
    /// The host does not carry it out.
    #[error("the host does not carry out `{0}`")]
    NotCarriedOut(String),
}

/// The instruction at RIP, which `is_sealed` keeps from being carried out: it says that of bytes in guest-physical memory.
///
/// Stores to pages that the guest's page tables make read-only are taken as well: where the guest's CPU has come to the page, CR0.WP
/// is clear.
///
/// # Errors
/// [`NoAttempt`], a sentence's end.
pub fn attempt<M: PhysMemory + ?Sized>(
    regs: &Regs,
    phys: &M,
    space: AddressSpace,
    segments: &Segments,
    is_sealed: impl Fn(Gpa, usize) -> bool,
) -> Result<Attempt, NoAttempt> {
    let space = space.ignoring_read_only();
    let memory = VirtMemory::new(phys, space);
    let instruction = instruction(regs, &memory).ok_or(NoAttempt::NoInstruction)?;
    let text = || decode::text(&instruction);
    let mut parts = stores(&instruction, regs, segments).into_iter().flat_map(parts);
    let is_there = |(at, length)| memory.translate(at, Access::Write).is_ok_and(|at| is_sealed(at, length));
    if !parts.any(is_there) {
        return Err(NoAttempt::StoresElsewhere(text()));
    }
    let phys = Remembering { below: phys, writes: RefCell::default() };
    let remembered = VirtMemory::new(&phys, space);
    let mut after = *regs;
    let done = match StringStore::of(&instruction) {
        Some(string) => string.step(&instruction, &mut after, &remembered).is_ok(),
        None => Emulation::new(&instruction)
            .is_some_and(|emulation| emulation.execute(&mut after, &remembered, segments).is_ok()),
    };
    if !done {
        return Err(NoAttempt::NotCarriedOut(text()));
    }
    Ok(Attempt { writes: phys.writes.into_inner(), regs: after })
}

fn instruction<M: PhysMemory + ?Sized>(regs: &Regs, memory: &VirtMemory<'_, M>) -> Option<Instruction> {
    let at = Gva(regs.rip);
    let mut bytes = [0; LONGEST];
    // The next page may not be there, and need not.
    let here = (PAGE - at.0 % PAGE).min(LONGEST as u64) as usize;
    let read = match memory.read(at, &mut bytes) {
        Ok(()) => LONGEST,
        Err(_) => memory.read(at, bytes.get_mut(..here)?).ok().map(|()| here)?,
    };
    decode::decode(bytes.get(..read)?, at)
}

/// Where the operands are that `instruction` writes, and how long they are.
fn stores(instruction: &Instruction, regs: &Regs, segments: &Segments) -> Vec<(Gva, u64)> {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(instruction);
    let is_written = |used: &&UsedMemory| {
        use OpAccess::{CondWrite, ReadCondWrite, ReadWrite, Write};
        matches!(used.access(), Write | CondWrite | ReadWrite | ReadCondWrite)
    };
    let place = |used: &UsedMemory| {
        let at = used.virtual_address(0, |register, _, _| value(register, regs, segments))?;
        // What XSAVE writes has no one length.
        let length = used.memory_size().size() as u64;
        Some((Gva(at), if length == 0 { PAGE } else { length }))
    };
    info.used_memory().iter().filter(is_written).filter_map(place).collect()
}

/// The value of a register that an address is made of.
fn value(register: X86Register, regs: &Regs, segments: &Segments) -> Option<u64> {
    let whole = match register {
        X86Register::FS => segments.fs_base,
        X86Register::GS => segments.gs_base,
        X86Register::ES | X86Register::CS | X86Register::SS | X86Register::DS => 0,
        _ => general(register)?.of(regs),
    };
    Some(if register.is_gpr32() { whole & 0xffff_ffff } else { whole })
}

/// The parts of an operand in one page each.
fn parts((at, length): (Gva, u64)) -> impl Iterator<Item = (Gva, usize)> {
    let first = length.min(PAGE - at.0 % PAGE);
    let rest = (length - first).min(PAGE);
    [(at, first as usize), (at.add(first), rest as usize)].into_iter().filter(|(_, length)| *length > 0)
}

/// `movs` and `stos` with RDI, RSI and RCX.
struct StringStore {
    size: u64,
    copies: bool,
}

impl StringStore {
    fn of(instruction: &Instruction) -> Option<Self> {
        use Mnemonic::{Movsb, Movsd, Movsq, Movsw, Stosb, Stosd, Stosq, Stosw};
        if instruction.op0_kind() != OpKind::MemoryESRDI || instruction.has_segment_prefix() {
            return None;
        }
        let (size, copies) = match instruction.mnemonic() {
            Movsb => (1, true),
            Movsw => (2, true),
            Movsd => (4, true),
            Movsq => (8, true),
            Stosb => (1, false),
            Stosw => (2, false),
            Stosd => (4, false),
            Stosq => (8, false),
            _ => return None,
        };
        Some(Self { size, copies })
    }

    /// As many steps as have their first byte in the page of the first one, and the others as well where all of them are few bytes.
    fn step<M: PhysMemory + ?Sized>(
        &self,
        instruction: &Instruction,
        regs: &mut Regs,
        memory: &VirtMemory<'_, M>,
    ) -> Result<(), PageFault> {
        let repeats = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        let is_down = regs.rflags & DF != 0;
        let inside = regs.rdi % PAGE;
        let room = if is_down { inside / self.size + 1 } else { (PAGE - inside).div_ceil(self.size) };
        let steps = match regs.rcx {
            _ if !repeats => 1,
            all if self.is_piece(all, regs.rdi, is_down, memory) => all,
            all => all.min(room),
        };
        let size = self.size as usize;
        for _ in 0..steps {
            let mut bytes = regs.rax.to_le_bytes();
            let bytes = bytes.get_mut(..size).unwrap_or_default();
            if self.copies {
                memory.read(Gva(regs.rsi), bytes)?;
            }
            for (at, length) in parts((Gva(regs.rdi), self.size)) {
                let gpa = memory.translate(at, Access::Write)?;
                let from = at.0.wrapping_sub(regs.rdi) as usize;
                let part = bytes.get(from..from + length).unwrap_or_default();
                let nothing = |_| PageFault { at, code: 2, canonical: true };
                memory.phys.write(gpa, part).map_err(nothing)?;
            }
            let on = |at: u64| if is_down { at.wrapping_sub(self.size) } else { at.wrapping_add(self.size) };
            regs.rdi = on(regs.rdi);
            if self.copies {
                regs.rsi = on(regs.rsi);
            }
            if repeats {
                regs.rcx -= 1;
            }
        }
        if !repeats || regs.rcx == 0 {
            regs.rip = instruction.next_ip();
        }
        Ok(())
    }
}

impl StringStore {
    /// Whether so many steps from `at` on store few bytes, all of which can be stored.
    fn is_piece<M: PhysMemory + ?Sized>(
        &self,
        steps: u64,
        at: u64,
        is_down: bool,
        memory: &VirtMemory<'_, M>,
    ) -> bool {
        if steps == 0 || steps > LONGEST_PIECE / self.size {
            return false;
        }
        let before_last = (steps - 1) * self.size;
        let last = if is_down { at.wrapping_sub(before_last) } else { at.wrapping_add(before_last) };
        memory.translate(Gva(last), Access::Write).is_ok()
    }
}

/// Memory in which nothing is written: what would be is remembered, and read again.
struct Remembering<'a, M: ?Sized> {
    below: &'a M,
    writes: RefCell<Vec<Write>>,
}

impl<M: PhysMemory + ?Sized> PhysMemory for Remembering<'_, M> {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        self.below.read(at, buf)?;
        let length = buf.len() as u64;
        for Write { at: written, bytes } in &*self.writes.borrow() {
            for (byte, gpa) in bytes.iter().zip(written.0..) {
                let index = gpa.wrapping_sub(at.0);
                if index < length
                    && let Some(place) = buf.get_mut(index as usize)
                {
                    *place = *byte;
                }
            }
        }
        Ok(())
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
        // There is memory.
        self.below.read(at, &mut vec![0; bytes.len()])?;
        let mut writes = self.writes.borrow_mut();
        match writes.last_mut() {
            // The steps of one instruction are one write.
            Some(last) if last.at.add(last.bytes.len() as u64) == at && !at.0.is_multiple_of(PAGE) => {
                last.bytes.extend_from_slice(bytes);
            }
            _ => writes.push(Write { at, bytes: bytes.to_vec() }),
        }
        Ok(())
    }

    /// Page tables are marked so, as the guest's CPU does when it walks them.
    fn compare_exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, NoMemory> {
        self.below.compare_exchange(at, old, new)
    }
}

#[cfg(test)]
mod tests;
