//! Doing on the host what an instruction would have done in the guest.
//!
//! Everything about the instruction is settled when the [`Emulation`] is made: operands are register indices,
//! immediates and absolute addresses. Executing it neither decodes nor allocates.
//!
//! Memory is reached through the page tables of the moment, as supervisor code: with CR4.SMAP pages of user mode are
//! closed while RFLAGS.AC is clear. It must be plain RAM. A load or store within one page is one access to
//! guest-physical memory, so that an aligned one can be made as atomic as the CPU's. An access that is allowed sets
//! the accessed and dirty flags that are not set yet, also where it turns out that there is no RAM: the guest's CPU
//! is about to do the same. An instruction with an exception-table entry expects its faults; that is the caller's
//! to refuse or to inject.

use super::access;
use super::fault::EmulationFault;
use super::flags::{Binary, Bit, Outcome, holds, multiply, unchanged};
use super::lower::EmulatedAction;
use super::operand::{Address, OperandPlace, RegisterPart, Segment, Source, Width};
use crate::addr::Gva;
use crate::memory::PhysMemory;
use crate::paging::Access;
use crate::regs::rflags::{AC, AF, CF, DF, ID, IF, IOPL, NT, OF, PF, RF, SF, TF, VM, ZF};
use crate::regs::{Register, Regs};
use crate::virt_memory::VirtMemory;
use iced_x86::{Instruction, OpKind, Register as X86Register};

/// Where `lahf` and `sahf` have the flags, and products of bytes their high half.
const AH: RegisterPart = RegisterPart { register: Register::Rax, width: Width::Byte, high: true };

/// The flags that they move.
const IN_AH: u64 = SF | ZF | AF | PF | CF;

/// Bit 1 of RFLAGS.
const ALWAYS_SET: u64 = 1 << 1;

/// The flags that `popfq` changes in kernel mode (SDM volume 2); it clears RF besides.
const POPPED: u64 = CF | PF | AF | ZF | SF | TF | IF | DF | OF | IOPL | NT | AC | ID;

/// The segment bases that 64-bit mode still adds (MSRs `IA32_FS_BASE` and `IA32_GS_BASE`): Linux keeps its
/// per-CPU variables at `gs:`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segments {
    /// Base of FS, a guest-virtual address.
    pub fs_base: u64,
    /// Base of GS, a guest-virtual address.
    pub gs_base: u64,
}

/// How the guest goes on behind an emulated instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passed {
    /// As ever.
    Plainly,
    /// With interrupts held off for one more instruction, as `sti` leaves them: the vCPU's interrupt shadow has to
    /// be set, or the guest's `sti; hlt` sleeps through an interrupt that comes between the two.
    InShadow,
}

/// One instruction, ready to be carried out on a vCPU that stopped in front of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Emulation {
    next: Gva,
    action: EmulatedAction,
    /// Whether it has an operand of which the base of a segment is a part.
    has_base: bool,
    /// Whether it has an operand in memory that is read or written.
    has_memory: bool,
}

impl Emulation {
    /// How to carry out `instruction`, decoded at the address it runs at; `None` when the host does not
    /// emulate it.
    pub(crate) fn new(instruction: &Instruction) -> Option<Self> {
        let has_base = matches!(instruction.segment_prefix(), X86Register::FS | X86Register::GS);
        let action = EmulatedAction::of(instruction)?;
        let reaches = !matches!(action, EmulatedAction::Nothing | EmulatedAction::LoadAddress { .. });
        let has_memory = reaches && instruction.op_kinds().any(|kind| kind == OpKind::Memory);
        Some(Self { next: Gva(instruction.next_ip()), action, has_base, has_memory })
    }

    /// Whether the instruction reads or writes an operand in memory. What it pushes and pops is none.
    #[must_use]
    pub fn has_memory(&self) -> bool {
        self.has_memory
    }

    /// Whether the instruction has an operand of which the base of FS or GS is a part. The others ask for no base.
    #[must_use]
    pub fn has_base(&self) -> bool {
        self.has_base
    }

    /// Whether it is `sti`, which may leave an interrupt shadow.
    #[must_use]
    pub fn opens_shadow(&self) -> bool {
        self.action == EmulatedAction::SetFlag(IF)
    }

    /// Carries the instruction out: afterwards `regs` and memory are as the guest's CPU would have left them,
    /// RFLAGS.RF clear. With RFLAGS.TF set before, the CPU would raise #DB now; that is left to the caller.
    ///
    /// # Errors
    /// [`EmulationFault`]; neither registers nor memory have changed then, unless the store crosses from RAM into
    /// a page that is none.
    pub fn execute<M: PhysMemory + ?Sized>(
        &self,
        regs: &mut Regs,
        memory: &VirtMemory<'_, M>,
        segments: &Segments,
    ) -> Result<Passed, EmulationFault> {
        let mut cpu = EmulatedCpu { regs: *regs, memory, segments };
        cpu.regs.rip = self.next.0;
        cpu.regs.rflags &= !RF;
        cpu.run(&self.action)?;
        let opened = cpu.regs.rflags & !regs.rflags & IF != 0;
        *regs = cpu.regs;
        Ok(if opened && self.opens_shadow() { Passed::InShadow } else { Passed::Plainly })
    }
}

/// A vCPU in the middle of an instruction: registers change in a copy, and memory last.
struct EmulatedCpu<'a, M: PhysMemory + ?Sized> {
    regs: Regs,
    memory: &'a VirtMemory<'a, M>,
    segments: &'a Segments,
}

impl<M: PhysMemory + ?Sized> EmulatedCpu<'_, M> {
    fn run(&mut self, action: &EmulatedAction) -> Result<(), EmulationFault> {
        match *action {
            EmulatedAction::Nothing => {}
            EmulatedAction::SetFlag(flag) => self.regs.rflags |= flag,
            EmulatedAction::ClearFlag(flag) => self.regs.rflags &= !flag,
            EmulatedAction::ComplementCarry => self.regs.rflags ^= CF,
            EmulatedAction::FlagsToAh => {
                let flags = self.regs.rflags & IN_AH | ALWAYS_SET;
                AH.set(&mut self.regs, flags);
            }
            EmulatedAction::AhToFlags => self.set_flags(IN_AH, AH.get(&self.regs)),
            EmulatedAction::PushFlags => self.push(self.regs.rflags & !(RF | VM))?,
            EmulatedAction::PopFlags => {
                let value = self.pop()?;
                self.set_flags(POPPED, value);
            }
            EmulatedAction::Push(from) => {
                let value = self.read(&from)?;
                self.push(value)?;
            }
            EmulatedAction::Pop(to) => {
                let value = self.pop()?;
                *to.slot(&mut self.regs) = value;
            }
            EmulatedAction::Leave => {
                self.regs.rsp = self.regs.rbp;
                self.regs.rbp = self.pop()?;
            }
            EmulatedAction::Move { to, from } => {
                let value = self.read(&from)?;
                self.write(&to, value)?;
            }
            EmulatedAction::Extend { to, from, signed } => {
                let value = self.get(&from)?;
                let value = if signed { from.width().sign_extend(value) } else { value };
                to.set(&mut self.regs, value);
            }
            EmulatedAction::LoadAddress { to, address } => {
                let value = address.effective(&self.regs);
                to.set(&mut self.regs, value);
            }
            EmulatedAction::Binary { operation, to, from } => {
                let (right, rflags) = (self.read(&from)?, self.regs.rflags);
                self.modify(&to, |left, width| operation.apply(left, right & width.mask(), rflags, width))?;
            }
            EmulatedAction::Compare { operation, left, right } => {
                let width = left.width();
                let right = self.read(&right)? & width.mask();
                let outcome = operation.apply(self.get(&left)?, right, self.regs.rflags, width);
                self.set_flags(outcome.changed, outcome.flags);
            }
            // These two leave the carry alone.
            EmulatedAction::Increment(to) => self.modify(&to, |value, width| {
                let outcome = Binary::Add.apply(value, 1, 0, width);
                Outcome { changed: outcome.changed & !CF, ..outcome }
            })?,
            EmulatedAction::Decrement(to) => self.modify(&to, |value, width| {
                let outcome = Binary::Sub.apply(value, 1, 0, width);
                Outcome { changed: outcome.changed & !CF, ..outcome }
            })?,
            EmulatedAction::Negate(to) => {
                self.modify(&to, |value, width| Binary::Sub.apply(0, value, 0, width))?
            }
            EmulatedAction::Invert(to) => {
                self.modify(&to, |value, width| unchanged(!value & width.mask()))?
            }
            EmulatedAction::Shift { operation, to, count } => {
                let (count, rflags) = (self.read(&count)?, self.regs.rflags);
                self.modify(&to, |value, width| operation.apply(value, count, rflags, width))?;
            }
            EmulatedAction::Multiply { to, left, right } => {
                let (outcome, _) = multiply(self.get(&left)?, self.read(&right)?, true, to.width);
                to.set(&mut self.regs, outcome.value);
                self.set_flags(outcome.changed, outcome.flags);
            }
            EmulatedAction::MultiplyWide { by, is_signed } => {
                let width = by.width();
                let low = RegisterPart::low(Register::Rax, width);
                let high = if width == Width::Byte { AH } else { RegisterPart::low(Register::Rdx, width) };
                let (outcome, rest) = multiply(low.get(&self.regs), self.get(&by)?, is_signed, width);
                low.set(&mut self.regs, outcome.value);
                high.set(&mut self.regs, rest);
                self.set_flags(outcome.changed, outcome.flags);
            }
            // It only reads.
            EmulatedAction::Bit { operation: Bit::Test, to, index } => {
                let index = self.read(&index)?;
                let outcome = Bit::Test.apply(self.get(&to)?, index, to.width());
                self.set_flags(outcome.changed, outcome.flags);
            }
            EmulatedAction::Bit { operation, to, index } => {
                let index = self.read(&index)?;
                self.modify(&to, |value, width| operation.apply(value, index, width))?;
            }
            EmulatedAction::Exchange(one, other) => {
                let (first, second) = (one.get(&self.regs), other.get(&self.regs));
                one.set(&mut self.regs, second);
                other.set(&mut self.regs, first);
            }
            EmulatedAction::SwapBytes(to) => {
                let swapped = to.get(&self.regs).swap_bytes() >> (64 - to.width.bits());
                to.set(&mut self.regs, swapped);
            }
            EmulatedAction::SpreadSign { to, from } => {
                let is_negative = from.get(&self.regs) & from.width.sign() != 0;
                to.set(&mut self.regs, if is_negative { u64::MAX } else { 0 });
            }
            EmulatedAction::MoveIf { condition, to, from } => {
                // The source is read, and 32 bits clear the upper half, whether or not the condition holds.
                let moved = self.get(&from)?;
                let kept = to.get(&self.regs);
                let value = if holds(condition, self.regs.rflags) { moved } else { kept };
                to.set(&mut self.regs, value);
            }
            EmulatedAction::SetIf { condition, to } => {
                self.write(&to, u64::from(holds(condition, self.regs.rflags)))?;
            }
            EmulatedAction::Jump(target) => {
                let target = self.read(&target)?;
                self.jump(target)?;
            }
            EmulatedAction::JumpIf { condition, target } => {
                if holds(condition, self.regs.rflags) {
                    self.jump(target)?;
                }
            }
            EmulatedAction::Loop { counter, condition, target } => {
                let left = counter.get(&self.regs).wrapping_sub(1);
                counter.set(&mut self.regs, left);
                if counter.get(&self.regs) != 0 && holds(condition, self.regs.rflags) {
                    self.jump(target)?;
                }
            }
            EmulatedAction::JumpIfZero { counter, target } => {
                if counter.get(&self.regs) == 0 {
                    self.jump(target)?;
                }
            }
            EmulatedAction::Call(target) => {
                let target = self.read(&target)?;
                let back = self.regs.rip;
                self.jump(target)?;
                self.push(back)?;
            }
            EmulatedAction::Return { release } => {
                let target = self.pop()?;
                self.jump(target)?;
                self.regs.rsp = self.regs.rsp.wrapping_add(release);
            }
        }
        Ok(())
    }

    fn read(&self, source: &Source) -> Result<u64, EmulationFault> {
        match source {
            Source::Immediate(value) => Ok(*value),
            Source::OperandPlace(place) => self.get(place),
        }
    }

    fn get(&self, place: &OperandPlace) -> Result<u64, EmulationFault> {
        match place {
            OperandPlace::Register(part) => Ok(part.get(&self.regs)),
            OperandPlace::Memory(address, width) => {
                self.load(address.segment, self.linear(address), *width, Access::Read)
            }
        }
    }

    fn write(&mut self, place: &OperandPlace, value: u64) -> Result<(), EmulationFault> {
        match place {
            OperandPlace::Register(part) => {
                part.set(&mut self.regs, value);
                Ok(())
            }
            OperandPlace::Memory(address, width) => {
                self.store(address.segment, self.linear(address), value, *width)
            }
        }
    }

    /// Replaces what is in `place` by what `change` makes of it, and the flags likewise.
    fn modify(
        &mut self,
        place: &OperandPlace,
        change: impl FnOnce(u64, Width) -> Outcome,
    ) -> Result<(), EmulationFault> {
        let value = match place {
            OperandPlace::Register(part) => part.get(&self.regs),
            OperandPlace::Memory(address, width) => {
                self.load(address.segment, self.linear(address), *width, Access::Write)?
            }
        };
        let outcome = change(value, place.width());
        self.write(place, outcome.value)?;
        self.set_flags(outcome.changed, outcome.flags);
        Ok(())
    }

    fn set_flags(&mut self, mask: u64, flags: u64) {
        self.regs.rflags = (self.regs.rflags & !mask) | (flags & mask);
    }

    fn push(&mut self, value: u64) -> Result<(), EmulationFault> {
        self.regs.rsp = self.regs.rsp.wrapping_sub(8);
        self.store(Segment::Stack, Gva(self.regs.rsp), value, Width::Qword)
    }

    fn pop(&mut self) -> Result<u64, EmulationFault> {
        let value = self.load(Segment::Stack, Gva(self.regs.rsp), Width::Qword, Access::Read)?;
        self.regs.rsp = self.regs.rsp.wrapping_add(8);
        Ok(value)
    }

    fn jump(&mut self, target: u64) -> Result<(), EmulationFault> {
        let at = Gva(target);
        if !self.memory.spaces.of(at).is_canonical(at) {
            return Err(EmulationFault::BranchTarget(at));
        }
        self.regs.rip = target;
        Ok(())
    }

    fn linear(&self, address: &Address) -> Gva {
        let base = match address.segment {
            Segment::Flat | Segment::Stack => 0,
            Segment::Fs => self.segments.fs_base,
            Segment::Gs => self.segments.gs_base,
        };
        Gva(base.wrapping_add(address.effective(&self.regs)))
    }

    fn load(&self, segment: Segment, at: Gva, width: Width, access: Access) -> Result<u64, EmulationFault> {
        let mut bytes = [0; 8];
        let (used, _) = bytes.split_at_mut(width.bytes());
        access::load(self.memory, self.regs.rflags, at, used, access)
            .map_err(|fault| through(segment, fault))?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn store(&self, segment: Segment, at: Gva, value: u64, width: Width) -> Result<(), EmulationFault> {
        let bytes = value.to_le_bytes();
        let (used, _) = bytes.split_at(width.bytes());
        access::store(self.memory, self.regs.rflags, at, used).map_err(|fault| through(segment, fault))
    }
}

/// What `fault` is in an access through `segment`.
fn through(segment: Segment, fault: EmulationFault) -> EmulationFault {
    match fault {
        EmulationFault::Page(fault) if segment == Segment::Stack && !fault.canonical => {
            EmulationFault::Stack(fault.at)
        }
        other => other,
    }
}
