//! The entries of a unit that are types or functions, as they are read.

use gimli::{UnitRef, constants as dw};

use super::attributes::Attributes;
use super::btf::MOST_PARTS;
use super::{DwarfError, Slice};

/// An entry of a unit that is a type, or a function.
pub(super) struct TypeDie<'a> {
    pub(super) offset: usize,
    pub(super) tag: gimli::DwTag,
    pub(super) attributes: Attributes<'a>,
    /// Members, enumerators, dimensions, parameters.
    pub(super) parts: Vec<Attributes<'a>>,
    /// Whether its parameters end in `...`.
    pub(super) is_variadic: bool,
    pub(super) state: DieState,
}

/// What has become of an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DieState {
    Unknown,
    /// It waits for what it is made of.
    Open,
    /// It is this type.
    Known(u32),
    /// It is this one, whose parts are to be filled in.
    New(u32),
}

impl<'a> TypeDie<'a> {
    /// Those of a unit, by their offsets.
    pub(super) fn all_of(unit: UnitRef<'_, Slice<'a>>) -> Result<Vec<Self>, DwarfError> {
        let mut found: Vec<Self> = Vec::new();
        // The entries around: depth, and which of those that were found.
        let mut around: Vec<(isize, usize)> = Vec::new();
        let mut entries = unit.entries_raw(None)?;
        while !entries.is_empty() {
            let (offset, depth) = (entries.next_offset().0, entries.next_depth());
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while around.last().is_some_and(|(outer, _)| *outer >= depth) {
                around.pop();
            }
            let tag = abbreviation.tag();
            let outer = around.last().filter(|(outer, _)| outer + 1 == depth).map(|(_, index)| *index);
            let outer = outer.and_then(|index| found.get_mut(index));
            if is_part(tag) {
                let attributes = Attributes::read(&mut entries, abbreviation)?;
                // One of the class itself is no part of its objects, and where a virtual base is only these say.
                let is_apart = match tag {
                    dw::DW_TAG_member => attributes.is_external || attributes.is_declaration,
                    dw::DW_TAG_inheritance => attributes.member_location.is_none(),
                    _ => false,
                };
                if let Some(outer) = outer.filter(|outer| !is_apart && outer.parts.len() < MOST_PARTS) {
                    outer.parts.push(attributes);
                }
                continue;
            }
            if tag == dw::DW_TAG_unspecified_parameters
                && let Some(outer) = outer
            {
                outer.is_variadic = true;
            }
            if is_type(tag) || tag == dw::DW_TAG_subprogram {
                let attributes = Attributes::read(&mut entries, abbreviation)?;
                around.push((depth, found.len()));
                let (parts, is_variadic, state) = (Vec::new(), false, DieState::Unknown);
                found.push(Self { offset, tag, attributes, parts, is_variadic, state });
                continue;
            }
            entries.skip_attributes(abbreviation.attributes())?;
        }
        Ok(found)
    }
}

fn is_part(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        dw::DW_TAG_member
            | dw::DW_TAG_inheritance
            | dw::DW_TAG_enumerator
            | dw::DW_TAG_subrange_type
            | dw::DW_TAG_formal_parameter
    )
}

fn is_type(tag: gimli::DwTag) -> bool {
    matches!(
        tag,
        dw::DW_TAG_base_type
            | dw::DW_TAG_pointer_type
            | dw::DW_TAG_reference_type
            | dw::DW_TAG_rvalue_reference_type
            | dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_restrict_type
            | dw::DW_TAG_atomic_type
            | dw::DW_TAG_typedef
            | dw::DW_TAG_array_type
            | dw::DW_TAG_structure_type
            | dw::DW_TAG_class_type
            | dw::DW_TAG_union_type
            | dw::DW_TAG_enumeration_type
            | dw::DW_TAG_subroutine_type
    )
}
