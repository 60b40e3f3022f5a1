//! Tracepoints that a program has of its own (USDT): notes in its file say where they are, and where their arguments are then
//! (systemtap's `sys/sdt.h`, version 3).

use super::read::u64_at;
use crate::regs::Register;

/// `n_type` of such a note.
pub(super) const NOTE: u32 = 3;
/// Whose such notes are.
pub(super) const OWNER: &[u8] = b"stapsdt";
/// Most arguments of one.
const MOST_ARGUMENTS: usize = 12;

/// What a note says. Addresses are as the file was linked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UsdtNote<'a> {
    /// Of the instruction, a nop.
    pub(super) at: u64,
    /// Of the section `.stapsdt.base` when the note was written.
    pub(super) base: u64,
    /// Of the counter that is not 0 while somebody probes there; 0 where there is none.
    pub(super) counter: u64,
    pub(super) provider: &'a [u8],
    pub(super) name: &'a [u8],
    pub(super) arguments: &'a [u8],
}

/// Where an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsdtPlace {
    /// In a register.
    Register(Register),
    /// In memory, so many bytes from where a register points.
    Memory(Register, i64),
    /// It is this number.
    Constant(u64),
    /// Somewhere else.
    Unknown,
}

/// An argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UsdtArgument {
    /// How many bytes it has: 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether it is a number that may be negative.
    pub is_signed: bool,
    /// Where it is.
    pub at: UsdtPlace,
}

impl<'a> UsdtNote<'a> {
    /// What the description of a note says, if it is one.
    pub(super) fn parse(description: &'a [u8]) -> Option<Self> {
        const WORD: usize = 8;
        let word = |n: usize| u64_at(description, n * WORD);
        let mut texts = description.get(3 * WORD..)?.split(|byte| *byte == 0);
        let (provider, name, arguments) = (texts.next()?, texts.next()?, texts.next()?);
        Some(Self { at: word(0)?, base: word(1)?, counter: word(2)?, provider, name, arguments })
    }

    /// The same where the section `.stapsdt.base` is at `base` now.
    pub(super) fn moved(self, base: Option<u64>) -> Self {
        let by = base.filter(|_| self.base != 0).map_or(0, |base| base.wrapping_sub(self.base));
        let counter = if self.counter == 0 { 0 } else { self.counter.wrapping_add(by) };
        Self { at: self.at.wrapping_add(by), base: self.base.wrapping_add(by), counter, ..self }
    }

    /// Its arguments, as far as they are understood.
    pub(super) fn arguments(&self) -> Vec<UsdtArgument> {
        let text = str::from_utf8(self.arguments).unwrap_or_default();
        text.split_ascii_whitespace().take(MOST_ARGUMENTS).map(UsdtArgument::parse).collect()
    }
}

impl UsdtArgument {
    /// `N@PLACE`, where `N` is how many bytes it has, and negative for a signed number: `8@%rdi`, `-4@-20(%rbp)`, `4@$5`.
    fn parse(text: &str) -> Self {
        let (size, place) = text.split_once('@').unwrap_or(("", ""));
        let digits = size.strip_prefix('-').unwrap_or(size);
        let is_signed = size.starts_with('-');
        match digits.parse() {
            Ok(bytes @ (1 | 2 | 4 | 8)) => Self { bytes, is_signed, at: UsdtPlace::parse(place) },
            // Floating-point numbers have an `f` there.
            _ => Self { bytes: 8, is_signed, at: UsdtPlace::Unknown },
        }
    }
}

impl UsdtPlace {
    fn parse(text: &str) -> Self {
        let found = || {
            if let Some(number) = text.strip_prefix('$') {
                return Some(Self::Constant(integer(number)?.cast_unsigned()));
            }
            if let Some(name) = text.strip_prefix('%') {
                return register(name).map(Self::Register);
            }
            let (offset, base) = text.strip_suffix(')')?.split_once("(%")?;
            let offset = if offset.is_empty() { 0 } else { integer(offset)? };
            // Others have an index: `8(%rax,%rbx,4)`. Nobody says from which instruction on RIP would count.
            let base = whole(base).filter(|base| *base != Register::Rip)?;
            Some(Self::Memory(base, offset))
        };
        found().unwrap_or(Self::Unknown)
    }
}

fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text),
    };
    let (digits, radix) = digits.strip_prefix("0x").map_or((digits, 10), |digits| (digits, 16));
    if !digits.bytes().all(|digit| digit.is_ascii_alphanumeric()) {
        return None;
    }
    let signed = i64::from_str_radix(&format!("{sign}{digits}"), radix).ok();
    signed
        .or_else(|| Some(u64::from_str_radix(digits, radix).ok().filter(|_| sign.is_empty())?.cast_signed()))
}

/// A register of 8 bytes, by the processor's name.
fn whole(name: &str) -> Option<Register> {
    Register::named(name).filter(|_| name.starts_with('r') && name != "rflags")
}

/// The register of which this is a name, also of its low bytes. Its second byte (`ah`) has none.
fn register(name: &str) -> Option<Register> {
    if let Some(whole) = whole(name) {
        return Some(whole);
    }
    if let Some(numbered) = name.strip_suffix(['d', 'w', 'b', 'l']).filter(|name| name.starts_with('r')) {
        return whole(numbered);
    }
    let legacy = name.strip_prefix('e').unwrap_or(name);
    let of_byte = |name: &str| match name {
        "al" => Some(Register::Rax),
        "bl" => Some(Register::Rbx),
        "cl" => Some(Register::Rcx),
        "dl" => Some(Register::Rdx),
        "sil" => Some(Register::Rsi),
        "dil" => Some(Register::Rdi),
        "bpl" => Some(Register::Rbp),
        "spl" => Some(Register::Rsp),
        _ => None,
    };
    of_byte(name)
        .or_else(|| Register::named(legacy).filter(|_| legacy.len() == 2 && !legacy.starts_with('r')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argument(text: &str) -> UsdtArgument {
        UsdtArgument::parse(text)
    }

    fn is(bytes: u8, is_signed: bool, at: UsdtPlace) -> UsdtArgument {
        UsdtArgument { bytes, is_signed, at }
    }

    #[test]
    fn arguments_are_where_they_say() {
        use Register::{R10, R15, Rax, Rbp, Rbx, Rdi, Rsi, Rsp};
        use UsdtPlace::{Constant, Memory, Register as In};
        for (text, expected) in [
            ("8@%rdi", is(8, false, In(Rdi))),
            ("-4@%eax", is(4, true, In(Rax))),
            ("-2@%bp", is(2, true, In(Rbp))),
            ("1@%sil", is(1, false, In(Rsi))),
            ("1@%bl", is(1, false, In(Rbx))),
            ("-4@%r10d", is(4, true, In(R10))),
            ("2@%r15w", is(2, false, In(R15))),
            ("1@%r10b", is(1, false, In(R10))),
            ("-4@-20(%rbp)", is(4, true, Memory(Rbp, -20))),
            ("8@(%rsp)", is(8, false, Memory(Rsp, 0))),
            ("8@0x10(%rbx)", is(8, false, Memory(Rbx, 16))),
            ("-4@$-1", is(4, true, Constant(u64::MAX))),
            ("8@$18446744073709551615", is(8, false, Constant(u64::MAX))),
        ] {
            assert_eq!(argument(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_elsewhere_is_not_guessed() {
        for text in [
            "8@8(%rax,%rbx,4)",
            "8@name(%rip)",
            "8@16(%rip)",
            "8@name",
            "1@%ah",
            "8f@%xmm0",
            "16@%rdi",
            "8@%rflags",
            "8@%flags",
            "8@",
            "%rdi",
            "8@$",
            "8@$+1",
            "8@$0x-1",
            "",
        ] {
            assert_eq!(argument(text).at, UsdtPlace::Unknown, "{text}");
        }
    }

    #[test]
    fn a_note_has_three_addresses_and_three_texts() {
        let mut description: Vec<u8> =
            [0x10u64, 0x20, 0x30].iter().flat_map(|word| word.to_le_bytes()).collect();
        description.extend(b"python\0gc__start\08@%rdi -4@%esi\0");
        let note = UsdtNote::parse(&description).unwrap();
        assert_eq!([note.at, note.base, note.counter], [0x10, 0x20, 0x30]);
        assert_eq!([note.provider, note.name], [&b"python"[..], b"gc__start"]);
        assert_eq!(note.arguments().len(), 2);
        let moved = note.clone().moved(Some(0x1020));
        assert_eq!([moved.at, moved.base, moved.counter], [0x1010, 0x1020, 0x1030]);
        assert_eq!(note.clone().moved(None), note);
        for length in 0..32 {
            assert_eq!(UsdtNote::parse(description.get(..length).unwrap()), None, "{length}");
        }
    }
}
