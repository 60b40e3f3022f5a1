//! Encodings made from opcode bytes, so that the decoder too is tested against the CPU and not against an encoder.

use crate::native::{LANDED, Native, SCRATCH, SITE};
use crate::state::Rng;

/// Opcodes with a ModRM byte: the bytes before it, its fixed `reg` field, the bytes of an immediate (`Z`: 4, or
/// 2 with an operand-size prefix), and whether memory is covered.
pub(crate) struct Form {
    opcode: Vec<u8>,
    extension: Option<u8>,
    immediate: Immediate,
    operand: Operand,
    /// Whether the operand-size prefix and REX.W mean another width; a byte form has none.
    wide: bool,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Immediate {
    None,
    Byte,
    Z,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Operand {
    Register,
    Memory,
    Either,
}

pub(crate) fn forms() -> Vec<Form> {
    use Immediate::{Byte, None as No, Z};
    use Operand::{Either, Memory, Register};
    let mut forms = vec![];
    let mut add = |opcode: &[u8], extension, immediate, operand, wide| {
        forms.push(Form { opcode: opcode.to_vec(), extension, immediate, operand, wide });
    };
    // add, or, adc, sbb, and, sub, xor, cmp: to and from the ModRM operand, bytes and wider.
    for row in [0x00, 0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0x38] {
        for direction in [0, 2] {
            add(&[row | direction], None, No, Either, false);
            add(&[row | direction | 1], None, No, Either, true);
        }
    }
    for extension in 0..8 {
        add(&[0x80], Some(extension), Byte, Either, false);
        add(&[0x81], Some(extension), Z, Either, true);
        add(&[0x83], Some(extension), Byte, Either, true);
    }
    add(&[0x84], None, No, Either, false);
    add(&[0x85], None, No, Either, true);
    add(&[0xf6], Some(0), Byte, Either, false);
    add(&[0xf7], Some(0), Z, Either, true);
    for extension in [2, 3] {
        add(&[0xf6], Some(extension), No, Either, false);
        add(&[0xf7], Some(extension), No, Either, true);
    }
    for extension in [0, 1] {
        add(&[0xfe], Some(extension), No, Either, false);
        add(&[0xff], Some(extension), No, Either, true);
    }
    // Rotations and shifts, by a constant, by one and by cl.
    for extension in 0..8 {
        add(&[0xc0], Some(extension), Byte, Either, false);
        add(&[0xc1], Some(extension), Byte, Either, true);
        add(&[0xd0], Some(extension), No, Either, false);
        add(&[0xd1], Some(extension), No, Either, true);
        add(&[0xd2], Some(extension), No, Either, false);
        add(&[0xd3], Some(extension), No, Either, true);
    }
    // mul, imul
    for extension in [4, 5] {
        add(&[0xf6], Some(extension), No, Either, false);
        add(&[0xf7], Some(extension), No, Either, true);
    }
    add(&[0x0f, 0xaf], None, No, Either, true);
    add(&[0x6b], None, Byte, Either, true);
    add(&[0x69], None, Z, Either, true);
    // bt, bts, btr, btc
    for row in [0xa3, 0xab, 0xb3, 0xbb] {
        add(&[0x0f, row], None, No, Register, true);
    }
    for extension in 4..8 {
        add(&[0x0f, 0xba], Some(extension), Byte, Either, true);
    }
    // mov, lea, movzx, movsx, movsxd, xchg
    add(&[0x88], None, No, Either, false);
    add(&[0x89], None, No, Either, true);
    add(&[0x8a], None, No, Either, false);
    add(&[0x8b], None, No, Either, true);
    add(&[0xc6], Some(0), Byte, Either, false);
    add(&[0xc7], Some(0), Z, Either, true);
    add(&[0x8d], None, No, Memory, true);
    add(&[0x0f, 0xb6], None, No, Either, true);
    add(&[0x0f, 0xb7], None, No, Either, true);
    add(&[0x0f, 0xbe], None, No, Either, true);
    add(&[0x0f, 0xbf], None, No, Either, true);
    add(&[0x63], None, No, Either, true);
    add(&[0x86], None, No, Register, false);
    add(&[0x87], None, No, Register, true);
    // push, pop
    add(&[0xff], Some(6), No, Either, false);
    add(&[0x8f], Some(0), No, Register, false);
    // nop
    add(&[0x0f, 0x1f], Some(0), No, Either, true);
    for condition in 0..16 {
        add(&[0x0f, 0x40 | condition], None, No, Either, true);
        add(&[0x0f, 0x90 | condition], None, No, Either, false);
    }
    forms
}

/// Those that are not emulated and run from a copy.
pub(crate) fn copied_forms() -> Vec<Form> {
    use Immediate::{Byte, None as No};
    use Operand::{Either, Memory};
    let form = |opcode: &[u8], operand, wide| Form {
        opcode: opcode.to_vec(),
        extension: None,
        immediate: if opcode == [0x0f, 0xa4] { Byte } else { No },
        operand,
        wide,
    };
    vec![
        form(&[0x86], Memory, false), // xchg
        form(&[0x87], Memory, true),
        form(&[0x0f, 0xc0], Either, false), // xadd
        form(&[0x0f, 0xc1], Either, true),
        form(&[0x0f, 0xb0], Either, false), // cmpxchg
        form(&[0x0f, 0xb1], Either, true),
        form(&[0x0f, 0xa4], Either, true), // shld
        form(&[0x0f, 0xa5], Either, true),
    ]
}

/// A random encoding of `form`. Memory without a base register is given its address outright.
pub(crate) fn encode(form: &Form, rng: &mut Rng, native: &Native) -> Vec<u8> {
    let memory = match form.operand {
        Operand::Register => false,
        Operand::Memory => true,
        Operand::Either => rng.next().is_multiple_of(2),
    };
    let mut bytes = vec![];
    let mut word = false;
    if memory && rng.next().is_multiple_of(4) {
        bytes.push(0x67);
    }
    let gs = memory && rng.next().is_multiple_of(4);
    if gs {
        bytes.push(0x65);
    }
    let mut rex = match rng.next() % 4 {
        0 => 0x40 | (rng.next() & 7) as u8,
        _ => 0,
    };
    if form.wide {
        match rng.next() % 3 {
            0 => {
                word = true;
                bytes.push(0x66);
            }
            1 => rex |= 0x48,
            _ => {}
        }
    }
    if rex != 0 {
        bytes.push(rex);
    }
    bytes.extend(&form.opcode);
    let reg = form.extension.unwrap_or((rng.next() & 7) as u8) << 3;
    let mut relative_at = None;
    if memory {
        let mode = (rng.next() % 3) as u8;
        let rm = (rng.next() & 7) as u8;
        bytes.push(mode << 6 | reg | rm);
        let mut no_base = mode == 0 && rm == 5;
        if no_base {
            relative_at = Some(bytes.len());
        }
        if rm == 4 {
            let sib = rng.next() as u8;
            bytes.push(sib);
            no_base = mode == 0 && sib & 7 == 5;
        }
        match mode {
            _ if no_base => {
                let scratch = if gs { 0 } else { native.at(SCRATCH) };
                bytes.extend((scratch as u32 + 0x100).to_le_bytes());
            }
            1 => bytes.push(rng.next() as u8),
            2 => bytes.extend((rng.next() as u32).to_le_bytes()),
            _ => {}
        }
    } else {
        bytes.push(0xc0 | reg | (rng.next() & 7) as u8);
    }
    let immediate = match form.immediate {
        Immediate::None => 0,
        Immediate::Byte => 1,
        Immediate::Z if word => 2,
        Immediate::Z => 4,
    };
    let value = rng.value();
    bytes.extend(&value.to_le_bytes()[..immediate]);
    if let Some(at) = relative_at {
        let target = if gs { 0x100 } else { native.at(SCRATCH) + 0x100 };
        let displacement = target.wrapping_sub(native.at(SITE) + bytes.len() as u64) as u32;
        bytes[at..at + 4].copy_from_slice(&displacement.to_le_bytes());
    }
    bytes
}

/// Encodings that have no ModRM byte, or whose registers have to be chosen for them.
pub(crate) fn others(rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut list: Vec<Vec<u8>> = vec![
        vec![0x90],
        vec![0x66, 0x90],
        vec![0x0f, 0x1f, 0x44, 0, 0],
        vec![0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        vec![0xf3, 0x0f, 0x1e, 0xfa],
        vec![0xf3, 0x0f, 0x1e, 0xfb],
        vec![0x66, 0x98],
        vec![0x98],
        vec![0x48, 0x98],
        vec![0x66, 0x99],
        vec![0x99],
        vec![0x48, 0x99],
        vec![0xc9],
        vec![0xc3],
        vec![0xf3, 0xc3],
        vec![0xc2, 0x18, 0x00],
        vec![0x6a, 0x80],
        vec![0x6a, 0x7f],
        vec![0x68, 0xff, 0xff, 0xff, 0xff],
        vec![0x68, 1, 2, 3, 4],
        vec![0x41, 0x87, 0xc0],
        vec![0x87, 0xc0],
        // pause; clc, stc, cmc, cld, std; lahf, sahf; pushfq, popfq
        vec![0xf3, 0x90],
        vec![0xf8],
        vec![0xf9],
        vec![0xf5],
        vec![0xfc],
        vec![0xfd],
        vec![0x9f],
        vec![0x9e],
        vec![0x9c],
        vec![0x9d],
    ];
    for low in 0..8 {
        list.push(vec![0x50 | low]);
        list.push(vec![0x41, 0x50 | low]);
        list.push(vec![0x58 | low]);
        list.push(vec![0x41, 0x58 | low]);
        list.push(vec![0x0f, 0xc8 | low]);
        list.push(vec![0x49, 0x0f, 0xc8 | low]);
        list.push(vec![0x48, 0x90 | low]);
        list.push(vec![0x66, 0x90 | low]);
        let immediate = rng.next().to_le_bytes();
        list.push([&[0xb0 | low], &immediate[..1]].concat());
        list.push([&[0x66, 0xb8 | low], &immediate[..2]].concat());
        list.push([&[0xb8 | low], &immediate[..4]].concat());
        list.push([&[0x49, 0xb8 | low], &immediate[..8]].concat());
        // call and jmp through registers and memory
        list.push(vec![0xff, 0xd0 | low]);
        list.push(vec![0x41, 0xff, 0xd0 | low]);
        list.push(vec![0xff, 0xe0 | low]);
        list.push(vec![0x41, 0xff, 0xe0 | low]);
        let operand: &[u8] = if low == 4 { &[0xcb] } else { &[] }; // [rbx + rcx * 8 + 0x20]
        list.push([&[0xff, 0x50 | low], operand, &[0x20]].concat());
        list.push([&[0xff, 0x60 | low], operand, &[0x20]].concat());
    }
    // The accumulator forms.
    for row in [0x00u8, 0x08, 0x10, 0x18, 0x20, 0x28, 0x30, 0x38] {
        list.push(vec![row | 4, rng.next() as u8]);
        list.push([&[row | 5][..], &rng.value().to_le_bytes()[..4]].concat());
        list.push([&[0x66, row | 5][..], &rng.value().to_le_bytes()[..2]].concat());
        list.push([&[0x48, row | 5][..], &rng.value().to_le_bytes()[..4]].concat());
    }
    list.push(vec![0xa8, rng.next() as u8]);
    list.push([&[0x48, 0xa9][..], &rng.value().to_le_bytes()[..4]].concat());
    // Branches to the landing pad.
    let short = |length: usize| (LANDED - SITE - length) as u8;
    let near = |length: usize| ((LANDED - SITE - length) as u32).to_le_bytes();
    list.push(vec![0xeb, short(2)]);
    list.push([&[0xe9][..], &near(5)].concat());
    list.push([&[0xe8][..], &near(5)].concat());
    list.push([&[0x2e, 0xe8][..], &near(6)].concat());
    // loopne, loope, loop, jrcxz, and with ecx.
    for opcode in 0xe0..=0xe3 {
        list.push(vec![opcode, short(2)]);
        list.push(vec![0x67, opcode, short(3)]);
    }
    for condition in 0..16 {
        list.push(vec![0x70 | condition, short(2)]);
        list.push([&[0x0f, 0x80 | condition][..], &near(6)].concat());
    }
    list
}
