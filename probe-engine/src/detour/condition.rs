//! Which hits count, in terms of what a detour has at hand.

use super::reads::LONGEST_STRING;
use super::work::{ARGUMENTS, Unsuited};
use crate::addr::Gva;
use crate::capture::filter::{Filter, Operand, Test};
use crate::capture::shape::Shape;
use crate::capture::{Base, Fetch, Field, Read, Register, What};

/// Which hits count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// All of them.
    All(Vec<Condition>),
    /// One of them at least.
    Any(Vec<Condition>),
    /// Not this one.
    Not(Box<Condition>),
    /// A number, and how it is compared.
    Number(Number, Test),
    /// Whether the task's name is this one.
    Comm(bool, String),
    /// Whether a string in memory is this one. If it could not be read, no comparison holds.
    Text {
        /// Its entry in [`Reads`](super::reads::Reads).
        at: u64,
        /// Whether it is to be equal.
        equal: bool,
        /// This one.
        text: String,
    },
}

/// A number that can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Number {
    /// Where it comes from.
    pub from: Origin,
    /// The lowest of its bits that counts.
    pub low: u8,
    /// How many do, from 1 to 64.
    pub width: u8,
    /// Whether the highest one is its sign.
    pub is_signed: bool,
}

/// Where a number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A register.
    Register(Register),
    /// An argument in a register, from 0 on, that the call was made with which returns.
    Entered(u8),
    /// Known beforehand.
    Constant(u64),
    /// An address in the kernel, as it was linked.
    Kernel(Gva),
    /// The pid of the task that runs.
    Pid,
    /// The CPU.
    Cpu,
    /// Memory, by the entry of [`Reads`](super::reads::Reads) at this offset. If it could not be read, no comparison holds.
    Memory(u64),
}

/// What conditions are about.
pub(super) struct Fields<'a> {
    pub(super) fields: &'a [Field],
    /// What is read besides, for them alone.
    pub(super) hidden: &'a [Fetch],
    /// Where each of both is among what is read of memory, if it is.
    pub(super) read: &'a [Option<u64>],
    pub(super) at_return: bool,
}

impl Fields<'_> {
    /// Where an operand is among what is read of memory, if it is a string there.
    fn string(&self, operand: Operand) -> Option<u64> {
        let (n, fetch) = match operand {
            Operand::Field(n) => (n, &self.fields.get(usize::from(n))?.fetch),
            Operand::Hidden(n) => (n, self.hidden.get(usize::from(n).checked_sub(self.fields.len())?)?),
            Operand::Pid | Operand::Comm | Operand::Cpu | Operand::Ip => return None,
        };
        let is_string = matches!(fetch.read, Read::Memory(_, What::String(_)));
        self.read.get(usize::from(n)).copied().flatten().filter(|_| is_string)
    }
}

/// Whether a string that is `text` is kept as a whole.
fn is_kept(text: &str) -> bool {
    !text.as_bytes().contains(&0) && text.len() < usize::from(LONGEST_STRING)
}

impl Condition {
    /// What has to hold for `filter` to do.
    ///
    /// # Errors
    /// [`Unsuited`]: no detour can tell.
    pub(super) fn of(filter: &Filter, fields: &Fields<'_>) -> Result<Self, Unsuited> {
        let all = |filters: &[Filter]| -> Result<Vec<Self>, Unsuited> {
            filters.iter().map(|filter| Self::of(filter, fields)).collect()
        };
        Ok(match filter {
            Filter::All(filters) => Self::All(all(filters)?),
            Filter::Any(filters) => Self::Any(all(filters)?),
            Filter::Not(filter) => Self::Not(Box::new(Self::of(filter, fields)?)),
            Filter::Test(Operand::Comm, Test::Text(equal, text)) if !text.as_bytes().contains(&0) => {
                Self::Comm(*equal, text.clone())
            }
            Filter::Test(operand, Test::Text(equal, text)) => {
                let at = fields.string(*operand).filter(|_| is_kept(text)).ok_or(Unsuited::Text)?;
                Self::Text { at, equal: *equal, text: text.clone() }
            }
            Filter::Test(_, Test::Glob(_)) => return Err(Unsuited::Text),
            Filter::Test(operand, test) => Self::Number(Number::of(*operand, fields)?, test.clone()),
        })
    }
}

impl Number {
    pub(super) fn of(operand: Operand, fields: &Fields<'_>) -> Result<Self, Unsuited> {
        let Fields { fields, read, at_return, .. } = *fields;
        let whole = |from, width| Self { from, low: 0, width, is_signed: false };
        let n = match operand {
            Operand::Pid => return Ok(whole(Origin::Pid, 32)),
            Operand::Cpu => return Ok(whole(Origin::Cpu, 32)),
            Operand::Ip => return Ok(whole(Origin::Register(Register::Rip), 64)),
            Operand::Comm | Operand::Hidden(_) => return Err(Unsuited::Text),
            Operand::Field(n) => n,
        };
        let field = fields.get(usize::from(n)).ok_or(Unsuited::Text)?;
        let no_number = || Unsuited::NoNumber(field.name.clone());
        let memory = read.get(usize::from(n)).copied().flatten();
        let (base, bits) = match field.fetch.read {
            Read::Word(bytes @ 1..=8) => (memory, 8 * bytes),
            Read::Memory(_, What::Bytes(bytes @ 1..=8)) => (memory, 8 * bytes as u8),
            // The pointer is the value.
            Read::Pointee(_) if field.fetch.hops.is_empty() => (None, 64),
            _ => return Err(no_number()),
        };
        let from = match (base, &field.fetch.base) {
            (Some(at), _) => Origin::Memory(at),
            (None, Base::Register(register)) => Origin::Register(*register),
            (None, Base::Argument(n)) if at_return && usize::from(*n) < ARGUMENTS => Origin::Entered(*n),
            (None, Base::Argument(n)) if !at_return => {
                Origin::Register(Register::of_argument((*n).into()).ok_or_else(no_number)?)
            }
            (None, Base::Constant(number)) => Origin::Constant(*number),
            (None, Base::Kernel(link)) => Origin::Kernel(*link),
            _ => return Err(no_number()),
        };
        let is_signed = |shape: &Shape| matches!(shape, Shape::Signed | Shape::Result | Shape::Enum(_));
        match &field.shape {
            Shape::BitField { low, width, of } => {
                let fits = *width > 0 && u32::from(*low) + u32::from(*width) <= u32::from(bits);
                fits.then_some(Self { from, low: *low, width: *width, is_signed: is_signed(of) })
            }
            Shape::Text => None,
            shape => Some(Self { from, low: 0, width: bits, is_signed: is_signed(shape) }),
        }
        .ok_or_else(no_number)
    }
}
