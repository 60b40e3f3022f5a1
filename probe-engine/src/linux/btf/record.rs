//! `struct btf_type` as it lies in the section, and the strings that it refers to (include/uapi/linux/btf.h).

use std::fmt;

use super::{BtfError, TypeId};
use crate::guest_text::is_plain;
use crate::linux::read::u32_at;

/// Longest name, in bytes; the kernel takes none that is longer (KSYM_NAME_LEN).
const LONGEST_NAME: usize = 512;

/// Numbers of the kinds of types (BTF_KIND_*).
pub(in crate::linux) mod kind {
    pub(in crate::linux) const INT: u8 = 1;
    pub(in crate::linux) const PTR: u8 = 2;
    pub(in crate::linux) const ARRAY: u8 = 3;
    pub(in crate::linux) const STRUCT: u8 = 4;
    pub(in crate::linux) const UNION: u8 = 5;
    pub(in crate::linux) const ENUM: u8 = 6;
    pub(in crate::linux) const FWD: u8 = 7;
    pub(in crate::linux) const TYPEDEF: u8 = 8;
    pub(in crate::linux) const VOLATILE: u8 = 9;
    pub(in crate::linux) const CONST: u8 = 10;
    pub(in crate::linux) const RESTRICT: u8 = 11;
    pub(in crate::linux) const FUNC: u8 = 12;
    pub(in crate::linux) const FUNC_PROTO: u8 = 13;
    pub(in crate::linux) const VAR: u8 = 14;
    pub(in crate::linux) const DATASEC: u8 = 15;
    pub(in crate::linux) const FLOAT: u8 = 16;
    pub(in crate::linux) const DECL_TAG: u8 = 17;
    pub(in crate::linux) const TYPE_TAG: u8 = 18;
    pub(in crate::linux) const ENUM64: u8 = 19;
}

/// One `struct btf_type {u32 name, u32 info, u32 size_or_type}` and what follows it.
#[derive(Clone, Copy)]
pub(super) struct TypeRecord<'a> {
    /// Offset of its name among the strings.
    pub(super) name: u32,
    info: u32,
    /// The size of the type in bytes, or the type that it refers to.
    pub(super) size_or_type: u32,
    /// What follows, all of it and no more.
    pub(super) rest: &'a [u8],
}

impl<'a> TypeRecord<'a> {
    const LEN: usize = 12;

    /// The record of type `id`, which begins at `start`.
    pub(super) fn at(types: &'a [u8], start: usize, id: TypeId) -> Result<Self, BtfError> {
        let cut = BtfError::Cut(id.0);
        let bytes = types.get(start..).ok_or(cut)?;
        let word = |at| u32_at(bytes, at).ok_or(cut);
        let head = Self { name: word(0)?, info: word(4)?, size_or_type: word(8)?, rest: &[] };
        let len = head.rest_len().ok_or(BtfError::Kind(id.0))?;
        let rest = bytes.get(Self::LEN..).and_then(|rest| rest.get(..len)).ok_or(cut)?;
        Ok(Self { rest, ..head })
    }

    /// Bytes that it takes.
    pub(super) fn len(self) -> usize {
        Self::LEN + self.rest.len()
    }

    /// Bits 24 to 28 of its info.
    pub(super) fn kind(self) -> u8 {
        (self.info >> 24) as u8 & 0x1f
    }

    /// Bit 31 of its info: bit-fields are given apart, enumerators are signed, or a union is declared.
    pub(super) fn flag(self) -> bool {
        self.info >> 31 != 0
    }

    /// Bits 0 to 15 of its info: how many members, enumerators, parameters or variables; a function's linkage.
    pub(super) fn count(self) -> u32 {
        self.info & 0xffff
    }

    /// Bytes of one member, enumerator, parameter or variable.
    fn entry_len(self) -> usize {
        match self.kind() {
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12,
            kind::ENUM | kind::FUNC_PROTO => 8,
            _ => 0,
        }
    }

    /// Bytes that follow `struct btf_type`; `None` for a kind that is not known.
    fn rest_len(self) -> Option<usize> {
        match self.kind() {
            kind::INT | kind::VAR | kind::DECL_TAG => Some(4),
            kind::ARRAY => Some(12),
            1..=kind::ENUM64 => Some(self.count() as usize * self.entry_len()),
            _ => None,
        }
    }

    /// Its members, enumerators, parameters or variables.
    pub(super) fn entries(self, strings: Strings<'a>) -> Entries<'a> {
        Entries { bytes: self.rest, each: self.entry_len().max(1), strings }
    }
}

/// What a type consists of, as it lies in the section.
#[derive(Clone, Copy)]
pub(super) struct Entries<'a> {
    bytes: &'a [u8],
    each: usize,
    strings: Strings<'a>,
}

impl<'a> Entries<'a> {
    /// Each one's name and its other words.
    pub(super) fn iter(self) -> impl DoubleEndedIterator<Item = (&'a str, [u32; 2])> {
        self.words().map(move |[name, first, second]| (self.strings.get(name), [first, second]))
    }

    /// Each one's words; the last is 0 where there are only two.
    pub(super) fn words(self) -> impl DoubleEndedIterator<Item = [u32; 3]> {
        let word = |entry, at| u32_at(entry, at).unwrap_or(0);
        self.bytes.chunks_exact(self.each).map(move |entry| [word(entry, 0), word(entry, 4), word(entry, 8)])
    }

    pub(super) fn len(self) -> usize {
        self.bytes.len() / self.each
    }
}

impl fmt::Debug for Entries<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// The strings of a section, behind those of the kernel's when it is a module's.
#[derive(Clone, Copy)]
pub(super) struct Strings<'a> {
    pub(super) base: &'a [u8],
    pub(super) own: &'a [u8],
}

impl<'a> Strings<'a> {
    /// The string at `offset`; empty when there is none, when it is no name that could be shown, or longer than any.
    pub(super) fn get(self, offset: u32) -> &'a str {
        let offset = offset as usize;
        let from = match offset.checked_sub(self.base.len()) {
            Some(own) => self.own.get(own..),
            None => self.base.get(offset..),
        };
        let bytes = from.unwrap_or_default();
        let end = bytes.iter().take(LONGEST_NAME + 1).position(|byte| *byte == 0);
        let name = end.and_then(|end| bytes.get(..end)).unwrap_or_default();
        std::str::from_utf8(name).ok().filter(|name| is_plain(name)).unwrap_or_default()
    }
}

impl fmt::Debug for Strings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Strings").field("len", &(self.base.len() + self.own.len())).finish_non_exhaustive()
    }
}
