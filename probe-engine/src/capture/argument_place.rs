//! Where the parameters of a call are, as the System V ABI for x86-64 (3.2.3) tells. What is in vector registers cannot be read.

use super::Base;
use crate::linux::btf::{Btf, Kind, TypeId};

/// Argument registers.
const REGISTERS: u8 = 6;
/// Argument registers of numbers with a point.
const VECTORS: u8 = 8;
/// Larger structures are in memory, in bytes.
const LARGEST: u64 = 16;
/// A structure of so many bytes has no more parts, those of its parts included.
const MOST_PARTS: usize = 64;
/// Most words on the stack.
const MOST_WORDS: u64 = 200;
/// Most words of one that is read there.
const MOST_READ: u64 = 16;

/// Where an argument is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentPlace {
    /// Slot `n`: 0 to 5 are registers, from 6 on words on the stack.
    Slot(u8),
    /// Two registers from this on.
    Pair(u8),
    /// On the stack as a whole, from this slot on.
    Stack(u8),
    /// Where the first argument leads to, so many bytes further: the registers that a program had.
    Saved(u16),
    /// Nowhere that can be read.
    Nowhere,
}

/// Gives the arguments of one function their places, in their order.
#[derive(Debug, Default)]
pub struct Places {
    registers: u8,
    vectors: u8,
    words: u8,
    /// One came whose place cannot be told: neither can those of the others.
    is_lost: bool,
}

impl Places {
    /// Those of a function that returns this type: the address of what it returns in memory comes before all others.
    #[must_use]
    pub fn returning(btf: &Btf<'_>, ty: TypeId) -> Self {
        if ty == TypeId::VOID {
            return Self::default();
        }
        match Class::of(btf, ty) {
            Some(Class::Memory { .. }) => Self::behind_address(),
            // `long double` is returned in a register of its own.
            Some(_) => Self::default(),
            None => Self::unknown(),
        }
    }

    /// Those of a function that returns in memory whose address it is given.
    #[must_use]
    pub fn behind_address() -> Self {
        Self { registers: 1, ..Self::default() }
    }

    /// Those of a function of which it is not known how it returns.
    #[must_use]
    pub fn unknown() -> Self {
        Self { is_lost: true, ..Self::default() }
    }

    /// Where the next one is, of this type; `None` for a type that is not known.
    pub fn next(&mut self, btf: &Btf<'_>, ty: Option<TypeId>) -> ArgumentPlace {
        let place = match ty.and_then(|ty| Class::of(btf, ty)) {
            Some(class) if !self.is_lost => self.place(class),
            _ => None,
        };
        self.is_lost |= place.is_none();
        place.unwrap_or(ArgumentPlace::Nowhere)
    }

    /// `None` where that cannot be told.
    fn place(&mut self, class: Class) -> Option<ArgumentPlace> {
        Some(match class {
            Class::Nothing => ArgumentPlace::Nowhere,
            Class::Words { whole, others } => {
                let (whole_count, others_count) = (count(whole), count(others));
                let fits =
                    self.registers + whole_count <= REGISTERS && self.vectors + others_count <= VECTORS;
                if !fits {
                    return self.push(u64::from(whole_count + others_count), false);
                }
                let first = self.registers;
                self.registers += whole_count;
                self.vectors += others_count;
                match (whole_count, others_count) {
                    (1, 0) => ArgumentPlace::Slot(first),
                    (2, 0) => ArgumentPlace::Pair(first),
                    _ => ArgumentPlace::Nowhere,
                }
            }
            Class::Whole { words: 1 } if self.registers < REGISTERS => {
                self.registers += 1;
                ArgumentPlace::Slot(self.registers - 1)
            }
            Class::Whole { words: 1 } => ArgumentPlace::Slot(self.pushed(1, false)?),
            Class::Whole { .. } if self.registers + 1 < REGISTERS => {
                self.registers += 2;
                ArgumentPlace::Pair(self.registers - 2)
            }
            Class::Whole { words } => {
                self.pushed(words.into(), true)?;
                ArgumentPlace::Nowhere
            }
            Class::Vectors { count, .. } if self.vectors + count <= VECTORS => {
                self.vectors += count;
                ArgumentPlace::Nowhere
            }
            Class::Vectors { words, .. } => {
                self.pushed(words.into(), words > 1)?;
                ArgumentPlace::Nowhere
            }
            Class::Extended => {
                self.pushed(2, true)?;
                ArgumentPlace::Nowhere
            }
            Class::Memory { words, is_aligned } => return self.push(words, is_aligned),
        })
    }

    /// A structure that is on the stack.
    fn push(&mut self, words: u64, is_aligned: bool) -> Option<ArgumentPlace> {
        let first = self.pushed(words, is_aligned)?;
        Some(if words <= MOST_READ { ArgumentPlace::Stack(first) } else { ArgumentPlace::Nowhere })
    }

    /// The slot from which so many words lie on the stack, at a multiple of 16 bytes if that is wanted.
    fn pushed(&mut self, words: u64, is_aligned: bool) -> Option<u8> {
        let first = if is_aligned { self.words.next_multiple_of(2) } else { self.words };
        let after = u64::from(first).checked_add(words).filter(|after| *after <= MOST_WORDS)?;
        self.words = after as u8;
        Some(REGISTERS + first)
    }
}

fn count(words: [bool; 2]) -> u8 {
    words.into_iter().filter(|word| *word).count() as u8
}

/// What a value is to the ABI.
enum Class {
    /// It has no bytes.
    Nothing,
    /// A number or a pointer of so many words: 1 or 2.
    Whole { words: u8 },
    /// A number with a point, or several: in so many vector registers, or else so many words on the stack.
    Vectors { count: u8, words: u8 },
    /// `long double`: on the stack.
    Extended,
    /// A structure in registers: which of its words have something else than numbers with a point, and which have those alone.
    Words { whole: [bool; 2], others: [bool; 2] },
    /// A structure in memory, of so many words, and whether at a multiple of 16 bytes.
    Memory { words: u64, is_aligned: bool },
}

impl Class {
    /// That of a type; `None` where it is not known.
    fn of(btf: &Btf<'_>, ty: TypeId) -> Option<Self> {
        let (plain, size) = (btf.plain(ty)?, btf.size(ty)?);
        Some(match (plain.kind, size) {
            (_, 0) => Self::Nothing,
            (Kind::Structure(_), _) => return Self::of_structure(btf, ty, size),
            (Kind::Float { .. }, 1..=8) => Self::Vectors { count: 1, words: 1 },
            (Kind::Float { .. }, 16) => match plain.name() {
                "long double" => Self::Extended,
                "complex double" | "_Complex double" => Self::Vectors { count: 2, words: 2 },
                "_Float128" | "__float128" | "_Decimal128" => Self::Vectors { count: 1, words: 2 },
                _ => return None,
            },
            // One of the compiler's vectors: other arrays are handed over by their address.
            (Kind::Array { .. }, 8) => Self::Vectors { count: 1, words: 1 },
            (Kind::Array { .. }, 16) => Self::Vectors { count: 1, words: 2 },
            (Kind::Float { .. } | Kind::Array { .. }, _) => return None,
            (_, 1..=8) => Self::Whole { words: 1 },
            (_, 16) => Self::Whole { words: 2 },
            _ => return None,
        })
    }

    fn of_structure(btf: &Btf<'_>, ty: TypeId, size: u64) -> Option<Self> {
        let (mut whole, mut is_used) = ([false; 2], [false; 2]);
        let (mut is_aligned, mut is_packed) = (false, false);
        let mut parts = vec![(ty, 0_u64, false)];
        let mut steps = 0;
        while let Some((ty, bit, is_bits)) = parts.pop() {
            steps += 1;
            if steps > MOST_PARTS || parts.len() > MOST_PARTS {
                // A large one is in memory in any case.
                return (size > LARGEST).then_some(Self::Memory { words: size.div_ceil(8), is_aligned });
            }
            let part = btf.size(ty)?;
            let is_whole = match btf.plain(ty)?.kind {
                Kind::Structure(structure) => {
                    for member in structure.members().take(MOST_PARTS + 1) {
                        parts.push((member.ty, bit.checked_add(member.bit)?, member.bits.is_some()));
                    }
                    continue;
                }
                Kind::Array { element, count } => {
                    let bits = btf.size(element)?.checked_mul(8)?;
                    for n in 0..u64::from(count).min(MOST_PARTS as u64 + 1) {
                        parts.push((element, bit.checked_add(n.checked_mul(bits)?)?, false));
                    }
                    continue;
                }
                Kind::Float { .. } => false,
                _ => true,
            };
            is_aligned |= part >= 16;
            is_packed |= !is_bits && part.is_power_of_two() && !bit.is_multiple_of(part.checked_mul(8)?);
            if size > LARGEST {
                continue;
            }
            let first = (bit / 64) as usize;
            for word in first..=first + usize::from(part > 8) {
                *is_used.get_mut(word)? = true;
                *whole.get_mut(word)? |= is_whole;
            }
        }
        let words = size.div_ceil(8);
        if size > LARGEST || is_packed {
            return Some(Self::Memory { words, is_aligned });
        }
        // What a part of 16 bytes is that has a point is not told by its size.
        let others = [is_used[0] && !whole[0], is_used[1] && !whole[1]];
        let is_known = is_used.iter().filter(|used| **used).count() as u64 == words;
        (is_known && !(is_aligned && count(others) > 0)).then_some(Self::Words { whole, others })
    }
}

/// Whether the first word of a value of this type is returned in another register than RAX, or it is not known where.
#[must_use]
pub fn is_returned_elsewhere(btf: &Btf<'_>, ty: TypeId) -> bool {
    match Class::of(btf, ty) {
        Some(Class::Whole { .. } | Class::Memory { .. }) => false,
        Some(Class::Words { whole: [first, _], .. }) => !first,
        Some(Class::Nothing | Class::Vectors { .. } | Class::Extended) | None => true,
    }
}

impl ArgumentPlace {
    /// Its value; `None` for one that is no single word.
    #[must_use]
    pub fn base(self) -> Option<Base> {
        match self {
            Self::Slot(n) => Some(Base::Argument(n)),
            Self::Pair(_) | Self::Stack(_) | Self::Saved(_) | Self::Nowhere => None,
        }
    }
}
