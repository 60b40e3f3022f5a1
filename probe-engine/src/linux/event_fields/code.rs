//! The guest's code that records an event, followed on all ways.

use super::values::{Known, Stores, Value};
use super::{NoSource, Origin};
use crate::addr::Gva;
use crate::linux::btf::Btf;
use crate::linux::current::CurrentTask;
use crate::linux::kernel::Kernel;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
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
pub(super) fn ways(kernel: &Kernel, btf: &Btf<'_>, class: &str) -> Result<Vec<Stores>, NoSource> {
    let symbol = |name: &str| kernel.symbol(name).ok_or(NoSource::Code);
    let name = format!("trace_event_raw_event_{class}");
    // Where the caller prepares something, the rest is a function of its own.
    let start = symbol(&format!("do_{name}")).or_else(|_| symbol(&name))?;
    let current = CurrentTask::find(kernel.symbols(), Some(btf));
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
