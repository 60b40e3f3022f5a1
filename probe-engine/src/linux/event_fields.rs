//! Where the fields of a tracepoint's own event come from: what the guest's code that records the event stores into its members.
//!
//! For each class of events the kernel has a function `trace_event_raw_event_CLASS(data, arguments..)`
//! (include/trace/stages/stage6_event_callback.h). It asks `trace_event_buffer_reserve` for a `struct trace_event_raw_CLASS`, stores into
//! that, and gives it to `trace_event_buffer_commit`. All ways through that function are followed here with names in place of
//! values. A field is computable if every way stores the same into it: an argument, a number, or what memory holds that an argument
//! leads to.

use super::btf::{Btf, TypeId};
use super::kernel::Kernel;
use crate::addr::Gva;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use std::collections::BTreeMap;
use std::ops::Range;

/// What gives the memory of an event, and what takes it.
const RESERVE: &str = "trace_event_buffer_reserve";
const COMMIT: &str = "trace_event_buffer_commit";
/// Most instructions that are followed on all ways together.
const MOST_STEPS: usize = 20_000;
/// Most ways.
const MOST_WAYS: usize = 512;
/// Most pointers that are followed for one field.
const MOST_HOPS: usize = 6;
/// Argument registers, in their order.
const ARGUMENTS: [Register; 6] =
    [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8, Register::R9];
/// Registers that a call does not keep.
const CLOBBERED: [Register; 9] = [
    Register::RAX,
    Register::RCX,
    Register::RDX,
    Register::RSI,
    Register::RDI,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
];

/// A field of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventField {
    /// Its name.
    pub name: String,
    /// Its type.
    pub ty: TypeId,
    /// Where its value comes from, or why that is not known.
    pub source: Result<Source, NoSource>,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where the way begins.
    pub origin: Origin,
    /// What is added to each address on the way, before what lies there is read. None for a value that is in no memory.
    pub hops: Vec<i64>,
    /// How many of the last value's bytes count, where these are fewer than the field has, and whether they have a sign.
    pub widened: Option<(u8, bool)>,
}

/// Where a way begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// The argument of this number of the function that is called at an event, from 0 on; the first one is no part of the event.
    Argument(u8),
    /// This address in the kernel, as linked.
    Kernel(Gva),
    /// The task that runs.
    Current,
    /// A number.
    Number(u64),
}

/// Why it is not known where a field comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoSource {
    /// It is in a string or an array behind the event.
    #[error("the guest copies it behind the event")]
    Dynamic,
    /// There is no such function, or one that is not understood.
    #[error("the code that records the event is not understood")]
    Code,
    /// Nothing simple is stored.
    #[error("the guest computes it")]
    Computed,
    /// What is stored depends on a condition.
    #[error("what it is depends on a condition")]
    Conditional,
}

/// The fields of the events of `class` in `kernel`, by the types `btf`: all but what every event has. None where there is no such class.
#[must_use]
pub fn event_fields(kernel: &Kernel, btf: &Btf<'_>, class: &str) -> Vec<EventField> {
    let Some(structure) = btf.structure(&format!("trace_event_raw_{class}")) else { return Vec::new() };
    let ways = ways(kernel, btf, class);
    let own = structure.members().filter(|member| !matches!(member.name, "ent" | "__data"));
    let field = |member: super::btf::Member<'_>| {
        let place = member.offset().zip(btf.size(member.ty));
        let source = match (&ways, place) {
            _ if member.name.starts_with("__data_loc_") || member.name.starts_with("__rel_loc_") => {
                Err(NoSource::Dynamic)
            }
            (Ok(ways), Some((offset, size))) => source(ways, offset as i64, size),
            _ => Err(NoSource::Code),
        };
        EventField { name: member.name.to_owned(), ty: member.ty, source }
    };
    own.map(field).collect()
}

/// What is stored at so many bytes from `offset` on, if that is the same on all ways.
fn source(ways: &[Stores], offset: i64, size: u64) -> Result<Source, NoSource> {
    let mut found: Option<Source> = None;
    for way in ways {
        let here = way.source(offset, size)?;
        match &found {
            Some(before) if *before != here => return Err(NoSource::Conditional),
            Some(_) => {}
            None => found = Some(here),
        }
    }
    found.ok_or(NoSource::Code)
}

/// A value, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Value {
    Unknown,
    /// So many bytes into the event.
    Event(i64),
    /// So many bytes from where the stack pointer was at the start.
    Stack(i64),
    Known(Known),
}

/// `bytes` of what is at the end of a way, plus a number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    origin: Origin,
    hops: Vec<i64>,
    add: i64,
    bytes: u8,
    is_signed: bool,
}

impl Value {
    fn whole(origin: Origin) -> Self {
        Self::Known(Known { origin, hops: Vec::new(), add: 0, bytes: 8, is_signed: false })
    }

    fn plus(&self, number: i64) -> Self {
        match self {
            Self::Event(at) => Self::Event(at.wrapping_add(number)),
            Self::Stack(at) => Self::Stack(at.wrapping_add(number)),
            Self::Known(known) if known.bytes == 8 => {
                let origin = match known.origin {
                    Origin::Number(own) if known.hops.is_empty() => {
                        return Self::whole(Origin::Number(own.wrapping_add_signed(number)));
                    }
                    origin => origin,
                };
                Self::Known(Known { origin, add: known.add.wrapping_add(number), ..known.clone() })
            }
            Self::Known(_) | Self::Unknown => Self::Unknown,
        }
    }

    /// Its lowest `bytes`, of which the highest may be a sign.
    fn cut(&self, bytes: u8, is_signed: bool) -> Self {
        match self {
            value if bytes == 8 => value.clone(),
            Self::Known(Known { origin: Origin::Number(number), hops, .. }) if hops.is_empty() => {
                let shift = 64 - 8 * u32::from(bytes);
                let cut = match is_signed {
                    true => ((number << shift).cast_signed() >> shift).cast_unsigned(),
                    false => number << shift >> shift,
                };
                Self::whole(Origin::Number(cut))
            }
            Self::Known(known) if known.add == 0 && bytes <= known.bytes => {
                Self::Known(Known { bytes, is_signed, ..known.clone() })
            }
            Self::Known(known) if known.add == 0 && !is_signed && !known.is_signed => {
                Self::Known(known.clone())
            }
            _ => Self::Unknown,
        }
    }
}

/// What was stored into memory that begins somewhere, by offset: so many bytes each.
#[derive(Debug, Clone, Default)]
struct Stores(BTreeMap<i64, (u8, Value)>);

impl Stores {
    fn store(&mut self, at: i64, bytes: u8, value: Value) {
        let end = at + i64::from(bytes);
        self.0.retain(|own, (length, _)| *own >= end || own + i64::from(*length) <= at);
        self.0.insert(at, (bytes, value));
    }

    fn load(&self, at: i64, bytes: u8) -> Value {
        match self.0.get(&at) {
            Some((stored, value)) if *stored >= bytes => value.cut(bytes, false),
            _ => Value::Unknown,
        }
    }

    /// Whatever lies from there on is not known any more.
    fn forget_from(&mut self, at: i64) {
        self.0.retain(|own, (length, _)| own + i64::from(*length) <= at);
    }

    /// Where the bytes come from that were stored from `offset` on: one store, or several that follow each other in both places.
    fn source(&self, offset: i64, size: u64) -> Result<Source, NoSource> {
        let mut first: Option<&Known> = None;
        let mut done = 0;
        while done < size {
            let (bytes, value) = self.0.get(&(offset + done as i64)).ok_or(NoSource::Computed)?;
            let Value::Known(known) = value else { return Err(NoSource::Computed) };
            match first {
                // What is stored may be a part of a value, and the field the whole of the store.
                None if u64::from(*bytes) == size => return known.source(*bytes),
                None if known.bytes == *bytes && !known.hops.is_empty() && known.add == 0 => {
                    first = Some(known)
                }
                Some(first) if known.bytes == *bytes && known.follows(first, done) => {}
                _ => return Err(NoSource::Computed),
            }
            done += u64::from(*bytes);
        }
        match first {
            Some(first) if done == size => first.source(first.bytes),
            _ => Err(NoSource::Computed),
        }
    }
}

impl Known {
    fn source(&self, stored: u8) -> Result<Source, NoSource> {
        if self.add != 0 {
            return Err(NoSource::Computed);
        }
        let widened = (self.bytes < stored).then_some((self.bytes, self.is_signed));
        Ok(Source { origin: self.origin, hops: self.hops.clone(), widened })
    }

    /// Whether it was read so many bytes behind `first`.
    fn follows(&self, first: &Self, behind: u64) -> bool {
        let (Some((last, way)), Some((first_last, first_way))) =
            (self.hops.split_last(), first.hops.split_last())
        else {
            return false;
        };
        self.add == 0
            && self.origin == first.origin
            && way == first_way
            && *last == first_last.wrapping_add(behind as i64)
    }
}

/// One way through the function, as far as it has come.
#[derive(Clone)]
struct State {
    at: Gva,
    registers: [Value; 16],
    stack: Stores,
    event: Stores,
    /// Where it has branched, so that a loop is seen.
    branches: Vec<Gva>,
}

/// A function, and what it calls.
struct Code<'a> {
    kernel: &'a Kernel,
    function: Range<Gva>,
    reserve: Gva,
    commit: Gva,
    /// Where a CPU keeps its running task, in bytes from the kernel's GS base.
    current: Option<u64>,
}

/// What is stored on each way to the event's commit.
fn ways(kernel: &Kernel, btf: &Btf<'_>, class: &str) -> Result<Vec<Stores>, NoSource> {
    let symbol = |name: &str| kernel.symbol(name).ok_or(NoSource::Code);
    let name = format!("trace_event_raw_event_{class}");
    // Where the caller prepares something, the rest is a function of its own.
    let start = symbol(&format!("do_{name}")).or_else(|_| symbol(&name))?;
    let current = super::current::CurrentTask::find(kernel.symbols(), Some(btf));
    let code = Code {
        kernel,
        function: kernel.function(start).ok_or(NoSource::Code)?,
        reserve: symbol(RESERVE)?,
        commit: symbol(COMMIT)?,
        current: current.map(|current| current.offset),
    };
    let mut registers = [const { Value::Unknown }; 16];
    for (number, register) in (0..).zip(ARGUMENTS) {
        put(&mut registers, register, Value::whole(Origin::Argument(number)));
    }
    put(&mut registers, Register::RSP, Value::Stack(0));
    let first = State {
        at: start,
        registers,
        stack: Stores::default(),
        event: Stores::default(),
        branches: Vec::new(),
    };
    let (mut left, mut done, mut steps) = (vec![first], Vec::new(), 0);
    while let Some(mut state) = left.pop() {
        loop {
            steps += 1;
            if steps > MOST_STEPS || left.len() + done.len() > MOST_WAYS {
                return Err(NoSource::Code);
            }
            match code.step(&mut state)? {
                Next::On => {}
                Next::Either(other) => {
                    if state.branches.iter().filter(|at| **at == state.at).count() > 1 {
                        return Err(NoSource::Code);
                    }
                    state.branches.push(state.at);
                    left.push(State { at: other, ..state.clone() });
                }
                Next::Done => {
                    done.push(state.event);
                    break;
                }
                Next::Left => break,
            }
        }
    }
    Ok(done)
}

/// What comes behind an instruction.
enum Next {
    On,
    /// This as well.
    Either(Gva),
    /// The event is complete.
    Done,
    /// The function has ended without an event.
    Left,
}

impl Code<'_> {
    fn step(&self, state: &mut State) -> Result<Next, NoSource> {
        const LONGEST: usize = 15;
        // Behind a call that does not return.
        if !self.function.contains(&state.at) {
            return Ok(Next::Left);
        }
        let bytes = self.kernel.image().bytes_from(state.at).ok_or(NoSource::Code)?;
        let bytes = bytes.get(..LONGEST).unwrap_or(bytes);
        let instruction = Decoder::with_ip(64, bytes, state.at.0, DecoderOptions::NONE).decode();
        if instruction.is_invalid() {
            return Err(NoSource::Code);
        }
        let next = Gva(instruction.next_ip());
        match instruction.flow_control() {
            FlowControl::Next => {
                self.carry_out(&instruction, state);
                state.at = next;
                Ok(Next::On)
            }
            FlowControl::ConditionalBranch => {
                state.at = next;
                Ok(Next::Either(Gva(instruction.near_branch_target())))
            }
            FlowControl::UnconditionalBranch => {
                let target = Gva(instruction.near_branch_target());
                state.at = target;
                Ok(match self.function.contains(&target) {
                    true => Next::On,
                    false if target == self.commit => Next::Done,
                    // A return thunk.
                    false => Next::Left,
                })
            }
            FlowControl::Call => {
                let target = Gva(instruction.near_branch_target());
                state.at = next;
                if target == self.commit {
                    return Ok(Next::Done);
                }
                self.call(target, state);
                Ok(Next::On)
            }
            FlowControl::IndirectCall => {
                state.at = next;
                self.call(Gva(0), state);
                Ok(Next::On)
            }
            _ => Ok(Next::Left),
        }
    }

    /// A function is called: registers are others, and so may be what is in the event behind what it is given of that.
    fn call(&self, target: Gva, state: &mut State) {
        for register in ARGUMENTS {
            if let Value::Event(at) = get(&state.registers, register) {
                state.event.forget_from(at);
            }
        }
        for register in CLOBBERED {
            put(&mut state.registers, register, Value::Unknown);
        }
        if target == self.reserve {
            put(&mut state.registers, Register::RAX, Value::Event(0));
        }
    }

    fn carry_out(&self, instruction: &Instruction, state: &mut State) {
        let bytes = |operand: u32| match instruction.op_kind(operand) {
            OpKind::Memory => instruction.memory_size().size() as u8,
            OpKind::Register => instruction.op_register(operand).size() as u8,
            _ => 8,
        };
        match instruction.mnemonic() {
            Mnemonic::Push => {
                let value = self.operand(instruction, 0, state);
                let top = get(&state.registers, Register::RSP).plus(-8);
                if let Value::Stack(at) = top {
                    state.stack.store(at, 8, value);
                }
                put(&mut state.registers, Register::RSP, top);
            }
            Mnemonic::Pop => {
                let top = get(&state.registers, Register::RSP);
                let value = match top {
                    Value::Stack(at) => state.stack.load(at, 8),
                    _ => Value::Unknown,
                };
                put(&mut state.registers, Register::RSP, top.plus(8));
                self.write(instruction, 0, 8, value, state);
            }
            Mnemonic::Mov | Mnemonic::Movzx => {
                let value = self.operand(instruction, 1, state).cut(bytes(1), false);
                self.write(instruction, 0, bytes(0), value, state);
            }
            Mnemonic::Movsx | Mnemonic::Movsxd | Mnemonic::Cdqe => {
                let value = match instruction.op_count() {
                    2 => self.operand(instruction, 1, state).cut(bytes(1), true),
                    _ => get(&state.registers, Register::RAX).cut(4, true),
                };
                match instruction.op_count() {
                    2 => self.write(instruction, 0, bytes(0), value, state),
                    _ => put(&mut state.registers, Register::RAX, value),
                }
            }
            Mnemonic::Lea => {
                let value = self.address(instruction, state).cut(bytes(0), false);
                self.write(instruction, 0, bytes(0), value, state);
            }
            Mnemonic::Add | Mnemonic::Sub if is_number(instruction, 1) => {
                let number = instruction.immediate(1).cast_signed();
                let number = if instruction.mnemonic() == Mnemonic::Sub { -number } else { number };
                let value = match bytes(0) {
                    8 => self.operand(instruction, 0, state).plus(number),
                    _ => Value::Unknown,
                };
                self.write(instruction, 0, bytes(0), value, state);
            }
            Mnemonic::Xor
                if instruction.op0_kind() == OpKind::Register
                    && instruction.op1_kind() == OpKind::Register
                    && instruction.op0_register() == instruction.op1_register() =>
            {
                self.write(instruction, 0, bytes(0), Value::whole(Origin::Number(0)), state);
            }
            Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Nop | Mnemonic::Endbr64 | Mnemonic::Bt => {}
            // Whatever else writes something writes what is not known.
            _ => {
                for register in written(instruction) {
                    put(&mut state.registers, register, Value::Unknown);
                }
                if instruction.op_count() > 0 && instruction.op0_kind() == OpKind::Memory {
                    self.write(instruction, 0, bytes(0), Value::Unknown, state);
                }
            }
        }
    }

    /// The value of an operand.
    fn operand(&self, instruction: &Instruction, operand: u32, state: &State) -> Value {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let register = instruction.op_register(operand);
                if !register.is_gpr() || is_high(register) {
                    return Value::Unknown;
                }
                get(&state.registers, register.full_register()).cut(register.size() as u8, false)
            }
            OpKind::Memory => self.load(instruction, state),
            _ if is_number(instruction, operand) => {
                Value::whole(Origin::Number(instruction.immediate(operand)))
            }
            _ => Value::Unknown,
        }
    }

    /// What memory holds that an instruction reads.
    fn load(&self, instruction: &Instruction, state: &State) -> Value {
        let bytes = instruction.memory_size().size();
        if !matches!(bytes, 1 | 2 | 4 | 8) {
            return Value::Unknown;
        }
        if instruction.segment_prefix() == Register::GS {
            let is_current = !instruction.is_ip_rel_memory_operand()
                && instruction.memory_base() == Register::None
                && instruction.memory_index() == Register::None
                && Some(instruction.memory_displacement64()) == self.current;
            return if is_current && bytes == 8 { Value::whole(Origin::Current) } else { Value::Unknown };
        }
        match self.address(instruction, state) {
            Value::Stack(at) if at > 0 && at % 8 == 0 => {
                // Above the return address are arguments that are in no register.
                let number = u8::try_from(at / 8 - 1 + ARGUMENTS.len() as i64);
                number.map_or(Value::Unknown, |number| {
                    Value::whole(Origin::Argument(number)).cut(bytes as u8, false)
                })
            }
            Value::Stack(at) => state.stack.load(at, bytes as u8),
            Value::Event(at) => state.event.load(at, bytes as u8),
            Value::Known(known) if known.bytes == 8 && known.hops.len() < MOST_HOPS => {
                let (mut hops, add) = (known.hops, known.add);
                hops.push(add);
                Value::Known(Known {
                    origin: known.origin,
                    hops,
                    add: 0,
                    bytes: bytes as u8,
                    is_signed: false,
                })
            }
            _ => Value::Unknown,
        }
    }

    /// The address of an instruction's memory.
    fn address(&self, instruction: &Instruction, state: &State) -> Value {
        if instruction.is_ip_rel_memory_operand() {
            return Value::whole(Origin::Kernel(Gva(instruction.ip_rel_memory_address())));
        }
        if instruction.memory_index() != Register::None
            || !matches!(instruction.segment_prefix(), Register::None)
        {
            return Value::Unknown;
        }
        match instruction.memory_base() {
            Register::None => Value::Unknown,
            base => get(&state.registers, base.full_register())
                .plus(instruction.memory_displacement64().cast_signed()),
        }
    }

    fn write(&self, instruction: &Instruction, operand: u32, bytes: u8, value: Value, state: &mut State) {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                let register = instruction.op_register(operand);
                if !register.is_gpr() {
                    return;
                }
                // A short write keeps the rest of the register.
                let value = if register.size() < 4 { Value::Unknown } else { value };
                put(&mut state.registers, register.full_register(), value);
            }
            OpKind::Memory => match self.address(instruction, state) {
                Value::Event(at) => state.event.store(at, bytes, value),
                Value::Stack(at) => state.stack.store(at, bytes, value),
                Value::Known(_) | Value::Unknown => {}
            },
            _ => {}
        }
    }
}

fn is_number(instruction: &Instruction, operand: u32) -> bool {
    operand < instruction.op_count()
        && matches!(
            instruction.op_kind(operand),
            OpKind::Immediate8
                | OpKind::Immediate16
                | OpKind::Immediate32
                | OpKind::Immediate64
                | OpKind::Immediate8to16
                | OpKind::Immediate8to32
                | OpKind::Immediate8to64
                | OpKind::Immediate32to64
        )
}

fn is_high(register: Register) -> bool {
    matches!(register, Register::AH | Register::BH | Register::CH | Register::DH)
}

/// The registers that an instruction writes of which nothing else is known, as far as they are general ones.
fn written(instruction: &Instruction) -> Vec<Register> {
    let mut info = iced_x86::InstructionInfoFactory::new();
    let used = info.info(instruction).used_registers().to_vec();
    let is_written = |used: &&iced_x86::UsedRegister| {
        !matches!(used.access(), iced_x86::OpAccess::Read | iced_x86::OpAccess::CondRead)
    };
    let registers = used.iter().filter(is_written).map(|used| used.register());
    registers.filter(|register| register.is_gpr()).map(Register::full_register).collect()
}

fn get(registers: &[Value; 16], register: Register) -> Value {
    registers.get(register.number()).filter(|_| register.is_gpr64()).cloned().unwrap_or(Value::Unknown)
}

fn put(registers: &mut [Value; 16], register: Register, value: Value) {
    if let Some(own) = registers.get_mut(register.number()).filter(|_| register.is_gpr64()) {
        *own = value;
    }
}
