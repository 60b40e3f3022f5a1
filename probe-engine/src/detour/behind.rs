//! Where a CPU goes on that is in the code of a detour, and with what: whoever looks at it looks for the kernel there, and for
//! its stack.
//!
//! A stub puts back all that it has used, and each way out of it does the same to the stack: one of them is followed, for what it
//! does there and for what comes from there. Nothing is written.

use super::stub::{RET, SAVED};
use crate::addr::Gva;
use crate::insn::decode::decode;
use crate::insn::operand::general;
use crate::memory::PhysMemory;
use crate::regs::{Regs, rflags};
use crate::virt_memory::VirtMemory;
use iced_x86::{FlowControl, Instruction, MemorySize, Mnemonic, Register};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// No way out is longer, in instructions.
const LONGEST: usize = 4 << 10;
/// Nor has one more words on the stack that are not there yet, or more branches. The code is ours, but the guest may have mapped
/// another page in its place.
const MOST_PUSHED: usize = 64;
const MOST_BRANCHES: usize = 512;

/// The registers behind the stub in which a CPU is with `regs`. `own` gives the bytes of an instruction of ours, and none of
/// others; `leave` is where [the code](super::stub::leave) lies that all trampolines lead to; `original` says what an instruction was
/// moved or copied from, and where a trampoline leads. `None` where the way out cannot be followed.
#[must_use]
pub fn behind<M: PhysMemory + ?Sized>(
    regs: &Regs,
    memory: &VirtMemory<'_, M>,
    own: impl Fn(Gva) -> Option<Vec<u8>>,
    leave: &Range<Gva>,
    original: impl Fn(Gva) -> Option<Gva>,
) -> Option<Regs> {
    let mut way = Way { at: *regs, pushed: HashMap::new(), memory, has_tested: true, others: Vec::new() };
    let mut passed = HashSet::new();
    for _ in 0..LONGEST {
        let at = Gva(way.at.rip);
        if let Some(original) = original(at) {
            return Some(Regs { rip: original.0, ..way.at });
        }
        let Some(code) = own(at) else { return Some(way.at) };
        let instruction = decode(&code, at)?;
        let is_way_out = at.is_in(leave) && instruction.mnemonic() == Mnemonic::Jmp;
        let is_passed = if is_way_out { way.put_back(at == ret(leave)) } else { way.pass(&instruction) };
        if !passed.insert(at) || is_passed.is_none() {
            // Round and round, or to where nothing says how it goes on.
            (way.at, way.pushed) = way.others.pop()?;
        }
    }
    None
}

/// Where code of ours returns.
fn ret(leave: &Range<Gva>) -> Gva {
    leave.start.add(RET as u64)
}

struct Way<'a, M: PhysMemory + ?Sized> {
    at: Regs,
    /// What would be on the stack by now, by its address (GVA).
    pushed: HashMap<u64, u64>,
    memory: &'a VirtMemory<'a, M>,
    /// Whether the flags are those that the stub has here: at first, and behind a look at the stack.
    has_tested: bool,
    /// Branches that were not taken, and what was on the stack there.
    others: Vec<(Regs, HashMap<u64, u64>)>,
}

impl<M: PhysMemory + ?Sized> Way<'_, M> {
    fn pass(&mut self, instruction: &Instruction) -> Option<()> {
        self.at.rip = instruction.next_ip();
        let has_tested = std::mem::take(&mut self.has_tested);
        let writes_rsp = instruction.op0_register() == Register::RSP;
        let on_stack =
            instruction.memory_base() == Register::RSP && instruction.memory_size() == MemorySize::UInt8;
        match instruction.mnemonic() {
            Mnemonic::Push => {
                // What is no register is not put back.
                let value = general(instruction.op0_register()).map_or(0, |register| register.of(&self.at));
                self.push(value)?;
            }
            Mnemonic::Pushfq => self.push(self.at.rflags)?,
            Mnemonic::Pop => {
                let (value, to) = (self.pop()?, general(instruction.op0_register())?);
                *to.slot(&mut self.at) = value;
            }
            Mnemonic::Popfq => self.at.rflags = self.pop()?,
            Mnemonic::Ret => self.at.rip = self.pop()?,
            Mnemonic::Add if writes_rsp => self.at.rsp = self.at.rsp.wrapping_add(distance(instruction)?),
            Mnemonic::Sub if writes_rsp => self.at.rsp = self.at.rsp.wrapping_sub(distance(instruction)?),
            Mnemonic::Cmp => {}
            _ if writes_rsp => return None,
            // Whether interrupts were on, in the flags that were pushed.
            Mnemonic::Test if on_stack => {
                let is_zero = self.byte(instruction)? & u64::from(instruction.immediate8()) == 0;
                self.at.rflags = self.at.rflags & !rflags::ZF | if is_zero { rflags::ZF } else { 0 };
                self.has_tested = true;
            }
            Mnemonic::And if on_stack => {
                let cleared = u64::from(!instruction.immediate8()) << shift(instruction)?;
                let word = self.word(self.at.rsp)?;
                self.put(word & !cleared)?;
            }
            Mnemonic::Cli => self.at.rflags &= !rflags::IF,
            Mnemonic::Sti => self.at.rflags |= rflags::IF,
            Mnemonic::Je if has_tested && self.at.rflags & rflags::ZF != 0 => {
                self.at.rip = instruction.near_branch_target();
            }
            _ => match instruction.flow_control() {
                FlowControl::UnconditionalBranch => self.at.rip = instruction.near_branch_target(),
                FlowControl::ConditionalBranch if !has_tested && self.others.len() < MOST_BRANCHES => {
                    let taken = Regs { rip: instruction.near_branch_target(), ..self.at };
                    self.others.push((taken, self.pushed.clone()));
                }
                FlowControl::IndirectBranch => return None,
                _ => {}
            },
        }
        Some(())
    }

    /// The way from a trampoline leads to the stub of its instance, which puts all back that was saved and returns.
    fn put_back(&mut self, is_put_back: bool) -> Option<()> {
        if !is_put_back {
            for saved in SAVED.iter().rev() {
                *general((*saved).into())?.slot(&mut self.at) = self.pop()?;
            }
            self.at.rflags = self.pop()?;
        }
        self.at.rip = self.pop()?;
        Some(())
    }

    fn push(&mut self, value: u64) -> Option<()> {
        self.at.rsp = self.at.rsp.wrapping_sub(8);
        self.put(value)
    }

    /// `value` is on top of the stack now.
    fn put(&mut self, value: u64) -> Option<()> {
        self.pushed.insert(self.at.rsp, value);
        (self.pushed.len() <= MOST_PUSHED).then_some(())
    }

    fn pop(&mut self) -> Option<u64> {
        let value = self.word(self.at.rsp)?;
        self.at.rsp = self.at.rsp.wrapping_add(8);
        Some(value)
    }

    fn word(&self, at: u64) -> Option<u64> {
        self.pushed.get(&at).copied().or_else(|| self.memory.read_u64(Gva(at)).ok())
    }

    /// The byte of the word on top of the stack that the instruction looks at.
    fn byte(&self, instruction: &Instruction) -> Option<u64> {
        Some(self.word(self.at.rsp)? >> shift(instruction)? & 0xff)
    }
}

/// Where in the word on top of the stack the byte is, in bits.
fn shift(instruction: &Instruction) -> Option<u32> {
    let byte = u32::try_from(instruction.memory_displacement64()).ok()?;
    (byte < 8).then_some(8 * byte)
}

/// By how much RSP is moved.
fn distance(instruction: &Instruction) -> Option<u64> {
    instruction.try_immediate(1).ok()
}
