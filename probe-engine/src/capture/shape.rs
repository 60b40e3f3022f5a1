//! How a value is shown.

use serde::{Deserialize, Serialize};

/// How a value is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// A decimal number.
    Unsigned,
    /// A decimal number with its sign.
    Signed,
    /// An octal number, as modes of files are.
    Octal,
    /// A hexadecimal number.
    Hex,
    /// `true` or `false`.
    Bool,
    /// A character.
    Char,
    /// An address as the symbol there.
    Symbol,
    /// The same in quotation marks.
    SymbolText,
    /// The name of a number of an enumeration.
    Enum(Vec<(i64, String)>),
    /// The names of bits.
    Flags(Vec<Flag>),
    /// A number that is an error when it is from -4095 to -1.
    Result,
    /// An address, which is an error when it is one of the last 4,095, and shown with what lies there if that was read.
    Pointer(Option<Box<Shape>>),
    /// A string, or bytes up to a NUL.
    Text,
    /// A part of a number.
    BitField {
        /// Bits below it.
        low: u8,
        /// Bits of it.
        width: u8,
        /// How it is shown.
        of: Box<Shape>,
    },
    /// So many values of one kind.
    Array {
        /// How many.
        count: u16,
        /// How each is shown.
        of: Box<Shape>,
    },
    /// The members of a structure, of which there may be more.
    Struct {
        /// Those that are shown.
        members: Vec<MemberShape>,
        /// Whether it has others.
        more: bool,
    },
}

impl Shape {
    /// Whether it shows a string, or several.
    #[must_use]
    pub fn is_text(&self) -> bool {
        match self {
            Self::Array { of, .. } => **of == Self::Text,
            shape => *shape == Self::Text,
        }
    }

    /// Whether it shows an address as the symbol there.
    #[must_use]
    pub fn has_symbol(&self) -> bool {
        // As deep as types are nested when it is made.
        match self {
            Self::Symbol | Self::SymbolText => true,
            Self::Pointer(Some(of)) | Self::BitField { of, .. } | Self::Array { of, .. } => of.has_symbol(),
            Self::Struct { members, .. } => members.iter().any(|member| member.shape.has_symbol()),
            _ => false,
        }
    }
}

/// A member of a structure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberShape {
    /// Its name.
    pub name: String,
    /// Where it lies, in bytes from the start of the structure.
    pub offset: u16,
    /// How many bytes it has.
    pub len: u16,
    /// How it is shown.
    pub shape: Shape,
}

/// A name for a value of some bits of a number: `O_WRONLY` is 1 in the bits of 3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flag {
    /// Which bits.
    pub mask: u64,
    /// Their value.
    pub value: u64,
    /// Its name.
    pub name: String,
}

/// A text without its NUL, and what is behind that.
pub(crate) fn up_to_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}
