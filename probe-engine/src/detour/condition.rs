//! Which hits count, in terms of what a detour has at hand.

use super::reads::{Given, LONGEST_STRING};
use super::unsuited::Unsuited;
use crate::capture::filter::{Filter, Operand, Test};
use crate::capture::shape::Shape;
use crate::capture::{Base, Capture, Read, Register, What};
use crate::linux::glob::Glob;
use crate::linux::task::COMM;

/// Which hits count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HitCondition {
    /// All of them.
    All(Vec<HitCondition>),
    /// One of them at least.
    Any(Vec<HitCondition>),
    /// Not this one.
    Not(Box<HitCondition>),
    /// A number, and how it is compared.
    Number(Number, Test),
    /// A string, whether it is to be equal, and to what.
    Text(ComparedString, bool, String),
    /// A string, and what it is to match. That stays open where it goes on and its beginning does not decide it.
    Pattern(ComparedString, Glob),
}

/// A string that can be compared: up to a NUL, or so many bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ComparedString {
    /// Its entry in [`Reads`](super::reads::Reads); without one it is the task's name. If it could not be read, no
    /// comparison holds.
    pub entry: Option<u64>,
    /// Most bytes of it.
    pub most: u16,
    /// Whether one of so many bytes may go on: a trap would have read more.
    pub goes_on: bool,
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
    /// It is there without a read.
    Given(Given),
    /// The pid of the task that runs.
    Pid,
    /// The CPU.
    Cpu,
    /// Memory, by the entry of [`Reads`](super::reads::Reads) at this offset. If it could not be read, no comparison holds.
    Memory(u64),
}

/// What conditions are about.
pub(super) struct Fields<'a> {
    pub(super) capture: &'a Capture,
    /// Where each field of it is among what is read of memory, if it is.
    pub(super) read: &'a [Option<u64>],
    pub(super) at_return: bool,
}

impl Fields<'_> {
    /// Whether an operand is the task's name.
    pub(super) fn is_comm(&self, operand: Operand) -> bool {
        self.text(operand).is_some_and(|text| text.entry.is_none())
    }

    /// An operand as a string, if it is one.
    fn text(&self, operand: Operand) -> Option<ComparedString> {
        let comm = ComparedString { entry: None, most: COMM as u16, goes_on: false };
        let n = match operand {
            Operand::Comm => return Some(comm),
            Operand::Field(n) => n,
            Operand::Pid | Operand::Cpu | Operand::Ip => return None,
        };
        let fetch = &self.capture.field(n).filter(|field| field.shape == Shape::Text)?.fetch;
        let entry = self.read.get(usize::from(n)).copied().flatten();
        match fetch.read {
            _ if fetch.base == Base::Comm => Some(comm),
            Read::Memory(_, What::Bytes(most)) => {
                Some(ComparedString { entry: Some(entry?), most, goes_on: false })
            }
            Read::Memory(_, What::String(most)) | Read::Pointee { what: What::String(most), .. } => {
                let kept = most.min(LONGEST_STRING);
                Some(ComparedString { entry: Some(entry?), most: kept, goes_on: kept < most })
            }
            _ => None,
        }
    }
}

impl ComparedString {
    /// Whether so many bytes decide how it compares with them.
    fn keeps(&self, bytes: usize) -> Result<(), Unsuited> {
        if self.goes_on && bytes >= usize::from(self.most) { Err(Unsuited::LongText) } else { Ok(()) }
    }
}

impl HitCondition {
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
            Filter::Test(operand, Test::Text(equal, text)) if !text.as_bytes().contains(&0) => {
                let of = fields.text(*operand).ok_or(Unsuited::Text)?;
                of.keeps(text.len())?;
                Self::Text(of, *equal, text.clone())
            }
            Filter::Test(_, Test::Text(..)) => return Err(Unsuited::Text),
            Filter::Test(operand, Test::Glob(glob)) => {
                let of = fields.text(*operand).ok_or(Unsuited::Text)?;
                of.keeps(glob.parts().map(<[_]>::len).sum())?;
                Self::Pattern(of, glob.clone())
            }
            Filter::Test(operand, test) => Self::Number(Number::of(*operand, fields)?, test.clone()),
        })
    }
}

fn is_signed_shape(shape: &Shape) -> bool {
    matches!(shape, Shape::Signed | Shape::Result | Shape::Enum(_))
}

impl Number {
    pub(super) fn of(operand: Operand, fields: &Fields<'_>) -> Result<Self, Unsuited> {
        let Fields { capture, read, at_return } = *fields;
        let whole = |from, width| Self { from, low: 0, width, is_signed: false };
        let n = match operand {
            Operand::Pid => return Ok(whole(Origin::Pid, 32)),
            Operand::Cpu => return Ok(whole(Origin::Cpu, 32)),
            Operand::Ip => return Ok(whole(Origin::Given(Given::Register(Register::Rip)), 64)),
            Operand::Comm => return Err(Unsuited::Text),
            Operand::Field(n) => n,
        };
        let field = capture.field(n).ok_or(Unsuited::Text)?;
        let no_number = || Unsuited::NoNumber(field.name.clone());
        let memory = read.get(usize::from(n)).copied().flatten();
        let (base, bits) = match field.fetch.read {
            Read::Word(bytes @ 1..=8) | Read::Address(_, bytes @ 1..=8) => (memory, 8 * bytes),
            Read::Memory(_, What::Bytes(bytes @ 1..=8)) => (memory, 8 * bytes as u8),
            // Where the rest is what its highest bit says, and is no sign, comparisons are of another width.
            Read::Extended { of: bytes @ 1..=8, is_signed, .. }
                if !is_signed || is_signed_shape(&field.shape) =>
            {
                (memory, 8 * bytes)
            }
            // The pointer is the value.
            Read::Pointee { .. } if field.fetch.hops.is_empty() => (None, 64),
            _ => return Err(no_number()),
        };
        let given = || Given::of(&field.fetch.base, at_return).map(Origin::Given);
        let from = base.map(Origin::Memory).or_else(given).ok_or_else(no_number)?;
        let is_extended_by_zeros = matches!(field.fetch.read, Read::Extended { is_signed: false, .. });
        let is_signed = |shape: &Shape| is_signed_shape(shape) && !is_extended_by_zeros;
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
