//! The bytes of a record: a tag, and what follows it.
//!
//! | tag | follows |
//! |---|---|
//! | bytes, text, cut text | length as u16, and so many bytes |
//! | texts | count as u16, and so many values |
//! | pointer | an address as u64, and the value there |
//! | fault | an address as u64 |
//! | missing | nothing |

use crate::addr::Gva;
use crate::virt_memory::LONGEST_STRING;

mod tag {
    pub(super) const MISSING: u8 = 0;
    pub(super) const BYTES: u8 = 1;
    pub(super) const TEXT: u8 = 2;
    pub(super) const CUT_TEXT: u8 = 3;
    pub(super) const TEXTS: u8 = 4;
    pub(super) const POINTER: u8 = 5;
    pub(super) const FAULT: u8 = 6;
}

/// Most bytes of a value besides those that it keeps.
pub(super) const LONGEST_HEAD: usize = 12;
/// Bytes of a pointer before what it points to.
pub(super) const POINTER: usize = 9;
/// A tag and a length.
const HEAD: usize = 3;

pub(super) fn put_missing(record: &mut Vec<u8>) {
    record.push(tag::MISSING);
}

pub(super) fn put_fault(record: &mut Vec<u8>, at: Gva) {
    record.push(tag::FAULT);
    record.extend(at.0.to_le_bytes());
}

pub(super) fn put_pointer(record: &mut Vec<u8>, at: Gva) {
    record.push(tag::POINTER);
    record.extend(at.0.to_le_bytes());
}

pub(super) fn put_bytes(record: &mut Vec<u8>, bytes: &[u8]) {
    put_head(record, tag::BYTES, bytes.len() as u16);
    record.extend(bytes);
}

pub(super) fn put_text(record: &mut Vec<u8>, text: &[u8], cut: bool) {
    put_head(record, if cut { tag::CUT_TEXT } else { tag::TEXT }, text.len() as u16);
    record.extend(text);
}

pub(super) fn put_count(record: &mut Vec<u8>, count: u16) {
    put_head(record, tag::TEXTS, count);
}

/// Appends `len` zeros as bytes, to be filled.
pub(super) fn put_room(record: &mut Vec<u8>, len: usize) -> &mut [u8] {
    put_head(record, tag::BYTES, len as u16);
    let start = record.len();
    record.resize(start + len, 0);
    record.get_mut(start..).unwrap_or_default()
}

/// Makes a text of the bytes from `start` on, a head included.
pub(super) fn finish_text(record: &mut [u8], start: usize, cut: bool) {
    let len = (record.len().saturating_sub(start + HEAD) as u16).to_le_bytes();
    let tag = if cut { tag::CUT_TEXT } else { tag::TEXT };
    let head = record.iter_mut().skip(start);
    head.zip([tag, len[0], len[1]]).for_each(|(byte, new)| *byte = new);
}

fn put_head(record: &mut Vec<u8>, tag: u8, len: u16) {
    record.push(tag);
    record.extend(len.to_le_bytes());
}

/// What a value of a record can be made of elsewhere than at a hit, for [filters](super::filter).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plain<'a> {
    /// A number, as the shape of its field has it: of a part of a number, all of it.
    Number(u64),
    /// A string, without its NUL. It is cut where a record's are.
    Text(&'a [u8]),
    /// Neither.
    Missing,
}

impl Plain<'_> {
    /// Puts it behind the values of a record.
    pub fn put(self, record: &mut Vec<u8>) {
        match self {
            Self::Number(number) => put_bytes(record, &number.to_le_bytes()),
            Self::Text(text) => {
                put_text(record, text.get(..usize::from(LONGEST_STRING)).unwrap_or(text), false)
            }
            Self::Missing => put_missing(record),
        }
    }
}

/// One value of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Bytes of memory, or of a register.
    Bytes(&'a [u8]),
    /// A string, without its NUL.
    Text {
        /// The string.
        bytes: &'a [u8],
        /// Whether it goes on.
        cut: bool,
    },
    /// Strings.
    Texts(Values<'a>),
    /// An address, and what lies there.
    Pointer {
        /// The address (GVA).
        at: Gva,
        /// What lies there: one value.
        to: Values<'a>,
    },
    /// No memory is mapped at this address (GVA), or it may not be read.
    Fault(Gva),
    /// There is none, or there was no room for it.
    Missing,
}

impl<'a> Value<'a> {
    /// Up to 8 bytes as a number, extended with zeros; of a pointer the address.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) if bytes.len() <= 8 => {
                Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
            }
            Self::Pointer { at, .. } => Some(at.0),
            _ => None,
        }
    }

    /// As [`number`](Self::number), extended with its sign.
    #[must_use]
    pub fn signed(&self) -> Option<i64> {
        let unused = match self {
            Self::Bytes(bytes) => 64 - 8 * bytes.len().clamp(1, 8) as u32,
            _ => 0,
        };
        Some((self.number()? << unused).cast_signed() >> unused)
    }

    /// A string, also that which a pointer leads to.
    #[must_use]
    pub fn text(&self) -> Option<&'a [u8]> {
        match self {
            Self::Text { bytes, .. } => Some(bytes),
            Self::Pointer { to, .. } => match to.clone().next()? {
                Value::Text { bytes, .. } => Some(bytes),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The values of a record, in their order. Ends early where the record is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Values<'a> {
    rest: &'a [u8],
    most: usize,
}

impl<'a> Values<'a> {
    /// Of all of `record`.
    #[must_use]
    pub fn of(record: &'a [u8]) -> Self {
        Self { rest: record, most: usize::MAX }
    }

    fn byte_string(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.rest.split_first_chunk()?;
        let (bytes, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        self.rest = rest;
        Some(bytes)
    }

    fn address(&mut self) -> Option<Gva> {
        let (at, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(Gva(u64::from_le_bytes(*at)))
    }

    /// Passes one value that is no pointer and has no values in it.
    fn skip_plain(&mut self) -> Option<()> {
        let (tag, rest) = self.rest.split_first()?;
        self.rest = rest;
        match *tag {
            tag::MISSING => Some(()),
            tag::BYTES | tag::TEXT | tag::CUT_TEXT => self.byte_string().map(drop),
            tag::FAULT => self.address().map(drop),
            _ => None,
        }
    }

    /// Passes the strings that follow, and gives them.
    fn texts(&mut self) -> Option<Self> {
        let (count, rest) = self.rest.split_first_chunk()?;
        let count = u16::from_le_bytes(*count);
        self.rest = rest;
        for _ in 0..count {
            self.skip_plain()?;
        }
        Some(Self { rest, most: usize::from(count) })
    }
}

impl<'a> Iterator for Values<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.most = self.most.checked_sub(1)?;
        let (tag, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(match *tag {
            tag::MISSING => Value::Missing,
            tag::BYTES => Value::Bytes(self.byte_string()?),
            tag::TEXT => Value::Text { bytes: self.byte_string()?, cut: false },
            tag::CUT_TEXT => Value::Text { bytes: self.byte_string()?, cut: true },
            tag::FAULT => Value::Fault(self.address()?),
            tag::TEXTS => Value::Texts(self.texts()?),
            tag::POINTER => {
                let at = self.address()?;
                let to = Self { rest: self.rest, most: 1 };
                if self.rest.first() == Some(&tag::TEXTS) {
                    self.rest = self.rest.get(1..)?;
                    self.texts()?;
                } else {
                    self.skip_plain()?;
                }
                Value::Pointer { at, to }
            }
            _ => return None,
        })
    }
}
