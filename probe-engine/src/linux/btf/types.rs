//! A type as it is read: its name and what it is (Documentation/bpf/btf.rst, "Type Encoding").

use super::TypeId;
use super::record::{Entries, Strings, TypeRecord, kind};
use crate::linux::read::u32_at;

/// A type.
#[derive(Debug, Clone, Copy)]
pub struct Type<'a> {
    /// Its number.
    pub id: TypeId,
    /// What it is.
    pub kind: Kind<'a>,
    name: u32,
    strings: Strings<'a>,
}

/// What a type is.
#[derive(Debug, Clone, Copy)]
pub enum Kind<'a> {
    /// `void`.
    Void,
    /// An integer, a character or a truth value.
    Int(Int),
    /// A pointer to that.
    Pointer(TypeId),
    /// An array.
    Array {
        /// Of these.
        element: TypeId,
        /// So many; 0 for a flexible one.
        count: u32,
    },
    /// A structure or a union.
    Structure(Structure<'a>),
    /// An enumeration.
    Enumeration(Enumeration<'a>),
    /// A structure or a union of which only the name is known.
    Forward {
        /// Whether it is a union.
        is_union: bool,
    },
    /// Another name for that.
    Typedef(TypeId),
    /// A qualified type.
    Modifier {
        /// By this.
        modifier: Modifier,
        /// What is qualified.
        ty: TypeId,
    },
    /// A function.
    Function {
        /// Its [`Prototype`].
        prototype: TypeId,
        /// Who can call it by name.
        linkage: Linkage,
    },
    /// What a function takes and returns.
    Prototype(Prototype<'a>),
    /// A variable.
    Variable {
        /// Its type.
        ty: TypeId,
        /// Who can use it by name.
        linkage: Linkage,
    },
    /// A section of an ELF file with variables in it, as `.data..percpu`.
    Section(DataSection<'a>),
    /// A floating-point number.
    Float {
        /// Its size in bytes.
        size: u32,
    },
    /// A remark on something; what it says is its name.
    Tag {
        /// What it is about.
        ty: TypeId,
        /// Which member or parameter of that, counted from 0; `None` for all of it.
        component: Option<u32>,
    },
}

/// An integer, a character or a truth value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int {
    /// Its size in bytes.
    pub bytes: u32,
    /// How many bits it has: 8 a byte, except for bit-fields of compilers before 2019.
    pub bits: u8,
    /// Whether it has a sign.
    pub is_signed: bool,
    /// Whether it was marked as a character. GCC marks none, not even `char`.
    pub is_char: bool,
    /// Whether it is `_Bool`.
    pub is_bool: bool,
}

/// What qualifies a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Modifier {
    /// `const`.
    Const,
    /// `volatile`.
    Volatile,
    /// `restrict`.
    Restrict,
    /// A remark on what a pointer points to, as `user`; what it says is its name.
    TypeTag,
}

/// Who can use a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linkage {
    /// The file that it is in.
    Static,
    /// Everyone.
    Global,
    /// Everyone, and it is somewhere else.
    Extern,
}

impl Linkage {
    /// BTF_FUNC_STATIC, BTF_VAR_STATIC and so on.
    fn new(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Static),
            1 => Some(Self::Global),
            2 => Some(Self::Extern),
            _ => None,
        }
    }
}

/// A structure or a union.
#[derive(Debug, Clone, Copy)]
pub struct Structure<'a> {
    /// Its number.
    pub id: TypeId,
    /// Whether it is a union.
    pub is_union: bool,
    /// Its size in bytes.
    pub size: u32,
    /// Whether the places of its members tell bit-fields apart.
    has_bit_fields: bool,
    entries: Entries<'a>,
}

impl<'a> Structure<'a> {
    /// Its members in their order. Those of anonymous structures in it are not among them.
    pub fn members(self) -> impl Iterator<Item = Member<'a>> {
        // struct btf_member {u32 name, u32 type, u32 offset}; with the flag, bits 24 to 31 of the offset are the size
        // of a bit-field, or 0.
        self.entries.iter().map(move |(name, [ty, place])| {
            let (bit, bits) = if self.has_bit_fields { (place & 0xff_ffff, place >> 24) } else { (place, 0) };
            let bits = (bits != 0).then_some(bits as u8);
            Member { name, bit: bit.into(), bits, ty: TypeId(ty) }
        })
    }
}

/// Where a member lies in its structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// Its name; empty for an anonymous structure or union.
    pub name: &'a str,
    /// Bits from the start of the structure that was asked about.
    pub bit: u64,
    /// How many bits it has, when it is a bit-field.
    pub bits: Option<u8>,
    /// Its type.
    pub ty: TypeId,
}

impl Member<'_> {
    /// Bytes from the start of the structure; `None` for a bit-field.
    #[must_use]
    pub fn offset(&self) -> Option<u64> {
        (self.bits.is_none() && self.bit.is_multiple_of(8)).then_some(self.bit / 8)
    }
}

/// An enumeration.
#[derive(Debug, Clone, Copy)]
pub struct Enumeration<'a> {
    /// Its size in bytes.
    pub size: u32,
    /// Whether its values have a sign.
    pub is_signed: bool,
    is_wide: bool,
    entries: Entries<'a>,
}

impl<'a> Enumeration<'a> {
    /// Its enumerators. Unsigned values of 64 bits are given as those bits.
    pub fn values(self) -> impl Iterator<Item = (&'a str, i64)> {
        // struct btf_enum {u32 name, s32 value}, struct btf_enum64 {u32 name, u32 low, u32 high}
        self.entries.iter().map(move |(name, [low, high])| {
            let value = match (self.is_wide, self.is_signed) {
                (true, _) => (u64::from(high) << 32 | u64::from(low)) as i64,
                (false, true) => i64::from(low as i32),
                (false, false) => i64::from(low),
            };
            (name, value)
        })
    }
}

/// What a function takes and returns.
#[derive(Debug, Clone, Copy)]
pub struct Prototype<'a> {
    /// What it returns.
    pub returns: TypeId,
    entries: Entries<'a>,
}

impl<'a> Prototype<'a> {
    /// Its parameters: name, empty where it has none, and type. `...` is not among them.
    pub fn parameters(self) -> impl Iterator<Item = (&'a str, TypeId)> {
        let count = self.entries.len() - usize::from(self.is_variadic());
        self.entries.iter().take(count).map(|(name, [ty, _])| (name, TypeId(ty)))
    }

    /// Whether it ends in `...`.
    #[must_use]
    pub fn is_variadic(self) -> bool {
        // struct btf_param {u32 name, u32 type}: all 0.
        self.entries.words().next_back().is_some_and(|[name, ty, _]| name == 0 && ty == 0)
    }
}

/// A section of an ELF file with variables in it.
#[derive(Debug, Clone, Copy)]
pub struct DataSection<'a> {
    /// Its size in bytes; may be 0 where nobody filled it in.
    pub size: u32,
    entries: Entries<'a>,
}

impl<'a> DataSection<'a> {
    /// Its variables: type, bytes from the start of the section, size in bytes.
    pub fn variables(self) -> impl Iterator<Item = (TypeId, u32, u32)> + use<'a> {
        // struct btf_var_secinfo {u32 type, u32 offset, u32 size}
        self.entries.words().map(|[ty, offset, size]| (TypeId(ty), offset, size))
    }
}

impl<'a> Type<'a> {
    /// `void`, which no section holds.
    pub(super) fn void(strings: Strings<'a>) -> Self {
        Self { id: TypeId::VOID, kind: Kind::Void, name: 0, strings }
    }

    /// Reads it; `None` when its record means nothing.
    pub(super) fn new(id: TypeId, record: TypeRecord<'a>, strings: Strings<'a>) -> Option<Self> {
        let ty = TypeId(record.size_or_type);
        let size = record.size_or_type;
        let word = |at| u32_at(record.rest, at);
        let entries = record.entries(strings);
        let kind = match record.kind() {
            kind::INT => {
                // Bits 0 to 7 are the width, 24 to 27 say what it is.
                let data = word(0)?;
                let has = |bit: u32| data >> 24 & bit != 0;
                Kind::Int(Int {
                    bytes: size,
                    bits: data as u8,
                    is_signed: has(1),
                    is_char: has(2),
                    is_bool: has(4),
                })
            }
            kind::PTR => Kind::Pointer(ty),
            // struct btf_array {u32 type, u32 index_type, u32 nelems}
            kind::ARRAY => Kind::Array { element: TypeId(word(0)?), count: word(8)? },
            number @ (kind::STRUCT | kind::UNION) => Kind::Structure(Structure {
                id,
                is_union: number == kind::UNION,
                size,
                has_bit_fields: record.flag(),
                entries,
            }),
            number @ (kind::ENUM | kind::ENUM64) => Kind::Enumeration(Enumeration {
                size,
                is_signed: record.flag(),
                is_wide: number == kind::ENUM64,
                entries,
            }),
            kind::FWD => Kind::Forward { is_union: record.flag() },
            kind::TYPEDEF => Kind::Typedef(ty),
            kind::VOLATILE => Kind::Modifier { modifier: Modifier::Volatile, ty },
            kind::CONST => Kind::Modifier { modifier: Modifier::Const, ty },
            kind::RESTRICT => Kind::Modifier { modifier: Modifier::Restrict, ty },
            kind::TYPE_TAG => Kind::Modifier { modifier: Modifier::TypeTag, ty },
            kind::FUNC => Kind::Function { prototype: ty, linkage: Linkage::new(record.count())? },
            kind::FUNC_PROTO => Kind::Prototype(Prototype { returns: ty, entries }),
            kind::VAR => Kind::Variable { ty, linkage: Linkage::new(word(0)?)? },
            kind::DATASEC => Kind::Section(DataSection { size, entries }),
            kind::FLOAT => Kind::Float { size },
            // struct btf_decl_tag {s32 component_idx}
            kind::DECL_TAG => Kind::Tag { ty, component: Some(word(0)?).filter(|index| *index != u32::MAX) },
            _ => return None,
        };
        Some(Self { id, kind, name: record.name, strings })
    }

    /// Its name; empty for an anonymous one, and where the name is damaged.
    #[must_use]
    pub fn name(self) -> &'a str {
        self.strings.get(self.name)
    }

    /// It as a structure or union.
    #[must_use]
    pub fn structure(self) -> Option<Structure<'a>> {
        if let Kind::Structure(structure) = self.kind { Some(structure) } else { None }
    }
}
