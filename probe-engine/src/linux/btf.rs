//! The kernel's own description of its types: the `.BTF` section (Documentation/bpf/btf.rst, include/uapi/linux/btf.h).
//!
//! What is needed of it is where a member of a structure lies. Types refer to each other by number and may do so in
//! circles: every walk along them is bounded.

use super::read::{u16_at, u32_at};

const MAGIC: u16 = 0xeb9f;
/// Most types; Debian's kernels have 110,000.
const MOST_TYPES: usize = 4 << 20;
/// Longest chain of typedefs and qualifiers, and most dimensions of an array.
const LONGEST_CHAIN: usize = 32;
/// Most structures that are searched for one member: it and all the anonymous ones in it.
const MOST_NESTED: usize = 1 << 10;

/// Numbers of the kinds of types that are looked into.
mod kind {
    pub(super) const INT: u8 = 1;
    pub(super) const PTR: u8 = 2;
    pub(super) const ARRAY: u8 = 3;
    pub(super) const STRUCT: u8 = 4;
    pub(super) const UNION: u8 = 5;
    pub(super) const ENUM: u8 = 6;
    pub(super) const TYPEDEF: u8 = 8;
    pub(super) const VOLATILE: u8 = 9;
    pub(super) const CONST: u8 = 10;
    pub(super) const RESTRICT: u8 = 11;
    pub(super) const FUNC: u8 = 12;
    pub(super) const FUNC_PROTO: u8 = 13;
    pub(super) const VAR: u8 = 14;
    pub(super) const DATASEC: u8 = 15;
    pub(super) const FLOAT: u8 = 16;
    pub(super) const DECL_TAG: u8 = 17;
    pub(super) const TYPE_TAG: u8 = 18;
    pub(super) const ENUM64: u8 = 19;
}

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
}

/// The number of a type; 0 is `void`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeId(pub u32);

/// Where a member lies in its structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Bits from the start of the structure that was asked about.
    pub bit: u64,
    /// How many bits it has, when it is a bit-field.
    pub bits: Option<u8>,
    /// Its type.
    pub ty: TypeId,
}

impl Member {
    /// Bytes from the start of the structure; `None` for a bit-field.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        (self.bits.is_none() && self.bit.is_multiple_of(8)).then_some(self.bit / 8)
    }
}

/// Type information, over the bytes of its section.
#[derive(Debug, Clone)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where in `types` each begins, from number 1 on.
    starts: Vec<u32>,
}

/// `struct btf_type` and what follows it.
#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    info: u32,
    /// The size of the type in bytes, or the type that it refers to.
    size_or_type: u32,
    rest: &'a [u8],
}

impl<'a> Type<'a> {
    /// `struct btf_type {u32 name, u32 info, u32 size_or_type}`
    const LEN: usize = 12;

    fn at(types: &'a [u8], start: usize) -> Option<Self> {
        let bytes = types.get(start..)?;
        let rest = bytes.get(Self::LEN..)?;
        Some(Self { name: u32_at(bytes, 0)?, info: u32_at(bytes, 4)?, size_or_type: u32_at(bytes, 8)?, rest })
    }

    /// Bits 24 to 28 of its info.
    fn kind(self) -> u8 {
        (self.info >> 24) as u8 & 0x1f
    }

    /// Bit 31 of its info: bit-fields are given apart, or enumerators are signed.
    fn flag(self) -> bool {
        self.info >> 31 != 0
    }

    /// Bits 0 to 15 of its info: members, enumerators, parameters or variables.
    fn count(self) -> usize {
        (self.info & 0xffff) as usize
    }

    /// Bytes of one of those.
    fn entry_len(self) -> usize {
        match self.kind() {
            kind::STRUCT | kind::UNION | kind::DATASEC | kind::ENUM64 => 12,
            kind::ENUM | kind::FUNC_PROTO => 8,
            _ => 0,
        }
    }

    /// Bytes behind `struct btf_type`; `None` for a kind that is not known.
    fn rest_len(self) -> Option<usize> {
        match self.kind() {
            kind::INT | kind::VAR | kind::DECL_TAG => Some(4),
            kind::ARRAY => Some(12),
            1..=kind::ENUM64 => Some(self.count() * self.entry_len()),
            _ => None,
        }
    }

    fn entries(self) -> impl Iterator<Item = &'a [u8]> {
        self.rest.chunks_exact(self.entry_len().max(1)).take(self.count())
    }

    fn is_structure(self) -> bool {
        matches!(self.kind(), kind::STRUCT | kind::UNION)
    }

    /// `struct btf_array {u32 type, u32 index_type, u32 nelems}`: the first and the last.
    fn array(self) -> Option<(TypeId, u32)> {
        let element = (self.kind() == kind::ARRAY).then(|| u32_at(self.rest, 0)).flatten()?;
        Some((TypeId(element), u32_at(self.rest, 8)?))
    }
}

impl<'a> Btf<'a> {
    /// Reads the header and finds where each type begins.
    ///
    /// # Errors
    /// [`BtfError`] when the section is not what it should be.
    pub fn parse(section: &'a [u8]) -> Result<Self, BtfError> {
        // struct btf_header {u16 magic, u8 version, u8 flags, u32 hdr_len, type_off, type_len, str_off, str_len}
        let version = section.get(2).copied();
        if u16_at(section, 0) != Some(MAGIC) || version != Some(1) {
            return Err(BtfError::Header);
        }
        let field = |at| u32_at(section, at).map(|value| value as usize).ok_or(BtfError::Header);
        let body = section.get(field(4)?..).ok_or(BtfError::Header)?;
        let part = |offset, len| body.get(offset..)?.get(..len);
        let types = part(field(8)?, field(12)?).ok_or(BtfError::Header)?;
        let strings = part(field(16)?, field(20)?).ok_or(BtfError::Header)?;
        let mut starts = Vec::new();
        let mut at = 0;
        while at < types.len() {
            if starts.len() == MOST_TYPES {
                return Err(BtfError::ManyTypes);
            }
            let number = starts.len() as u32 + 1;
            let cut = BtfError::Cut(number);
            let found = Type::at(types, at).ok_or(cut)?;
            let len = found.rest_len().ok_or(BtfError::Kind(number))?;
            if found.rest.len() < len {
                return Err(cut);
            }
            starts.push(at as u32);
            at += Type::LEN + len;
        }
        Ok(Self { types, strings, starts })
    }

    /// The first structure or union of that name that has the member, and where: `list`, `core_layout.base`,
    /// `mem[4].size`. Members of anonymous structures and unions are members of what is around them, as in C.
    #[must_use]
    pub fn member(&self, structure: &str, path: &str) -> Option<Member> {
        self.named(structure).filter(|(_, found)| found.is_structure()).find_map(|(id, _)| {
            let mut place = Member { bit: 0, bits: None, ty: id };
            for step in path.split('.') {
                let (name, index) = match step.strip_suffix(']').and_then(|step| step.split_once('[')) {
                    Some((name, index)) => (name, Some(index.parse::<u32>().ok()?)),
                    None => (step, None),
                };
                let inner = self.direct_member(place.ty, name)?;
                place = Member { bit: place.bit.checked_add(inner.bit)?, ..inner };
                if let Some(index) = index {
                    let (element, count) = self.array(place.ty)?;
                    let skipped = self.size(element)?.checked_mul(8)?.checked_mul(u64::from(index))?;
                    let bit = place.bit.checked_add(skipped).filter(|_| index < count)?;
                    place = Member { bit, bits: None, ty: element };
                }
            }
            Some(place)
        })
    }

    /// Bytes of a structure or union, the first of that name.
    #[must_use]
    pub fn size_of(&self, structure: &str) -> Option<u64> {
        let found = self.named(structure).find(|(_, found)| found.is_structure());
        found.map(|(_, found)| u64::from(found.size_or_type))
    }

    /// Bytes of a type; `None` for what has no size, such as a function.
    #[must_use]
    pub fn size(&self, id: TypeId) -> Option<u64> {
        let mut elements = 1u64;
        let mut id = id;
        for _ in 0..LONGEST_CHAIN {
            let (_, found) = self.plain(id)?;
            match found.kind() {
                kind::PTR => return elements.checked_mul(8),
                kind::ARRAY => {
                    let (element, count) = found.array()?;
                    elements = elements.checked_mul(count.into())?;
                    id = element;
                }
                kind::INT
                | kind::STRUCT
                | kind::UNION
                | kind::ENUM
                | kind::ENUM64
                | kind::FLOAT
                | kind::DATASEC => return elements.checked_mul(found.size_or_type.into()),
                _ => return None,
            }
        }
        None
    }

    /// The type of an array's elements, and how many there are.
    #[must_use]
    pub fn array(&self, id: TypeId) -> Option<(TypeId, u32)> {
        self.plain(id)?.1.array()
    }

    /// What a pointer points to.
    #[must_use]
    pub fn pointee(&self, id: TypeId) -> Option<TypeId> {
        let (_, found) = self.plain(id)?;
        (found.kind() == kind::PTR).then_some(TypeId(found.size_or_type))
    }

    /// The value of an enumerator: `enum_value("mod_mem_type", "MOD_INIT_TEXT")`.
    #[must_use]
    pub fn enum_value(&self, enumeration: &str, name: &str) -> Option<i64> {
        self.named(enumeration).find_map(|(_, found)| {
            let is_wide = match found.kind() {
                kind::ENUM => false,
                kind::ENUM64 => true,
                _ => return None,
            };
            // struct btf_enum {u32 name, s32 value}, struct btf_enum64 {u32 name, u32 low, u32 high}
            let entry = found.entries().find(|entry| self.is_name(u32_at(entry, 0), name))?;
            let low = u32_at(entry, 4)?;
            if is_wide {
                return Some((u64::from(u32_at(entry, 8)?) << 32 | u64::from(low)) as i64);
            }
            Some(if found.flag() { i64::from(low as i32) } else { i64::from(low) })
        })
    }

    /// The number of the function of that name, the first if there are several. BPF programs are attached by it.
    #[must_use]
    pub fn func_id(&self, name: &str) -> Option<u32> {
        self.named(name).find(|(_, found)| found.kind() == kind::FUNC).map(|(id, _)| id.0)
    }

    /// The types of that name, in the order of their numbers.
    fn named(&self, name: &str) -> impl Iterator<Item = (TypeId, Type<'a>)> {
        let types = (1..).zip(&self.starts).filter_map(|(id, start)| {
            let found = Type::at(self.types, *start as usize)?;
            Some((TypeId(id), found))
        });
        types.filter(move |(_, found)| self.is_name(Some(found.name), name))
    }

    /// The member of that name, in the structure itself or in anonymous ones inside it.
    fn direct_member(&self, structure: TypeId, name: &str) -> Option<Member> {
        if name.is_empty() {
            return None;
        }
        let mut open = vec![(structure, 0u64)];
        let mut next = 0;
        while let Some((id, base)) = open.get(next).copied() {
            next += 1;
            let (_, outer) = self.plain(id).filter(|(_, found)| found.is_structure())?;
            // struct btf_member {u32 name, u32 type, u32 offset}; with the flag, bits 24 to 31 of the offset are
            // the size of a bit-field, or 0.
            for entry in outer.entries() {
                let (ty, place) = (TypeId(u32_at(entry, 4)?), u32_at(entry, 8)?);
                let (bit, bits) = if outer.flag() { (place & 0xff_ffff, place >> 24) } else { (place, 0) };
                let bit = base.checked_add(bit.into())?;
                if self.is_name(u32_at(entry, 0), name) {
                    return Some(Member { bit, bits: (bits != 0).then_some(bits as u8), ty });
                }
                let is_anonymous = self.is_name(u32_at(entry, 0), "");
                if is_anonymous
                    && open.len() < MOST_NESTED
                    && self.plain(ty).is_some_and(|(_, inner)| inner.is_structure())
                {
                    open.push((ty, bit));
                }
            }
        }
        None
    }

    /// The type behind typedefs and qualifiers.
    fn plain(&self, id: TypeId) -> Option<(TypeId, Type<'a>)> {
        let mut id = id;
        for _ in 0..LONGEST_CHAIN {
            let start = self.starts.get((id.0 as usize).checked_sub(1)?)?;
            let found = Type::at(self.types, *start as usize)?;
            match found.kind() {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = TypeId(found.size_or_type);
                }
                _ => return Some((id, found)),
            }
        }
        None
    }

    /// Whether the string at `offset` is `name`.
    fn is_name(&self, offset: Option<u32>, name: &str) -> bool {
        let string = offset.and_then(|offset| self.strings.get(offset as usize..));
        let rest = string.and_then(|string| string.strip_prefix(name.as_bytes()));
        rest.is_some_and(|rest| rest.first() == Some(&0))
    }
}

#[cfg(test)]
mod tests;
