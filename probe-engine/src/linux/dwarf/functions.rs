//! What a function takes and returns, by where its code begins.

use gimli::{AttributeValue, DebuggingInformationEntry, UnitRef, constants as dw};

use super::code::CodeAttributes;
use super::{DebugFile, DwarfError, Slice, types};
use crate::addr::Gva;
use crate::linux::btf::TypeId;

/// A function's types.
#[derive(Debug, PartialEq, Eq)]
pub struct FunctionTypes {
    /// The types of the source file that it is from, as a `.BTF` section.
    pub types: Vec<u8>,
    /// The names of its parameters, and their types among those, where they are known. A class of C++ that is handed over by its address
    /// is a pointer.
    pub parameters: Vec<(String, Option<TypeId>)>,
    /// The type of what it returns; `None` where that is not known.
    pub returns: Option<TypeId>,
    /// It returns a class of C++ in memory, whose address it takes before all parameters.
    pub is_returned_in_memory: bool,
}

/// A function of which nothing is said, or not what a probe needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoFunction {
    /// No function of a source begins there.
    #[error("the debugging information (DWARF) has no function that begins there")]
    Missing,
    /// Its name or its description says that it takes other parameters than its source.
    #[error("the compiler has changed its parameters")]
    Changed,
    /// It is not called as others are.
    #[error("it has a calling convention of its own")]
    Convention,
    /// Which registers have its parameters is promised by nobody.
    #[error(
        "where functions have their parameters is told for C and C++, and this one is from another language ({0})"
    )]
    Language(&'static str),
}

impl DebugFile<'_> {
    /// The function whose code begins at `at`, a link-time address.
    ///
    /// # Errors
    /// [`DwarfError`] for a damaged file.
    pub fn function_at(&self, at: Gva) -> Result<Result<FunctionTypes, NoFunction>, DwarfError> {
        let dwarf = self.dwarf()?;
        let Some(unit) = self.unit_at(&dwarf, at)? else { return Ok(Err(NoFunction::Missing)) };
        let unit = unit.unit_ref(&dwarf);
        let root = unit.entry(unit.header.root_offset())?;
        let Some(AttributeValue::Language(language)) = root.attr_value(dw::DW_AT_language) else {
            return Ok(Err(NoFunction::Language("unknown")));
        };
        let Some(offset) = entry_at(unit, at.0)? else { return Ok(Err(NoFunction::Missing)) };
        match (is_c(language), is_cpp(language)) {
            (false, false) => {
                let name = language.static_string().unwrap_or("unknown");
                Ok(Err(NoFunction::Language(name.strip_prefix("DW_LANG_").unwrap_or(name))))
            }
            (_, has_classes) => types::function_of(unit, offset, has_classes),
        }
    }
}

fn is_c(language: gimli::DwLang) -> bool {
    matches!(language, dw::DW_LANG_C | dw::DW_LANG_C89 | dw::DW_LANG_C99 | dw::DW_LANG_C11 | dw::DW_LANG_C17)
}

fn is_cpp(language: gimli::DwLang) -> bool {
    matches!(
        language,
        dw::DW_LANG_C_plus_plus
            | dw::DW_LANG_C_plus_plus_03
            | dw::DW_LANG_C_plus_plus_11
            | dw::DW_LANG_C_plus_plus_14
            | dw::DW_LANG_C_plus_plus_17
            | dw::DW_LANG_C_plus_plus_20
    )
}

/// Where in a unit the function is described whose code begins at `at`.
pub(super) fn entry_at(unit: UnitRef<'_, Slice<'_>>, at: u64) -> Result<Option<usize>, DwarfError> {
    let mut entries = unit.entries_raw(None)?;
    let mut entry = DebuggingInformationEntry::null();
    while !entries.is_empty() {
        let offset = entries.next_offset().0;
        if !entries.read_entry(&mut entry)? || entry.tag() != dw::DW_TAG_subprogram {
            continue;
        }
        // A function in several pieces begins with the first one.
        let mut first = None;
        CodeAttributes::of(&entry).pieces(unit, |low, _| {
            first = first.or(Some(low));
            Ok(())
        })?;
        if first == Some(at) {
            return Ok(Some(offset));
        }
    }
    Ok(None)
}
