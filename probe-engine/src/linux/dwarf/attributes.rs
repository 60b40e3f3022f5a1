//! The attributes of an entry that describes a type, or something that has one.

use gimli::{Abbreviation, AttributeValue, EntriesRaw, constants as dw};

use super::{DwarfError, Slice};

/// What an entry says of itself.
#[derive(Default, Clone, Copy)]
pub(super) struct Attributes<'a> {
    pub(super) name: Option<AttributeValue<Slice<'a>>>,
    /// Its type, as an offset in the unit.
    pub(super) ty: Option<usize>,
    /// Its type, or what it is an instance of, is described in another unit.
    pub(super) is_foreign: bool,
    /// The entry that it is an instance of, as such an offset.
    pub(super) origin: Option<usize>,
    pub(super) byte_size: Option<u64>,
    pub(super) encoding: Option<gimli::DwAte>,
    /// Bytes from the start of the structure.
    pub(super) member_location: Option<u64>,
    /// Bits from there, for a bit-field of DWARF 4 and later.
    pub(super) data_bit_offset: Option<u64>,
    /// Bits above a bit-field in its storage unit, until DWARF 3.
    pub(super) bit_offset: Option<u64>,
    pub(super) bit_size: Option<u64>,
    /// The last index of an array.
    pub(super) upper_bound: Option<u64>,
    pub(super) count: Option<u64>,
    /// A constant, with the number of bits that it is written with where those say nothing of a sign.
    pub(super) constant: Option<Constant>,
    pub(super) file: u64,
    pub(super) line: u64,
    pub(super) is_declaration: bool,
    pub(super) is_external: bool,
    /// Whether the compiler has inlined it everywhere, or was asked to.
    pub(super) is_inline: bool,
    /// Whether it has code.
    pub(super) has_code: bool,
    /// How it is called, or a class of C++ is handed over.
    pub(super) convention: Option<gimli::DwCc>,
}

/// The value of an enumerator.
#[derive(Clone, Copy)]
pub(super) enum Constant {
    Signed(i64),
    Unsigned(u64),
}

impl<'a> Attributes<'a> {
    /// Reads those of the entry that `entries` is in, whose abbreviation was just read.
    pub(super) fn read(
        entries: &mut EntriesRaw<'_, Slice<'a>>,
        abbreviation: &Abbreviation,
    ) -> Result<Self, DwarfError> {
        let mut found = Self::default();
        for specification in abbreviation.attributes() {
            let attribute = entries.read_attribute(*specification)?;
            let value = attribute.value();
            match attribute.name() {
                dw::DW_AT_name => found.name = Some(value),
                dw::DW_AT_type => {
                    found.ty = inside(&value);
                    found.is_foreign |= found.ty.is_none();
                }
                dw::DW_AT_abstract_origin | dw::DW_AT_specification => {
                    found.origin = inside(&value);
                    found.is_foreign |= found.origin.is_none();
                }
                dw::DW_AT_byte_size => found.byte_size = value.udata_value(),
                dw::DW_AT_encoding => {
                    if let AttributeValue::Encoding(encoding) = value {
                        found.encoding = Some(encoding);
                    }
                }
                dw::DW_AT_data_member_location => found.member_location = value.udata_value(),
                dw::DW_AT_data_bit_offset => found.data_bit_offset = value.udata_value(),
                dw::DW_AT_bit_offset => found.bit_offset = value.udata_value(),
                dw::DW_AT_bit_size => found.bit_size = value.udata_value(),
                dw::DW_AT_upper_bound => found.upper_bound = value.udata_value(),
                dw::DW_AT_count => found.count = value.udata_value(),
                dw::DW_AT_const_value => found.constant = constant(&value),
                dw::DW_AT_decl_file => {
                    found.file = match value {
                        AttributeValue::FileIndex(index) => index,
                        value => value.udata_value().unwrap_or(0),
                    };
                }
                dw::DW_AT_decl_line => found.line = value.udata_value().unwrap_or(0),
                dw::DW_AT_declaration => found.is_declaration = value == AttributeValue::Flag(true),
                dw::DW_AT_external => found.is_external = value == AttributeValue::Flag(true),
                dw::DW_AT_inline => found.is_inline = true,
                dw::DW_AT_calling_convention => {
                    if let AttributeValue::CallingConvention(convention) = value {
                        found.convention = Some(convention);
                    }
                }
                dw::DW_AT_low_pc | dw::DW_AT_ranges => found.has_code = true,
                _ => {}
            }
        }
        Ok(found)
    }
}

/// A reference inside the unit. Units refer to each other only where all were compiled at once, or what they share was taken out.
fn inside(value: &AttributeValue<Slice<'_>>) -> Option<usize> {
    match value {
        AttributeValue::UnitRef(offset) => Some(offset.0),
        _ => None,
    }
}

fn constant(value: &AttributeValue<Slice<'_>>) -> Option<Constant> {
    match value {
        AttributeValue::Sdata(value) => Some(Constant::Signed(*value)),
        AttributeValue::Data1(value) => Some(Constant::Unsigned((*value).into())),
        AttributeValue::Data2(value) => Some(Constant::Unsigned((*value).into())),
        AttributeValue::Data4(value) => Some(Constant::Unsigned((*value).into())),
        value => value.udata_value().map(Constant::Unsigned),
    }
}
