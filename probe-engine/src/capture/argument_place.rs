//! Where the parameters of a call are, as the System V ABI for x86-64 (3.2.3) tells; the kernel uses no floating-point registers.

use super::Base;
use crate::linux::btf::{Btf, Kind, TypeId};

/// Argument registers.
const REGISTERS: u8 = 6;

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
    words: u8,
}

impl Places {
    /// Where the next one is, of this type.
    pub fn next(&mut self, btf: &Btf<'_>, ty: TypeId) -> ArgumentPlace {
        let Some(plain) = btf.plain(ty) else { return ArgumentPlace::Nowhere };
        let words = btf.size(ty).unwrap_or(8).div_ceil(8);
        match (plain.kind, words) {
            (Kind::Float { .. }, _) => ArgumentPlace::Nowhere,
            (_, 1) if self.registers < REGISTERS => ArgumentPlace::Slot(self.take(1)),
            (_, 2) if self.registers + 1 < REGISTERS => ArgumentPlace::Pair(self.take(2)),
            (Kind::Structure(_), 1..=16) => ArgumentPlace::Stack(self.push(words as u8)),
            (_, 1) => ArgumentPlace::Slot(self.push(1)),
            _ => ArgumentPlace::Nowhere,
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
