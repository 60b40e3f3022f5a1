//! Start states: random, but such that an instruction mostly meets memory, and always comes back.

use super::guest::{BOTH, CELL, EDGES, FS_BASE, FX, GS_BASE, IN_CELL, LOW, Start, View, WINDOW, in_window};
use super::rng::Rng;
use iced_x86::{
    ConstantOffsets, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use probe_engine::addr::Gva;
use probe_engine::regs::{Regs, rflags};

/// Flags that are drawn: the status flags and those that change nothing for the guest's own code.
const FLAGS: u64 = rflags::CF
    | rflags::PF
    | rflags::AF
    | rflags::ZF
    | rflags::SF
    | rflags::OF
    | rflags::DF
    | rflags::IF
    | AC
    | ID;
const AC: u64 = 1 << 18;
const ID: u64 = 1 << 21;
const FIXED: u64 = 1 << 1;

/// An instruction at its place, and the state in front of it.
pub struct Case {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// What they decode to.
    pub instruction: Instruction,
    /// The state, RIP on the instruction.
    pub start: Start,
}

/// Why an instruction cannot be tried in a guest that has to go on afterwards; `None` when it can.
#[must_use]
pub fn excluded(instruction: &Instruction) -> Option<&'static str> {
    use Mnemonic as M;
    let loads = |kind: fn(Register) -> bool| {
        instruction.op_count() > 0
            && instruction.op0_kind() == OpKind::Register
            && kind(instruction.op0_register())
    };
    match instruction.mnemonic() {
        M::In | M::Out | M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd => Some("port access"),
        M::Hlt | M::Monitor | M::Mwait | M::Monitorx | M::Mwaitx | M::Umwait | M::Tpause => Some("waits"),
        M::Clts | M::Lmsw | M::Xsetbv => Some("control register"),
        M::Rdmsr | M::Wrmsr | M::Wrmsrns | M::Rdmsrlist | M::Wrmsrlist => Some("MSR"),
        M::Lgdt | M::Lidt | M::Lldt | M::Ltr => Some("descriptor table"),
        M::Swapgs | M::Wrfsbase | M::Wrgsbase => Some("segment base"),
        M::Lfs | M::Lgs | M::Lss => Some("segment register"),
        M::Rdtsc | M::Rdtscp | M::Rdpmc | M::Rdrand | M::Rdseed | M::Rdpru => Some("never the same twice"),
        M::Encls | M::Enclu | M::Enclv | M::Pconfig | M::Getsec => Some("platform"),
        mnemonic if format!("{mnemonic:?}").starts_with("Xsave") => Some("extended state"),
        mnemonic if format!("{mnemonic:?}").starts_with("Xrstor") => Some("extended state"),
        M::Mov if loads(|register| register.is_cr()) => Some("control register"),
        M::Mov if loads(|register| register.is_dr()) => Some("debug register"),
        M::Mov | M::Pop if loads(|register| register.is_segment_register()) => Some("segment register"),
        _ => None,
    }
}

/// Places the `drawn` instruction at `at` and draws a state for it; `mapped` tells whether an address is.
/// `None` when it would go astray in all the states that were tried.
pub fn case(drawn: &[u8], at: Gva, rng: &mut Rng, mapped: impl Fn(Gva) -> bool) -> Option<Case> {
    const TRIES: usize = 20;
    (0..TRIES).find_map(|_| Draw::new(drawn, at, rng).case(&mapped))
}

struct Draw<'a> {
    rng: &'a mut Rng,
    bytes: Vec<u8>,
    instruction: Instruction,
    constants: ConstantOffsets,
    at: Gva,
    registers: [u64; 16],
    window: [u8; WINDOW],
}

impl<'a> Draw<'a> {
    fn new(bytes: &[u8], at: Gva, rng: &'a mut Rng) -> Self {
        let mut decoder = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let constants = decoder.get_constant_offsets(&instruction);
        let registers = std::array::from_fn(|_| rng.value());
        let mut window = [0; WINDOW];
        for word in window.chunks_exact_mut(8) {
            word.copy_from_slice(&rng.value().to_le_bytes());
        }
        Self { rng, bytes: bytes.to_vec(), instruction, constants, at, registers, window }
    }

    fn case(mut self, mapped: &impl Fn(Gva) -> bool) -> Option<Case> {
        self.implicit_registers();
        let memory =
            (0..self.instruction.op_count()).find(|n| self.instruction.op_kind(*n) == OpKind::Memory);
        if memory.is_some() {
            self.aim()?;
        }
        self.branch_displacement()?;
        self.instruction = Decoder::with_ip(64, &self.bytes, self.at.0, DecoderOptions::NONE).decode();
        let operand = memory.and_then(|operand| self.linear(operand));
        self.targets(operand, mapped)?;
        if let Some(at) = operand {
            self.equal_halves(at);
        }
        let mut fx = [0; FX];
        /// Control words as the CPU has them after FNINIT; all registers of the x87 empty.
        const FCW: (usize, [u8; 2]) = (0, 0x37f_u16.to_le_bytes());
        const MXCSR: (usize, [u8; 4]) = (24, 0x1f80_u32.to_le_bytes());
        const XMM: std::ops::Range<usize> = 160..416;
        fx[FCW.0..][..2].copy_from_slice(&FCW.1);
        fx[MXCSR.0..][..4].copy_from_slice(&MXCSR.1);
        for word in fx[XMM].chunks_exact_mut(8) {
            word.copy_from_slice(&self.rng.value().to_le_bytes());
        }
        let [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15] = self.registers;
        let rflags = self.rng.next() & FLAGS | FIXED;
        let rip = self.at.0;
        let regs = Regs {
            rax,
            rbx,
            rcx,
            rdx,
            rsi,
            rdi,
            rsp,
            rbp,
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rip,
            rflags,
        };
        let start = Start { regs, fx, window: self.window };
        Some(Case { bytes: self.bytes, instruction: self.instruction, start })
    }

    /// Where an access of `size` bytes goes: mostly into the window, sometimes over the edge of a page or to where
    /// nothing is.
    fn place(&mut self, size: usize) -> Gva {
        let size = size.clamp(1, 64) as u64;
        let inside = |rng: &mut Rng, view: &View| {
            let at = view.middle.add(rng.below(0x300)).offset(-0x180);
            if rng.one_in(2) { at } else { Gva(at.0 & !(size.next_power_of_two() - 1)) }
        };
        let narrow =
            self.instruction.memory_base().size() == 4 || self.instruction.memory_index().size() == 4;
        let both = if narrow || self.is_narrow_string() { &LOW } else { &BOTH };
        let edge = &EDGES[self.rng.below(4) as usize];
        match self.rng.below(100) {
            0..=71 => inside(self.rng, both),
            72..=81 => both.middle.offset(-(self.rng.below(size) as i64)),
            82..=91 => edge.middle.offset(-(self.rng.below(size + 1) as i64)),
            92..=94 => inside(self.rng, edge),
            95..=97 => Gva(0xffff_ffff_8a00_0000).add(self.rng.below(0x1000)),
            _ => Gva(0x0123_4567_89ab_c000).add(self.rng.below(0x1000)),
        }
    }

    fn is_narrow_string(&self) -> bool {
        (0..self.instruction.op_count()).any(|n| {
            matches!(
                self.instruction.op_kind(n),
                OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI
            )
        })
    }

    /// Registers that the instruction uses without naming them.
    fn implicit_registers(&mut self) {
        if self.instruction.is_stack_instruction() {
            self.registers[number(Register::RSP)] = self.place(8).0;
            self.registers[number(Register::RBP)] = self.place(8).0;
        }
        let strings = (0..self.instruction.op_count()).any(|n| {
            !matches!(
                self.instruction.op_kind(n),
                OpKind::Register
                    | OpKind::Memory
                    | OpKind::NearBranch64
                    | OpKind::NearBranch32
                    | OpKind::NearBranch16
            ) && self.instruction.try_immediate(n).is_err()
        });
        if strings {
            let size = self.instruction.memory_size().size();
            self.registers[number(Register::RSI)] = self.place(size).0;
            self.registers[number(Register::RDI)] = self.place(size).0;
            self.registers[number(Register::RCX)] = self.rng.below(9);
        }
        match self.instruction.mnemonic() {
            Mnemonic::Bt | Mnemonic::Bts | Mnemonic::Btr | Mnemonic::Btc
                if self.instruction.op0_kind() == OpKind::Memory
                    && self.instruction.op1_kind() == OpKind::Register =>
            {
                let bit = self.rng.below(0x800) as i64 - 0x400;
                self.registers[number(self.instruction.op1_register())] = bit as u64;
            }
            // Quotients that fit.
            Mnemonic::Div if !self.rng.one_in(4) => self.registers[number(Register::RDX)] = 0,
            Mnemonic::Idiv if !self.rng.one_in(4) => {
                let sign = (self.registers[number(Register::RAX)] as i64 >> 63) as u64;
                self.registers[number(Register::RDX)] = sign;
            }
            _ => {}
        }
    }

    /// Gives registers, or a displacement that stands alone, the value that makes the memory operand's address the
    /// wanted one.
    fn aim(&mut self) -> Option<()> {
        let wanted = self.place(self.instruction.memory_size().size());
        let segment = match self.instruction.memory_segment() {
            Register::FS => FS_BASE,
            Register::GS => GS_BASE,
            _ => 0,
        };
        let target = wanted.0.wrapping_sub(segment);
        let (base, index) = (self.instruction.memory_base(), self.instruction.memory_index());
        let scale = u64::from(self.instruction.memory_index_scale());
        let displacement = self.instruction.memory_displacement64();
        if self.instruction.is_ip_rel_memory_operand() {
            return self.displace(target.wrapping_sub(self.instruction.next_ip()));
        }
        if !(index == Register::None || index.is_gpr()) {
            return Some(());
        }
        match (base, index) {
            (Register::None, Register::None) => return self.displace(target),
            (Register::None, index) => {
                let value = self.rng.below(0x40);
                self.registers[number(index)] = value;
                return self.displace(target.wrapping_sub(value * scale));
            }
            (base, Register::None) => self.registers[number(base)] = target.wrapping_sub(displacement),
            (base, index) if number(base) == number(index) => {
                self.registers[number(base)] = target.wrapping_sub(displacement) / (1 + scale);
            }
            (base, index) => {
                let index = match index.size() {
                    1 => self.registers[number(index)] & 0xff, // xlatb
                    _ => self.registers[number(index)],
                };
                self.registers[number(base)] =
                    target.wrapping_sub(displacement).wrapping_sub(index.wrapping_mul(scale));
            }
        }
        // With 32-bit addresses the upper halves must not matter.
        for register in [base, index].into_iter().filter(|register| register.size() == 4) {
            self.registers[number(register)] ^= 0x5a5a_0000_0000_0000;
        }
        Some(())
    }

    /// Changes the displacement of the memory operand, if its bytes can hold it.
    fn displace(&mut self, value: u64) -> Option<()> {
        let field =
            &mut self.bytes[self.constants.displacement_offset()..][..self.constants.displacement_size()];
        match field.len() {
            4 => field.copy_from_slice(&i32::try_from(value as i64).ok()?.to_le_bytes()),
            8 => field.copy_from_slice(&value.to_le_bytes()),
            _ => return None,
        }
        Some(())
    }

    /// Lets a relative branch go to somewhere in the cell that is not the branch itself.
    fn branch_displacement(&mut self) -> Option<()> {
        if self.instruction.op_count() == 0 || self.instruction.op_kind(0) != OpKind::NearBranch64 {
            return Some(());
        }
        let distance = self.landing().0.wrapping_sub(self.at.0 + self.bytes.len() as u64) as i64;
        let field = &mut self.bytes[self.constants.immediate_offset()..][..self.constants.immediate_size()];
        match field.len() {
            1 => field.copy_from_slice(&i8::try_from(distance).ok()?.to_le_bytes()),
            4 => field.copy_from_slice(&i32::try_from(distance).ok()?.to_le_bytes()),
            _ => return None,
        }
        Some(())
    }

    /// An `int3` near the instruction.
    fn landing(&mut self) -> Gva {
        let cell = self.at.offset(-(IN_CELL as i64));
        let own = IN_CELL..IN_CELL + self.bytes.len() as u64;
        loop {
            let offset = self.rng.below(CELL);
            if !own.contains(&offset) {
                return cell.add(offset);
            }
        }
    }

    /// Puts the targets of indirect branches in place, and flags that do not trap where POPF finds them.
    fn targets(&mut self, operand: Option<Gva>, mapped: &impl Fn(Gva) -> bool) -> Option<()> {
        let landing = self.landing().0;
        let stack = Gva(self.registers[number(Register::RSP)]);
        match self.instruction.flow_control() {
            FlowControl::IndirectCall | FlowControl::IndirectBranch => match operand {
                Some(at) => self.plant(at, landing, mapped),
                None => {
                    self.registers[number(self.instruction.op0_register())] = landing;
                    Some(())
                }
            },
            FlowControl::Return => self.plant(stack, landing, mapped),
            _ if matches!(self.instruction.mnemonic(), Mnemonic::Popfq | Mnemonic::Popf) => {
                let flags = self.rng.next() & !rflags::TF;
                self.plant(stack, flags, mapped)
            }
            _ => Some(()),
        }
    }

    /// Writes `value` where the instruction will find it, as far as that is in the window; `None` when it would find
    /// something else.
    fn plant(&mut self, at: Gva, value: u64, mapped: &impl Fn(Gva) -> bool) -> Option<()> {
        for (n, byte) in (0..).zip(value.to_le_bytes()) {
            match in_window(at.add(n)) {
                Some(offset) => self.window[offset] = byte,
                None if mapped(at.add(n)) => return None,
                None => {}
            }
        }
        Some(())
    }

    /// Lets a compare-and-exchange at `at` succeed every other time.
    fn equal_halves(&mut self, at: Gva) {
        let (size, is_pair) = match self.instruction.mnemonic() {
            Mnemonic::Cmpxchg => (self.instruction.memory_size().size(), false),
            Mnemonic::Cmpxchg8b => (4, true),
            Mnemonic::Cmpxchg16b => (8, true),
            _ => return,
        };
        let registers = if is_pair { &[Register::RAX, Register::RDX][..] } else { &[Register::RAX] };
        let named =
            [self.instruction.memory_base(), self.instruction.memory_index()].map(Register::full_register);
        if self.rng.one_in(2) || registers.iter().any(|register| named.contains(register)) {
            return;
        }
        for (n, register) in (0..).zip(registers) {
            for byte in 0..size {
                let Some(offset) = in_window(at.add(n * size as u64 + byte as u64)) else { return };
                let value = &mut self.registers[number(*register)];
                *value = *value & !(0xff << (8 * byte)) | u64::from(self.window[offset]) << (8 * byte);
            }
        }
    }

    /// The linear address of memory operand `operand`, as iced sees it.
    fn linear(&self, operand: u32) -> Option<Gva> {
        let value = |register: Register, _, _| match register {
            Register::FS => Some(FS_BASE),
            Register::GS => Some(GS_BASE),
            Register::CS | Register::DS | Register::ES | Register::SS => Some(0),
            register if !register.is_gpr() => None,
            register => {
                let full = self.registers[number(register)];
                Some(if register.size() == 8 { full } else { full & ((1 << (8 * register.size())) - 1) })
            }
        };
        self.instruction.virtual_address(operand, 0, value).map(Gva)
    }
}

/// The number of the register that `register` is, or is a part of.
fn number(register: Register) -> usize {
    register.full_register() as usize - Register::RAX as usize
}

#[cfg(test)]
mod tests {
    use super::super::guest::ORIGINALS;
    use super::*;

    /// The instruction, 200 times, in the first cell.
    fn cases(drawn: &[u8]) -> Vec<Case> {
        let at = ORIGINALS.add(IN_CELL);
        (1..=200).map(|seed| case(drawn, at, &mut Rng::new(seed), |_| false).unwrap()).collect()
    }

    #[test]
    fn most_operands_are_in_the_window_and_some_are_not() {
        let operands: [&[u8]; 6] = [
            &[0x48, 0x8b, 0x44, 0x8b, 0x10],       // mov rax, [rbx+rcx*4+0x10]
            &[0x48, 0x8b, 0x05, 0, 0, 0, 0],       // mov rax, [rip]
            &[0x65, 0x48, 0x8b, 0x05, 0, 0, 0, 0], // mov rax, gs:[rip]
            &[0x67, 0x8b, 0x03],                   // mov eax, [ebx]
            &[0x48, 0x8b, 0x04, 0xcd, 0, 0, 0, 0], // mov rax, [rcx*8]
            &[0x48, 0xa1, 0, 0, 0, 0, 0, 0, 0, 0], // mov rax, [0]
        ];
        for bytes in operands {
            let is_inside = |case: &&Case| {
                let r = case.start.regs;
                let value = |register, _, _| match register {
                    Register::RBX => Some(r.rbx),
                    Register::EBX => Some(r.rbx & 0xffff_ffff),
                    Register::RCX => Some(r.rcx),
                    Register::GS => Some(GS_BASE),
                    _ => Some(0),
                };
                let operand = u32::from(case.instruction.op1_kind() == OpKind::Memory);
                let at = case.instruction.virtual_address(operand, 0, value).unwrap();
                in_window(Gva(at)).is_some()
            };
            let inside = cases(bytes).iter().filter(is_inside).count();
            assert!((140..200).contains(&inside), "{bytes:02x?}: {inside}");
        }
    }

    #[test]
    fn branches_land_in_the_cell_and_not_on_themselves() {
        for bytes in [&[0xeb, 0][..], &[0xe8, 0, 0, 0, 0], &[0x0f, 0x84, 0, 0, 0, 0], &[0xe3, 0]] {
            for case in cases(bytes) {
                let offset = case.instruction.near_branch64() - ORIGINALS.0;
                let own = IN_CELL..IN_CELL + bytes.len() as u64;
                assert!(offset < CELL && !own.contains(&offset), "{bytes:02x?} {offset:#x}");
            }
        }
    }

    #[test]
    fn a_return_finds_its_target_and_popf_no_trap_flag() {
        for (bytes, is_return) in [(0xc3, true), (0x9d, false)] {
            for case in cases(&[bytes]) {
                let Some(at) = in_window(Gva(case.start.regs.rsp)) else { continue };
                let Some(word) = case.start.window.get(at..at + 8) else { continue };
                let word = u64::from_le_bytes(word.try_into().unwrap());
                if in_window(Gva(case.start.regs.rsp + 7)).is_some() {
                    assert!(word & rflags::TF == 0 || is_return, "{word:#x}");
                    assert_eq!((ORIGINALS.0..ORIGINALS.0 + CELL).contains(&word), is_return, "{word:#x}");
                }
            }
        }
    }
}
