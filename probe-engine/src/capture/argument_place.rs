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
    /// One came whose type is not known.
    is_lost: bool,
}

impl Places {
    /// Those of a function that returns this type: the address of a structure that it returns in memory comes before all others.
    #[must_use]
    pub fn returning(btf: &Btf<'_>, ty: TypeId) -> Self {
        let is_structure = matches!(btf.plain(ty).map(|ty| ty.kind), Some(Kind::Structure(_)));
        match is_structure && btf.size(ty).is_some_and(|size| size > LARGEST) {
            true => Self::behind_address(),
            false => Self::default(),
        }
    }

    /// Those of a function that returns in memory whose address it is given.
    #[must_use]
    pub fn behind_address() -> Self {
        Self { registers: 1, ..Self::default() }
    }

    /// Where the next one is, of this type.
    pub fn next(&mut self, btf: &Btf<'_>, ty: TypeId) -> ArgumentPlace {
        let plain = btf.plain(ty).filter(|_| !self.is_lost);
        let Some((plain, size)) = plain.and_then(|plain| Some((plain, btf.size(ty)?))) else {
            return self.unknown();
        };
        let words = size.div_ceil(8);
        match (plain.kind, words) {
            // `long double`
            (Kind::Float { .. }, 2..) => {
                self.push(2);
                ArgumentPlace::Nowhere
            }
            // An array is one of the compiler's vectors: others are handed over by their address.
            (Kind::Float { .. } | Kind::Array { .. }, _) if self.vectors < VECTORS => {
                self.vectors += 1;
                ArgumentPlace::Nowhere
            }
            (Kind::Structure(_), 1..=2) => match Words::of(btf, ty) {
                Some(Words { whole, others: 0 }) => self.whole(words as u8, whole),
                Some(Words { whole, others })
                    if self.registers + whole <= REGISTERS && self.vectors + others <= VECTORS =>
                {
                    self.take(whole);
                    self.vectors += others;
                    ArgumentPlace::Nowhere
                }
                Some(_) => ArgumentPlace::Stack(self.push(words as u8)),
                None => self.unknown(),
            },
            (_, 0) => ArgumentPlace::Nowhere,
            (_, 1) if self.registers < REGISTERS => ArgumentPlace::Slot(self.take(1)),
            (_, 2) if self.registers + 1 < REGISTERS => ArgumentPlace::Pair(self.take(2)),
            (Kind::Structure(_), 1..=16) => ArgumentPlace::Stack(self.push(words as u8)),
            (_, 1) => ArgumentPlace::Slot(self.push(1)),
            _ => ArgumentPlace::Nowhere,
        }
    }

    /// The next one is of a type that is not known: where those behind it are is not known either.
    pub fn unknown(&mut self) -> ArgumentPlace {
        self.is_lost = true;
        ArgumentPlace::Nowhere
    }

    /// A structure of so many words, which all have something else than numbers with a point.
    fn whole(&mut self, words: u8, whole: u8) -> ArgumentPlace {
        match whole {
            1 if words == 1 && self.registers < REGISTERS => ArgumentPlace::Slot(self.take(1)),
            2 if self.registers + 1 < REGISTERS => ArgumentPlace::Pair(self.take(2)),
            _ => ArgumentPlace::Stack(self.push(words)),
        }
    }

    fn take(&mut self, count: u8) -> u8 {
        let first = self.registers;
        self.registers += count;
        first
    }

    fn push(&mut self, count: u8) -> u8 {
        let first = REGISTERS + self.words;
        self.words = self.words.saturating_add(count).min(u8::MAX - REGISTERS);
        first
    }
}

/// The words of a structure that is handed over in registers.
struct Words {
    /// So many have something else than numbers with a point: they are in general registers.
    whole: u8,
    /// The others are in vector registers.
    others: u8,
}

impl Words {
    /// Those of a type of two words at most; `None` where a part of it is not known.
    fn of(btf: &Btf<'_>, ty: TypeId) -> Option<Self> {
        let (mut has_whole, mut is_used) = ([false; 2], [false; 2]);
        let mut parts = vec![(ty, 0_u64)];
        let mut steps = 0;
        while let Some((ty, bit)) = parts.pop() {
            steps += 1;
            if steps > MOST_PARTS {
                return None;
            }
            let is_float = match btf.plain(ty)?.kind {
                Kind::Structure(structure) => {
                    parts.extend(structure.members().map(|member| (member.ty, bit + member.bit)));
                    continue;
                }
                Kind::Array { element, count } => {
                    let bits = 8 * btf.size(element)?;
                    let count = u64::from(count).min(MOST_PARTS as u64);
                    parts.extend((0..count).map(|n| (element, bit + n * bits)));
                    continue;
                }
                Kind::Float { .. } => true,
                _ => false,
            };
            let word = (bit / 64) as usize;
            *is_used.get_mut(word)? = true;
            if let Some(whole) = has_whole.get_mut(word).filter(|_| !is_float) {
                *whole = true;
            }
        }
        let whole = has_whole.iter().filter(|whole| **whole).count() as u8;
        let used = is_used.iter().filter(|used| **used).count() as u8;
        // The parts that a class has of another one are not described.
        let is_all = u64::from(used) == btf.size(ty)?.div_ceil(8);
        is_all.then_some(Self { whole, others: used.saturating_sub(whole) })
    }
}

/// Whether a value of this type is returned in vector registers.
#[must_use]
pub fn is_returned_in_vectors(btf: &Btf<'_>, ty: TypeId) -> bool {
    match btf.plain(ty).map(|plain| plain.kind) {
        Some(Kind::Float { .. } | Kind::Array { .. }) => true,
        Some(Kind::Structure(structure)) if u64::from(structure.size) <= LARGEST => {
            Words::of(btf, ty).is_none_or(|words| words.whole == 0)
        }
        _ => false,
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
