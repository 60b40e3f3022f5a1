//! Running an instruction from a copy, in a page that the guest does not know.
//!
//! The copy has the bytes of the original: re-encoding could lose a prefix. Only the displacement of a RIP-relative
//! operand changes, and it always has 32 bits, so that a copy is as long as its original. What is no good in a
//! copy, branches above all, was refused before.

use crate::addr::Gva;
use iced_x86::{Decoder, DecoderOptions, Instruction, Register};

/// Bytes of a slot: an instruction has at most 15, and the jump behind it 5.
pub const SLOT: usize = 32;

/// What fills a slot behind its code (`int3`).
const FILLER: u8 = 0xcc;

/// What follows the copied instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// A jump to the instruction behind the original: the guest goes on by itself.
    Jump,
    /// An `int3`, at [`OutOfLine::trap`]: something has to be done before the guest goes on at
    /// [`OutOfLine::next`].
    Trap,
}

/// The slot is more than 2 GiB away from what its code refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a copy at {slot} does not reach {target}")]
pub struct OutOfReach {
    /// Where the copy was to be placed.
    pub slot: Gva,
    /// The operand or the next instruction.
    pub target: Gva,
}

/// One instruction that can run at another address than its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfLine {
    at: Gva,
    length: usize,
    /// The copy, whatever its place; the rest is [`FILLER`].
    code: [u8; SLOT],
    operand: Option<RipRelative>,
}

/// The displacement to change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RipRelative {
    /// Where in the instruction its four bytes are.
    offset: usize,
    /// The address that it means.
    target: Gva,
}

impl OutOfLine {
    /// A copy of the first instruction of `bytes`, which lie at `at`; `None` when it has an operand that cannot be
    /// re-based: with an address-size prefix it is relative to the low half of RIP.
    pub(crate) fn new(bytes: &[u8], at: Gva) -> Option<Self> {
        let mut decoder = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let length = instruction.len();
        let mut code = [FILLER; SLOT];
        code.get_mut(..length)?.copy_from_slice(bytes.get(..length)?);
        let operand = match instruction.is_ip_rel_memory_operand() {
            true => Some(rip_relative(&decoder, &instruction)?),
            false => None,
        };
        Some(Self { at, length, code, operand })
    }

    /// The address of the original.
    #[must_use]
    pub fn at(&self) -> Gva {
        self.at
    }

    /// Its bytes, here as there.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The address of the instruction behind the original.
    #[must_use]
    pub fn next(&self) -> Gva {
        self.at.add(self.length as u64)
    }

    /// The address of the `int3` behind a copy in `slot` that was placed with [`Ending::Trap`].
    #[must_use]
    pub fn trap(&self, slot: Gva) -> Gva {
        slot.add(self.length as u64)
    }

    /// The code to write to `slot`, where the guest is to go on instead of at the original.
    ///
    /// # Errors
    /// [`OutOfReach`] when the slot is too far away.
    pub fn place(&self, slot: Gva, ending: Ending) -> Result<[u8; SLOT], OutOfReach> {
        let mut code = self.code;
        let after = self.trap(slot);
        if let Some(operand) = self.operand {
            put(&mut code, operand.offset, &distance(slot, after, operand.target)?);
        }
        if ending == Ending::Jump {
            let jump = jump(after, self.next()).map_err(|error| OutOfReach { slot, ..error })?;
            put(&mut code, self.length, &jump);
        }
        Ok(code)
    }
}

/// Bytes of `jmp rel32`.
pub const JUMP: usize = 5;
/// Its first one; a distance follows.
pub(crate) const JMP_REL32: u8 = 0xe9;

/// The `jmp rel32` at `at` that leads to `to`.
///
/// # Errors
/// [`OutOfReach`].
pub fn jump(at: Gva, to: Gva) -> Result<[u8; JUMP], OutOfReach> {
    let [a, b, c, d] = distance(at, at.add(JUMP as u64), to)?;
    Ok([JMP_REL32, a, b, c, d])
}

fn rip_relative(decoder: &Decoder<'_>, instruction: &Instruction) -> Option<RipRelative> {
    let offsets = decoder.get_constant_offsets(instruction);
    let is_usual = instruction.memory_base() == Register::RIP && offsets.displacement_size() == 4;
    let target = Gva(instruction.ip_rel_memory_address());
    is_usual.then_some(RipRelative { offset: offsets.displacement_offset(), target })
}

/// The 32 bits that lead from `origin`, the end of an instruction in `slot`, to `target`.
pub(crate) fn distance(slot: Gva, origin: Gva, target: Gva) -> Result<[u8; 4], OutOfReach> {
    let distance = target.0.wrapping_sub(origin.0) as i64;
    i32::try_from(distance).map(i32::to_le_bytes).map_err(|_| OutOfReach { slot, target })
}

/// Overwrites a part of `code`. Every offset is inside: an instruction and a jump have 20 bytes.
fn put(code: &mut [u8; SLOT], offset: usize, bytes: &[u8]) {
    for (to, from) in code.iter_mut().skip(offset).zip(bytes) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::decode;
    use super::super::plan::{StepPlan, plan};
    use super::*;

    const AT: Gva = Gva(0xffff_ffff_8100_0000);
    const SLOT_AT: Gva = Gva(0xffff_ffff_ff00_0020);
    const FAR: Gva = Gva(0xffff_c900_0000_0000);

    fn placed(bytes: &[u8], ending: Ending) -> [u8; SLOT] {
        OutOfLine::new(bytes, AT).unwrap().place(SLOT_AT, ending).unwrap()
    }

    #[test]
    fn a_copy_ends_in_a_jump_back_or_in_a_trap() {
        let lock_add = [0xf0, 0x48, 0x01, 0x03];
        let copy = OutOfLine::new(&[0xf0, 0x48, 0x01, 0x03, 0x90], AT).unwrap();
        assert_eq!((copy.at(), copy.next(), copy.trap(SLOT_AT)), (AT, AT.add(4), SLOT_AT.add(4)));
        for (ending, code_length) in [(Ending::Trap, 4), (Ending::Jump, 9)] {
            let code = placed(&lock_add, ending);
            assert_eq!(code[..4], lock_add);
            assert_eq!(code[code_length..], [0xcc; SLOT][code_length..]);
        }
        let back = decode(&placed(&lock_add, Ending::Jump)[4..], SLOT_AT.add(4)).unwrap();
        assert_eq!((back.len(), back.near_branch64()), (5, AT.0 + 4));
    }

    #[test]
    fn an_operand_relative_to_rip_is_re_based() {
        let cases: [&[u8]; 4] = [
            &[0xf0, 0x48, 0x01, 0x05, 0x10, 0, 0, 0], // lock add [rip+0x10], rax
            &[0x65, 0x48, 0x87, 0x05, 0, 0, 0, 0x7f], // xchg gs:[rip+0x7f000000], rax
            &[0xf0, 0x48, 0x81, 0x05, 0xfc, 0xff, 0xff, 0xff, 1, 2, 3, 4], // with an immediate behind it
            &[0xc4, 0xe3, 0x79, 0x0f, 0x05, 0x20, 0, 0, 0, 0x08], // vpalignr xmm0, xmm0, [rip+0x20], 8
        ];
        for bytes in cases {
            let original = decode(bytes, AT).unwrap();
            let copy = decode(&placed(bytes, Ending::Trap), SLOT_AT).unwrap();
            assert_eq!(copy.ip_rel_memory_address(), original.ip_rel_memory_address(), "{bytes:02x?}");
            assert_eq!((copy.code(), copy.len()), (original.code(), bytes.len()), "{bytes:02x?}");
            assert_eq!(copy.memory_segment(), original.memory_segment(), "{bytes:02x?}");
        }
        assert_eq!(OutOfLine::new(&[0x67, 0xf0, 0x48, 0x01, 0x05, 0x10, 0, 0, 0], AT), None);
    }

    #[test]
    fn reach_is_two_gib_to_the_byte() {
        let jump = OutOfLine::new(&[0x0f, 0xa2], AT).unwrap(); // cpuid
        let operand = OutOfLine::new(&[0x48, 0x87, 0x05, 0, 0, 0, 0], AT).unwrap(); // xchg [rip], rax
        let target = AT.add(7);
        let cases = [
            // From behind the jump, 7 bytes into the slot, to 2 bytes behind the original.
            (jump, AT.offset(0x8000_0000 - 5), Ending::Jump, true),
            (jump, AT.offset(0x8000_0001 - 5), Ending::Jump, false),
            (jump, AT.offset(-0x7fff_ffff - 5), Ending::Jump, true),
            (jump, AT.offset(-0x8000_0000 - 5), Ending::Jump, false),
            (jump, FAR, Ending::Trap, true),
            (operand, target.add(0x8000_0000 - 7), Ending::Trap, true),
            (operand, target.add(0x8000_0001 - 7), Ending::Trap, false),
            (operand, FAR, Ending::Trap, false),
        ];
        for (copy, slot, ending, reaches) in cases {
            let placed = copy.place(slot, ending);
            assert_eq!(placed.is_ok(), reaches, "{slot} {ending:?}: {placed:?}");
        }
        assert_eq!(
            operand.place(FAR, Ending::Trap).unwrap_err().to_string(),
            "a copy at 0xffffc90000000000 does not reach 0xffffffff81000007"
        );
    }

    proptest::proptest! {
        #[test]
        fn a_copy_is_the_same_instruction_with_the_same_operand(
            bytes in proptest::collection::vec(proptest::num::u8::ANY, 1..16),
            distance in -0x8000_0000i64..0x8000_0000,
        ) {
            let slot = AT.offset(distance);
            if let Ok(StepPlan::OutOfLine(copy)) = plan(&bytes, AT, None, false)
                && let Ok(code) = copy.place(slot, Ending::Trap)
            {
                let original = decode(&bytes, AT).unwrap();
                let copied = decode(&code, slot).unwrap();
                // Equality of instructions leaves their addresses out.
                proptest::prop_assert_eq!(original, copied);
                proptest::prop_assert_eq!(copied.next_ip(), copy.trap(slot).0);
                proptest::prop_assert_eq!(code[copied.len()], 0xcc);
            }
        }
    }
}
