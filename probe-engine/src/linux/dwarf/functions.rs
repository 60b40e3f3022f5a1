//! What a function takes and returns, by where its code begins.

use gimli::{AttributeValue, DebuggingInformationEntry, UnitRef, constants as dw};

use super::btf::{BtfRecord, TypePool};
use super::code::CodeAttributes;
use super::files::Files;
use super::type_dies::TypeDie;
use super::types::{DEEPEST, LONGEST_CHAIN, UnitTypes};
use super::{DebugFile, DwarfError, Slice};
use crate::addr::Gva;
use crate::guest_text::is_plain;
use crate::linux::btf::{TypeId, kind};
use crate::linux::symbols::LONGEST_NAME;

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
            (_, has_classes) => function_of(unit, offset, has_classes),
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

/// Makes the section of one unit, with what the function takes and returns that is described at `offset` in the unit. In C++, a class
/// says how it is handed over.
fn function_of(
    unit: UnitRef<'_, Slice<'_>>,
    offset: usize,
    has_classes: bool,
) -> Result<Result<FunctionTypes, NoFunction>, DwarfError> {
    let (mut pool, mut files) = (TypePool::default(), Files::default());
    let mut types = UnitTypes::read(unit)?;
    types.add(&mut pool, &mut files)?;
    let index = types.index(offset);
    let found = index.and_then(|index| Some((types.entries.get(index)?, types.declared(index)?)));
    let Some((own, declared)) = found else { return Ok(Err(NoFunction::Missing)) };
    let is_as_in_c = |convention| matches!(convention, dw::DW_CC_normal | dw::DW_CC_program);
    if own.attributes.convention.is_some_and(|convention| !is_as_in_c(convention)) {
        return Ok(Err(NoFunction::Convention));
    }
    // A constructor of virtual bases has more, and one that was changed has less.
    if !own.parts.is_empty() && own.parts.len() != declared.parts.len() {
        return Ok(Err(NoFunction::Changed));
    }
    let mut parameters = Vec::new();
    for part in &declared.parts {
        let name = part.name.map(|name| unit.attr_string(name)).transpose()?;
        let name = name.map(|name| String::from_utf8_lossy(name.slice()).into_owned());
        let name = name.filter(|name| is_plain(name) && name.len() <= LONGEST_NAME).unwrap_or_default();
        let ty = match types.handed_over(part.ty, has_classes) {
            HandedOver::ByValue => types.number(part.ty),
            HandedOver::ByReference => pool.make(pointer_to(types.number(part.ty)))?,
            HandedOver::Unknown => 0,
        };
        parameters.push((name, ty));
    }
    // A method says in its class what it returns.
    let returned = types.returned(own);
    let handed_over = returned.map(|ty| types.handed_over(ty, has_classes));
    let is_returned_in_memory = handed_over == Some(HandedOver::ByReference);
    let returns = match (returned, handed_over) {
        (Some(ty), Some(HandedOver::ByValue | HandedOver::ByReference)) => Some((ty, types.number(ty))),
        _ => None,
    };
    let (section, renumbered) = pool.finish()?;
    let id = |number: u32| TypeId(renumbered.get(number as usize).copied().unwrap_or(0));
    let known = |number: u32| Some(id(number)).filter(|id| *id != TypeId::VOID);
    let returns = match returns {
        Some((None, _)) => Some(TypeId::VOID),
        Some((Some(_), number)) => known(number),
        None => None,
    };
    Ok(Ok(FunctionTypes {
        types: section,
        parameters: parameters.into_iter().map(|(name, ty)| (name, known(ty))).collect(),
        returns,
        is_returned_in_memory,
    }))
}

/// How a value is handed over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HandedOver {
    /// As the ABI has it for what C knows.
    ByValue,
    /// By its address.
    ByReference,
    /// Nothing says it.
    Unknown,
}

fn pointer_to(ty: u32) -> BtfRecord {
    BtfRecord { kind: kind::PTR, size_or_type: ty, ..BtfRecord::default() }
}

impl<'a> UnitTypes<'_, 'a> {
    /// Where the type is described of what a function returns: nowhere, where that is `void`. `None` where that is not known.
    fn returned(&self, function: &TypeDie<'a>) -> Option<Option<usize>> {
        let mut entry = function;
        for _ in 0..=LONGEST_CHAIN {
            if entry.attributes.ty.is_some() {
                return Some(entry.attributes.ty);
            }
            if entry.attributes.is_foreign {
                return None;
            }
            let Some(origin) = entry.attributes.origin else { return Some(None) };
            entry = self.entries.get(self.index(origin)?)?;
        }
        None
    }

    /// How a value of a type is handed over.
    fn handed_over(&self, offset: Option<usize>, has_classes: bool) -> HandedOver {
        let mut offset = offset;
        for _ in 0..DEEPEST {
            let index = offset.and_then(|offset| self.index(offset));
            let Some(entry) = index.and_then(|index| self.entries.get(index)) else {
                return HandedOver::ByValue;
            };
            match (entry.tag, entry.attributes.convention) {
                (dw::DW_TAG_typedef | dw::DW_TAG_const_type | dw::DW_TAG_volatile_type, _) => {
                    offset = entry.attributes.ty;
                }
                (dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type, convention)
                    if has_classes =>
                {
                    return match convention {
                        Some(dw::DW_CC_pass_by_value) => HandedOver::ByValue,
                        Some(dw::DW_CC_pass_by_reference) => HandedOver::ByReference,
                        _ => HandedOver::Unknown,
                    };
                }
                _ => return HandedOver::ByValue,
            }
        }
        HandedOver::Unknown
    }
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
