//! The instructions that are compared: drawn from kernels, kept in a file.
//!
//! The file is one record after the other: a length byte, then the bytes of one instruction. What depends on the
//! place (the displacement of a relative branch or operand) is zero; whoever runs the instruction chooses it.

use iced_x86::{Code, ConstantOffsets, Decoder, DecoderOptions, Instruction, OpKind, Register};
use probe_engine::addr::Gva;
use probe_engine::insn::plan::{StepPlan, plan};
use probe_engine::linux::kernel::Kernel;
use std::collections::{BTreeMap, HashMap, HashSet};

use super::rng::Rng;

/// What makes two encodings of one kind: the opcode with its operand sizes, the kinds of its operands, how its memory
/// operand is addressed, and its prefixes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Form {
    code: u16,
    operands: [u8; 5],
    /// Registers of which an encoding or its emulation makes a special case.
    special: [bool; 5],
    memory: Memory,
    prefixes: [bool; 5],
    address_bytes: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Memory {
    base: Base,
    has_index: bool,
    scale: u8,
    displacement_bytes: u8,
    segment: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Base {
    #[default]
    None,
    Rip,
    Stack,
    Other,
}

impl Form {
    /// The form of `instruction`, whose encoding has a displacement as in `constants`.
    #[must_use]
    pub fn of(instruction: &Instruction, constants: &ConstantOffsets) -> Self {
        let mut operands = [u8::MAX; 5];
        let mut special = [false; 5];
        for (index, (operand, special)) in
            (0..instruction.op_count()).zip(operands.iter_mut().zip(&mut special))
        {
            let kind = instruction.op_kind(index);
            *operand = kind as u8;
            *special = kind == OpKind::Register && is_special(instruction.op_register(index));
        }
        Self {
            code: instruction.code() as u16,
            operands,
            special,
            memory: Memory::of(instruction, constants),
            prefixes: [
                instruction.has_lock_prefix(),
                instruction.has_rep_prefix(),
                instruction.has_repne_prefix(),
                instruction.segment_prefix() != Register::None,
                instruction.op_count() == 2 && instruction.op0_register() == instruction.op1_register(),
            ],
            address_bytes: address_bytes(instruction),
        }
    }
}

impl Memory {
    fn of(instruction: &Instruction, constants: &ConstantOffsets) -> Self {
        let has_memory =
            (0..instruction.op_count()).any(|index| instruction.op_kind(index) == OpKind::Memory);
        if !has_memory {
            return Self::default();
        }
        let base = match instruction.memory_base().full_register() {
            Register::None => Base::None,
            Register::RIP => Base::Rip,
            Register::RSP | Register::RBP => Base::Stack,
            _ => Base::Other,
        };
        Self {
            base,
            has_index: instruction.memory_index() != Register::None,
            scale: instruction.memory_index_scale() as u8,
            displacement_bytes: constants.displacement_size() as u8,
            segment: instruction.memory_segment() as u8,
        }
    }
}

/// RSP as an operand, and the bytes above the lowest.
fn is_special(register: Register) -> bool {
    matches!(register, Register::AH | Register::CH | Register::DH | Register::BH)
        || (register.is_gpr() && register.full_register() == Register::RSP)
}

/// Whether there is at most one segment prefix, and no prefix behind a REX. CPUs ignore the REX then, and all segments
/// but FS and GS; QEMU does not, and no compiler writes it.
fn has_plain_prefixes(bytes: &[u8]) -> bool {
    let is_rex = |byte: &u8| matches!(byte, 0x40..=0x4f);
    let is_segment = |byte: &&u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65);
    let is_prefix =
        |byte: &&u8| is_segment(byte) || matches!(byte, 0x66 | 0x67 | 0xf0 | 0xf2 | 0xf3) || is_rex(byte);
    let prefixes: Vec<u8> = bytes.iter().take_while(is_prefix).copied().collect();
    let segments = prefixes.iter().filter(is_segment).count();
    let behind_rex = prefixes.iter().skip_while(|byte| !is_rex(byte)).count();
    segments <= 1 && behind_rex <= 1
}

fn address_bytes(instruction: &Instruction) -> u8 {
    instruction.memory_base().size().max(instruction.memory_index().size()) as u8
}

/// Where instructions are taken to lie while they are drawn.
const AT: Gva = Gva(0xffff_ffff_8100_0000);

/// Distinct instructions by form.
#[derive(Default)]
pub struct Drawer {
    forms: BTreeMap<Form, Vec<Vec<u8>>>,
    seen: HashSet<Vec<u8>>,
}

impl Drawer {
    /// Takes every instruction of every function of `kernel`.
    pub fn take(&mut self, kernel: &Kernel) {
        let mut last = None;
        for symbol in kernel.symbols().text() {
            let Some(range) = kernel.function(symbol.at) else { continue };
            if last.replace(range.start) == Some(range.start) {
                continue;
            }
            if let Some(text) = kernel.image().bytes(&range) {
                self.take_text(text, range.start);
            }
        }
    }

    fn take_text(&mut self, text: &[u8], at: Gva) {
        let mut decoder = Decoder::with_ip(64, text, at.0, DecoderOptions::NONE);
        while decoder.can_decode() {
            let start = decoder.position();
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                return;
            }
            let constants = decoder.get_constant_offsets(&instruction);
            self.add(&text[start..start + instruction.len()], &instruction, &constants);
        }
    }

    /// Takes random encodings that are emulated, in forms that no kernel here has, a few of each opcode: so nothing
    /// that is emulated is left out. `tries` is how many byte strings are tried.
    pub fn take_random(&mut self, tries: usize, rng: &mut Rng) {
        const PREFIXES: [u8; 8] = [0x66, 0x67, 0xf2, 0xf3, 0x64, 0x65, 0x2e, 0xf0];
        const OF_AN_OPCODE: usize = 16;
        let mut taken: HashMap<Code, usize> = HashMap::new();
        for _ in 0..tries {
            let mut bytes = Vec::new();
            for _ in 0..rng.below(3) {
                bytes.push(PREFIXES[rng.below(8) as usize]);
            }
            if rng.one_in(2) {
                bytes.push(0x40 | rng.below(16) as u8);
            }
            if rng.one_in(2) {
                bytes.push(0x0f);
            }
            bytes.extend(rng.next().to_le_bytes());
            bytes.extend(rng.next().to_le_bytes());
            bytes.truncate(15);
            let mut decoder = Decoder::with_ip(64, &bytes, AT.0, DecoderOptions::NONE);
            let instruction = decoder.decode();
            let taken = taken.entry(instruction.code()).or_default();
            if instruction.is_invalid() || *taken == OF_AN_OPCODE || !has_plain_prefixes(&bytes) {
                continue;
            }
            let constants = decoder.get_constant_offsets(&instruction);
            let bytes = &bytes[..instruction.len()];
            let is_new = !self.forms.contains_key(&Form::of(&instruction, &constants));
            if is_new && matches!(plan(bytes, AT, None, false), Ok(StepPlan::Emulate(_))) {
                *taken += 1;
                self.add(bytes, &instruction, &constants);
            }
        }
    }

    fn add(&mut self, bytes: &[u8], instruction: &Instruction, constants: &ConstantOffsets) {
        let mut bytes = bytes.to_vec();
        if instruction.is_ip_rel_memory_operand() {
            let at = constants.displacement_offset();
            bytes[at..at + constants.displacement_size()].fill(0);
        }
        if instruction.op_count() > 0 && instruction.op_kind(0) == OpKind::NearBranch64 {
            let at = constants.immediate_offset();
            bytes[at..at + constants.immediate_size()].fill(0);
        }
        if self.seen.insert(bytes.clone()) {
            self.forms.entry(Form::of(instruction, constants)).or_default().push(bytes);
        }
    }

    /// How many forms there are.
    #[must_use]
    pub fn forms(&self) -> usize {
        self.forms.len()
    }

    /// How many instructions there are.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.seen.len()
    }

    /// Up to `count` instructions: one of each form, then a second one of each form that has it, and so on.
    #[must_use]
    pub fn draw(self, count: usize, rng: &mut Rng) -> Vec<Vec<u8>> {
        let mut forms: Vec<Vec<Vec<u8>>> = self.forms.into_values().collect();
        let mut drawn = Vec::new();
        while drawn.len() < count && !forms.is_empty() {
            for left in &mut forms {
                let chosen = rng.below(left.len() as u64) as usize;
                drawn.push(left.swap_remove(chosen));
            }
            forms.retain(|left| !left.is_empty());
        }
        drawn.truncate(count);
        drawn
    }
}

/// The file of `instructions`.
#[must_use]
pub fn to_file(instructions: &[Vec<u8>]) -> Vec<u8> {
    instructions.iter().flat_map(|bytes| [&[bytes.len() as u8], bytes.as_slice()].concat()).collect()
}

/// The instructions of a `file`.
#[must_use]
pub fn from_file(file: &[u8]) -> Vec<Vec<u8>> {
    let mut instructions = Vec::new();
    let mut rest = file;
    while let Some((length, tail)) = rest.split_first() {
        let (bytes, tail) = tail.split_at(usize::from(*length));
        instructions.push(bytes.to_vec());
        rest = tail;
    }
    instructions
}

#[cfg(test)]
mod tests {
    use super::*;

    /// push rbp; push rbx; push rsi; call +5; call +9; mov rax, [rip+1]; mov rax, [rip+2]; ret
    const TEXT: [u8; 28] = [
        0x55, 0x53, 0x56, 0xe8, 5, 0, 0, 0, 0xe8, 9, 0, 0, 0, 0x48, 0x8b, 5, 1, 0, 0, 0, 0x48, 0x8b, 5, 2, 0,
        0, 0, 0xc3,
    ];

    #[test]
    fn rare_forms_come_first_and_what_the_place_decides_is_left_out() {
        let mut drawer = Drawer::default();
        drawer.take_text(&TEXT, AT);
        assert_eq!((drawer.forms(), drawer.instructions()), (4, 6));
        let drawn = drawer.draw(5, &mut Rng::new(1));
        let (first, rest) = drawn.split_at(4);
        let mut first = first.to_vec();
        first.sort();
        let [load, push, ret, call] = first.try_into().unwrap();
        assert_eq!([load, ret, call], [vec![0x48, 0x8b, 5, 0, 0, 0, 0], vec![0xc3], vec![0xe8, 0, 0, 0, 0]]);
        assert!(matches!((&push[..], &rest[0][..]), ([0x53 | 0x55 | 0x56], [0x53 | 0x55 | 0x56])));
        assert_ne!(push, rest[0]);
    }

    #[test]
    fn a_file_gives_back_what_was_written() {
        let drawn = vec![vec![0x90], vec![0x48, 0x89, 0xe5], vec![0x66; 15]];
        assert_eq!(from_file(&to_file(&drawn)), drawn);
    }

    #[test]
    fn prefixes_that_qemu_reads_otherwise_are_not_plain() {
        for (bytes, plain) in [
            (&[0x66, 0x65, 0x48, 0x01, 0x03][..], true),
            (&[0x48, 0x66, 0x01, 0x03], false),
            (&[0x65, 0x2e, 0x01, 0x03], false),
            (&[0x01, 0x03, 0x48, 0x66], true),
        ] {
            assert_eq!(has_plain_prefixes(bytes), plain, "{bytes:02x?}");
        }
    }
}
