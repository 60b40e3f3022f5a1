//! Decoding, and the proof that an address is the start of an instruction.
//!
//! x86 instructions have no alignment and no marks: bytes decode at nearly any offset. That an address starts an
//! instruction can only be shown by decoding everything from a known start, the symbol that holds it.

use crate::addr::Gva;
use iced_x86::{Decoder, DecoderOptions, Formatter, Instruction, IntelFormatter};

/// The first instruction of `bytes`, which lie at `at`, in 64-bit mode; `None` when they are no instruction or
/// end before it does.
#[must_use]
pub fn decode(bytes: &[u8], at: Gva) -> Option<Instruction> {
    let instruction = Decoder::with_ip(64, bytes, at.0, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// The instruction in Intel syntax, addresses absolute, for a user to read.
#[must_use]
pub fn text(instruction: &Instruction) -> String {
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(true);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}

/// An address that is proven to start an instruction.
#[derive(Debug, Clone, Copy)]
pub struct Start {
    /// The instruction that starts there.
    pub instruction: Instruction,
    /// The instruction before it in the same symbol, whose shadow it may stand in.
    pub previous: Option<Instruction>,
}

/// Why an address is not known to start an instruction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BoundaryError {
    /// The address lies in the middle of an instruction.
    #[error("{at} lies inside the {length}-byte instruction at {start}: {text}")]
    Inside {
        /// The address asked for.
        at: Gva,
        /// Where the instruction around it starts.
        start: Gva,
        /// The bytes of that instruction.
        length: usize,
        /// That instruction in Intel syntax.
        text: String,
    },
    /// The walk met bytes that are no instruction, at or before the address.
    #[error("{at} cannot be shown to start an instruction: the bytes at {undecodable} are none")]
    Undecodable {
        /// The address asked for.
        at: Gva,
        /// Where decoding stopped.
        undecodable: Gva,
    },
    /// The address lies before or behind the bytes given.
    #[error("{at} lies outside the function, which is {length} bytes from {start}")]
    Outside {
        /// The address asked for.
        at: Gva,
        /// Where the function starts.
        start: Gva,
        /// The bytes of the function.
        length: usize,
    },
}

/// The instructions of `text`, which lies at `start`, one behind the other. Bytes that are none, or end before it
/// does, are one that [`Instruction::is_invalid`]; what follows it proves nothing.
pub fn instructions(text: &[u8], start: Gva) -> impl Iterator<Item = Instruction> {
    Decoder::with_ip(64, text, start.0, DecoderOptions::NONE).into_iter()
}

/// Walks the instructions of one symbol, whose `text` lies at `start`, up to `at`.
///
/// The text must be the guest's own: bytes that a probe replaced have to be put back in the copy first.
///
/// # Errors
/// [`BoundaryError`] when `at` is not the start of an instruction, or cannot be proven to be one.
pub fn instruction_at(text: &[u8], start: Gva, at: Gva) -> Result<Start, BoundaryError> {
    let outside = BoundaryError::Outside { at, start, length: text.len() };
    let Some(target) = at.offset_from(start).and_then(|offset| usize::try_from(offset).ok()) else {
        return Err(outside);
    };
    if target >= text.len() {
        return Err(outside);
    }
    let mut previous = None;
    for instruction in instructions(text, start) {
        let here = Gva(instruction.ip());
        let length = instruction.len();
        if instruction.is_invalid() {
            return Err(BoundaryError::Undecodable { at, undecodable: here });
        }
        if here == at {
            return Ok(Start { instruction, previous });
        }
        if at.offset_from(here).is_some_and(|offset| offset < length as u64) {
            return Err(BoundaryError::Inside { at, start: here, length, text: self::text(&instruction) });
        }
        previous = Some(instruction);
    }
    Err(outside)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Gva = Gva(0xffff_ffff_8100_0000);

    /// endbr64; nop dword ptr [rax+rax]; push rbp; mov rbp, rsp; int3; int3
    const FUNCTION: [u8; 15] =
        [0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x44, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0xcc, 0xcc];

    #[test]
    fn every_offset_is_a_start_or_names_the_instruction_around_it() {
        let starts = [0, 4, 9, 10, 13, 14];
        for offset in 0..FUNCTION.len() as u64 {
            let found = instruction_at(&FUNCTION, BASE, BASE.add(offset));
            match starts.binary_search(&offset) {
                Ok(index) => {
                    let found = found.unwrap();
                    assert_eq!(found.instruction.ip(), BASE.0 + offset);
                    assert_eq!(
                        found.previous.map(|p| p.ip()),
                        index.checked_sub(1).map(|i| BASE.0 + starts[i])
                    );
                }
                Err(index) => match found.unwrap_err() {
                    BoundaryError::Inside { at, start, length, .. } => {
                        assert_eq!((at, start), (BASE.add(offset), BASE.add(starts[index - 1])));
                        assert_eq!(length as u64, starts[index] - starts[index - 1]);
                    }
                    other => panic!("{other:?}"),
                },
            }
        }
    }

    #[test]
    fn the_error_is_a_sentence() {
        assert_eq!(
            instruction_at(&FUNCTION, BASE, BASE.add(11)).unwrap_err().to_string(),
            "0xffffffff8100000b lies inside the 3-byte instruction at 0xffffffff8100000a: mov rbp, rsp"
        );
    }

    #[test]
    fn undecodable_and_cut_off_bytes_end_the_proof() {
        let cases: [(&[u8], u64, u64); 3] = [
            (&[0x90, 0x06, 0x90], 1, 1), // 0x06 was `push es` before 64-bit mode
            (&[0x90, 0x06, 0x90], 2, 1),
            (&[0x90, 0x48, 0x89], 2, 1),
        ];
        for (text, offset, undecodable) in cases {
            let error = instruction_at(text, BASE, BASE.add(offset)).unwrap_err();
            let expected =
                BoundaryError::Undecodable { at: BASE.add(offset), undecodable: BASE.add(undecodable) };
            assert_eq!(error, expected, "{text:x?}");
        }
    }

    #[test]
    fn addresses_around_the_function_are_outside() {
        for at in [BASE.offset(-1), BASE.add(FUNCTION.len() as u64), Gva(0), Gva(u64::MAX)] {
            let error = instruction_at(&FUNCTION, BASE, at).unwrap_err();
            assert!(matches!(error, BoundaryError::Outside { .. }), "{at}: {error}");
        }
        assert!(instruction_at(&[], BASE, BASE).is_err());
    }
}
