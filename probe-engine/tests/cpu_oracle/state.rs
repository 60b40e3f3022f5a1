//! Random registers that keep an instruction inside the scratch window and its branches on the landing pad.

use crate::native::{LANDED, Native, SCRATCH, SITE, from_array};
use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};
use probe_engine::regs::{Regs, rflags};

pub(crate) const FLAGS: u64 =
    rflags::CF | rflags::PF | rflags::AF | rflags::ZF | rflags::SF | rflags::OF | rflags::DF;

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Values near the ends of every width as often as any others.
    pub(crate) fn value(&mut self) -> u64 {
        const EDGES: [u64; 12] =
            [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63];
        match self.next() % 4 {
            0 => EDGES[(self.next() % 12) as usize],
            1 => !EDGES[(self.next() % 12) as usize],
            2 => EDGES[(self.next() % 12) as usize] | EDGES[(self.next() % 12) as usize] << 8,
            _ => self.next(),
        }
    }
}

/// A random state in which `instruction` touches only the window and branches only to the landing pad; `None`
/// when the numbers drawn allow none.
pub(crate) fn state(instruction: &Instruction, rng: &mut Rng, native: &Native) -> Option<Regs> {
    let mut array = std::array::from_fn(|_| rng.value());
    let slot = native.at(SCRATCH) + 0x200 + rng.next() % 0x40;
    if instruction.is_stack_instruction() {
        array[number(Register::RSP)] = slot;
        array[number(Register::RBP)] = slot ^ 0x80;
    }
    // Those that look at rcx have to find it, or its low half, at zero and next to it.
    if instruction.is_jcx_short() || instruction.is_loop() || instruction.is_loopcc() {
        array[number(Register::RCX)] = (rng.next() % 3) | ((rng.next() % 2) << 32);
    }
    let target = native.at(SCRATCH) + 0x100 + rng.next() % 0x40;
    let memory = (0..instruction.op_count()).find(|index| instruction.op_kind(*index) == OpKind::Memory);
    let mut address = slot;
    if let Some(operand) = memory {
        aim(instruction, &mut array, target);
        address = linear(instruction, operand, &array, native)?;
        let accesses = !matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop);
        if accesses && !in_window(address, native) {
            return None;
        }
    }
    let landed = native.at(LANDED);
    match instruction.flow_control() {
        FlowControl::IndirectCall | FlowControl::IndirectBranch if memory.is_none() => {
            array[number(instruction.op0_register())] = landed;
        }
        FlowControl::IndirectCall | FlowControl::IndirectBranch | FlowControl::Return => {
            native.write_u64((address - native.at(0)) as usize, landed);
        }
        // No single step, no alignment checks, and the I/O privilege level that a process has.
        _ if instruction.code() == Code::Popfq => {
            native.write_u64((slot - native.at(0)) as usize, rng.next() & (FLAGS | rflags::ID) | 0x202);
        }
        _ => {}
    }
    // Such as `call rsp`, or `push [rsp + displacement]` once its operand is in the window.
    if instruction.is_stack_instruction() && !in_window(array[number(Register::RSP)], native) {
        return None;
    }
    Some(Regs { rip: native.at(SITE), rflags: rng.next() & FLAGS | 0x202, ..from_array(array) })
}

/// Points the registers of the memory operand to where its address is `target`, or near it.
fn aim(instruction: &Instruction, array: &mut [u64; 16], target: u64) {
    let (base, index) = (instruction.memory_base(), instruction.memory_index());
    if instruction.is_ip_rel_memory_operand() {
        return;
    }
    let target = if instruction.memory_segment() == Register::GS { target & 0xfff } else { target };
    let target = target.wrapping_sub(instruction.memory_displacement64());
    let scale = u64::from(instruction.memory_index_scale());
    match (base, index) {
        (Register::None, Register::None) => {}
        (Register::None, index) => array[number(index)] &= 0x3f,
        (base, Register::None) => array[number(base)] = target,
        (base, index) if base == index => array[number(base)] = target / (1 + scale),
        (base, index) => {
            array[number(base)] = target.wrapping_sub(array[number(index)].wrapping_mul(scale));
        }
    }
    // With 32-bit addresses the upper halves must not matter.
    for register in [base, index].into_iter().filter(|register| register.size() == 4) {
        array[number(register)] ^= 0x5a5a_0000_0000_0000;
    }
}

/// The linear address of memory operand `operand`, as iced sees it.
fn linear(instruction: &Instruction, operand: u32, array: &[u64; 16], native: &Native) -> Option<u64> {
    instruction.virtual_address(operand, 0, |register, _, _| match register {
        Register::GS => Some(native.at(SCRATCH)),
        Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
        register if register.size() == 4 => Some(array[number(register)] & 0xffff_ffff),
        register => Some(array[number(register)]),
    })
}

fn in_window(at: u64, native: &Native) -> bool {
    (0x40..0x380).contains(&at.wrapping_sub(native.at(SCRATCH)))
}

fn number(register: Register) -> usize {
    register.full_register() as usize - Register::RAX as usize
}
