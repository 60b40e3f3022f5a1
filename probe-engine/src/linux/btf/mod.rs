//! The kernel's own description of its types: the `.BTF` section (Documentation/bpf/btf.rst, include/uapi/linux/btf.h).
//!
//! [`Btf`] reads it where it lies; only where each type begins is kept beside it, and an index of names. A module
//! describes what the kernel does not: its section is [read on top](Btf::split) of the kernel's. Types refer to each
//! other by number, a damaged section to any number and in circles: every walk along them is bounded, and what
//! leads nowhere is `None`.
//!
//! A name can have several types: a structure, a function and a typedef do not exclude each other, and two files of
//! the kernel may each have their own. [`Btf::named`] gives them all.

pub mod c;
mod lookup;
mod record;
mod types;

use std::fmt;

use self::record::{Strings, TypeRecord};
use super::nearest;
use super::read::{u16_at, u32_at};

pub use self::lookup::FunctionType;
pub(super) use self::record::kind;
pub use self::types::{
    DataSection, Enumeration, Int, Kind, Linkage, Member, Modifier, Prototype, Structure, Type,
};

const MAGIC: u16 = 0xeb9f;
/// `struct btf_header {u16 magic, u8 version, u8 flags, u32 hdr_len, type_off, type_len, str_off, str_len}`
const HEADER_LEN: usize = 24;
/// Most types; Debian's kernels have 110,000.
const MOST_TYPES: usize = 1 << 20;

/// Type information that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// No such section (no CONFIG_DEBUG_INFO_BTF).
    #[error("the kernel has no type information (BTF)")]
    Missing,
    /// Something else.
    #[error("damaged type information (BTF): its header does not hold")]
    Header,
    /// A kind of type that is not known, and so its length is not.
    #[error("damaged type information (BTF): type {0} is of an unknown kind")]
    Kind(u32),
    /// The last type is not complete.
    #[error("damaged type information (BTF): it ends in the middle of type {0}")]
    Cut(u32),
    /// Far more types than any kernel has.
    #[error("damaged type information (BTF): it has more than {MOST_TYPES} types")]
    ManyTypes,
    /// A module's is not read on top of another module's.
    #[error("type information (BTF) of a module is no base for more")]
    Base,
}

/// The number of a type; 0 is `void`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u32);

impl TypeId {
    /// `void`.
    pub const VOID: Self = Self(0);
}

/// Type information, over the bytes of its section.
#[derive(Clone)]
pub struct Btf<'a> {
    /// The kernel's, when this is a module's.
    base: Option<&'a Btf<'a>>,
    types: &'a [u8],
    strings: Strings<'a>,
    /// Where in `types` each begins, those of the base left out.
    starts: Vec<u32>,
    /// Hash of the name, and number, of each of them that has a name; sorted.
    names: Vec<(u32, TypeId)>,
}

impl fmt::Debug for Btf<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Btf").field("type_count", &self.type_count()).finish_non_exhaustive()
    }
}

impl<'a> Btf<'a> {
    /// Reads the header, finds where each type begins, and makes an index of their names.
    ///
    /// # Errors
    /// [`BtfError`] when the section is not what it should be.
    pub fn parse(section: &'a [u8]) -> Result<Self, BtfError> {
        Self::read(section, None)
    }

    /// Reads the section of a module on top of its kernel's: its types are numbered behind those of the kernel, its
    /// strings lie behind those of the kernel, and it refers to both.
    ///
    /// # Errors
    /// [`BtfError`] when the section is not what it should be. That it belongs to another kernel cannot be told.
    pub fn split(base: &'a Btf<'a>, section: &'a [u8]) -> Result<Self, BtfError> {
        if base.base.is_some() {
            return Err(BtfError::Base);
        }
        Self::read(section, Some(base))
    }

    fn read(section: &'a [u8], base: Option<&'a Btf<'a>>) -> Result<Self, BtfError> {
        let version = section.get(2).copied();
        if u16_at(section, 0) != Some(MAGIC) || version != Some(1) {
            return Err(BtfError::Header);
        }
        let field = |at| u32_at(section, at).map(|value| value as usize).ok_or(BtfError::Header);
        let header_len = Some(field(4)?).filter(|len| *len >= HEADER_LEN);
        let body = header_len.and_then(|len| section.get(len..)).ok_or(BtfError::Header)?;
        let part = |offset, len| body.get(offset..)?.get(..len);
        let types = part(field(8)?, field(12)?).ok_or(BtfError::Header)?;
        let own = part(field(16)?, field(20)?).ok_or(BtfError::Header)?;
        let strings = Strings { base: base.map_or(&[], |base| base.strings.own), own };
        let mut found = Self { base, types, strings, starts: Vec::new(), names: Vec::new() };
        let mut at = 0;
        while at < types.len() {
            let id = TypeId(found.type_count() + 1);
            if id.0 as usize > MOST_TYPES {
                return Err(BtfError::ManyTypes);
            }
            let record = TypeRecord::at(types, at, id)?;
            let name = strings.get(record.name);
            if !name.is_empty() {
                found.names.push((hash(name), id));
            }
            found.starts.push(at as u32);
            at += record.len();
        }
        found.names.sort_unstable();
        Ok(found)
    }

    /// How many types there are, those of the base included. Their numbers are 1 to this.
    #[must_use]
    pub fn type_count(&self) -> u32 {
        self.base_count() + self.starts.len() as u32
    }

    fn base_count(&self) -> u32 {
        self.base.map_or(0, Btf::type_count)
    }

    /// The type of that number; `None` when there is none, or it means nothing.
    #[must_use]
    pub fn get(&self, id: TypeId) -> Option<Type<'a>> {
        if id == TypeId::VOID {
            return Some(Type::void(self.strings));
        }
        match id.0.checked_sub(self.base_count() + 1) {
            Some(own) => {
                let start = self.starts.get(own as usize)?;
                Type::new(id, TypeRecord::at(self.types, *start as usize, id).ok()?, self.strings)
            }
            None => self.base?.get(id),
        }
    }

    /// How many bytes its own strings take.
    #[cfg(test)]
    pub(super) fn strings_len(&self) -> u32 {
        self.strings.own.len() as u32
    }

    /// All types by number, those of the base included.
    pub fn types(&self) -> impl Iterator<Item = Type<'a>> {
        (1..=self.type_count()).filter_map(|id| self.get(TypeId(id)))
    }

    /// All types of that name: a module's own first, then the kernel's, each by number.
    pub fn named(&self, name: &str) -> impl Iterator<Item = Type<'a>> {
        self.own_named(name).chain(self.base.into_iter().flat_map(move |base| base.own_named(name)))
    }

    fn own_named(&self, name: &str) -> impl Iterator<Item = Type<'a>> {
        let hash = hash(name);
        let start = self.names.partition_point(|(other, _)| *other < hash);
        let same = self.names.get(start..).unwrap_or_default().iter().take_while(move |(h, _)| *h == hash);
        same.filter_map(|(_, id)| self.get(*id)).filter(move |found| found.name() == name)
    }

    /// Up to `count` names that a user may have meant by `name`, the likeliest first.
    #[must_use]
    pub fn nearest(&self, name: &str, count: usize) -> Vec<&'a str> {
        nearest::nearest(self.types().map(Type::name), name, count)
    }
}

/// FNV-1a.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests;
