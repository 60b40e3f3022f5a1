//! Functions that the compiler has inlined: where their code lies, and who has called them from where.

use std::collections::HashMap;
use std::ops::Range;

use gimli::{AttributeValue, UnitOffset, UnitRef, constants as dw};

use super::code::CodeAttributes;
use super::units::Units;
use super::{DwarfError, Slice};
use crate::addr::Gva;
use crate::guest_text::{Escaped, is_plain};
use crate::linux::symbols::LONGEST_NAME;

/// Most stretches of inlined code; Debian's kernels have a million.
const MOST_STRETCHES: usize = 32 << 20;
/// From an entry to the one that has its name: a concrete function, an abstract one, a declaration.
const LONGEST_CHAIN: usize = 4;

/// The call that is none: code of the function itself.
pub(super) const NO_CALL: u32 = 0;

/// A function that was inlined at one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct InlinedCall {
    /// In which other one; [`NO_CALL`] for the function that the code belongs to.
    pub(super) caller: u32,
    /// The number of its name.
    pub(super) function: u32,
    /// Where it is called: the number of the file, and the line.
    pub(super) file: u32,
    /// The line there.
    pub(super) line: u32,
}

/// Code of an inlined function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Bytes from the start of the kernel's text.
    pub(super) start: u32,
    /// The first byte behind it.
    pub(super) end: u32,
    /// The call, among all.
    pub(super) call: u32,
    /// How many it is inside.
    pub(super) depth: u32,
}

/// All calls that were inlined.
#[derive(Debug, Default)]
pub(super) struct Inlined {
    /// Each once. The first is [`NO_CALL`].
    pub(super) calls: Vec<InlinedCall>,
    /// Where their code is, in no order.
    pub(super) stretches: Vec<Stretch>,
    /// Names of functions. The first is empty.
    pub(super) names: Vec<String>,
    known_calls: HashMap<InlinedCall, u32>,
    known_names: HashMap<String, u32>,
    /// The names of entries elsewhere than in the unit that refers to them, as link-time optimisation makes them.
    foreign: HashMap<usize, u32>,
}

/// What the attributes of one inlined call say.
#[derive(Default)]
struct CallAttributes<'a> {
    origin: Option<AttributeValue<Slice<'a>>>,
    code: CodeAttributes<'a>,
    file: u64,
    line: u32,
}

impl Inlined {
    pub(super) fn new() -> Self {
        let none = InlinedCall { caller: NO_CALL, function: 0, file: 0, line: 0 };
        Self { calls: vec![none], names: vec![String::new()], ..Self::default() }
    }

    /// Adds those of a unit whose code lies behind `base`. `number_of` gives a file of the unit its number.
    pub(super) fn collect<'a>(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        base: Gva,
        units: &mut Units<'a>,
        mut number_of: impl FnMut(u64) -> u32,
    ) -> Result<(), DwarfError> {
        let mut entries = unit.entries_raw(None)?;
        // The inlined calls around the entry, each with its depth in the tree.
        let mut around: Vec<(isize, u32)> = Vec::new();
        let mut names = HashMap::new();
        while !entries.is_empty() {
            let depth = entries.next_depth();
            let Some(abbreviation) = entries.read_abbreviation()? else { continue };
            while around.last().is_some_and(|(outer, _)| *outer >= depth) {
                around.pop();
            }
            match abbreviation.tag() {
                dw::DW_TAG_subprogram => around.push((depth, NO_CALL)),
                dw::DW_TAG_inlined_subroutine => {
                    let mut found = CallAttributes::default();
                    for specification in abbreviation.attributes() {
                        let attribute = entries.read_attribute(*specification)?;
                        let value = attribute.value();
                        match attribute.name() {
                            dw::DW_AT_abstract_origin => found.origin = Some(value),
                            dw::DW_AT_call_line => {
                                found.line = value.udata_value().and_then(|n| n.try_into().ok()).unwrap_or(0);
                            }
                            dw::DW_AT_call_file => found.file = file_index(&value),
                            name => found.code.keep(name, value),
                        }
                    }
                    let caller = around.last().map_or(NO_CALL, |(_, call)| *call);
                    let function = self.function(unit, units, found.origin.as_ref(), &mut names)?;
                    let file = number_of(found.file);
                    let call = self.call(InlinedCall { caller, function, file, line: found.line });
                    let depth_of_calls = around.len() as u32;
                    found
                        .code
                        .pieces(unit, |low, high| self.add_stretch(base, low..high, call, depth_of_calls))?;
                    around.push((depth, call));
                    continue;
                }
                _ => {}
            }
            entries.skip_attributes(abbreviation.attributes())?;
        }
        Ok(())
    }

    fn call(&mut self, call: InlinedCall) -> u32 {
        *self.known_calls.entry(call).or_insert_with(|| {
            self.calls.push(call);
            self.calls.len() as u32 - 1
        })
    }

    fn add_stretch(&mut self, base: Gva, code: Range<u64>, call: u32, depth: u32) -> Result<(), DwarfError> {
        let offset = |at| Gva(at).offset_from(base).and_then(|offset| u32::try_from(offset).ok());
        let (Some(start), Some(end)) = (offset(code.start), offset(code.end)) else { return Ok(()) };
        if start >= end {
            return Ok(());
        }
        if self.stretches.len() == MOST_STRETCHES {
            return Err(DwarfError::TooMuch);
        }
        self.stretches.push(Stretch { start, end, call, depth });
        Ok(())
    }

    /// The number of the name of the function that an inlined call is a copy of.
    fn function<'a>(
        &mut self,
        unit: UnitRef<'_, Slice<'a>>,
        units: &mut Units<'a>,
        origin: Option<&AttributeValue<Slice<'a>>>,
        names: &mut HashMap<usize, u32>,
    ) -> Result<u32, DwarfError> {
        match origin {
            Some(AttributeValue::UnitRef(offset)) => {
                if let Some(known) = names.get(&offset.0) {
                    return Ok(*known);
                }
                let name = self.name(name_of(unit, *offset)?);
                names.insert(offset.0, name);
                Ok(name)
            }
            Some(AttributeValue::DebugInfoRef(offset)) => {
                if let Some(known) = self.foreign.get(&offset.0) {
                    return Ok(*known);
                }
                let name = match units.find(unit.dwarf, *offset)? {
                    Some((other, inside)) => name_of(other.unit_ref(unit.dwarf), inside)?,
                    None => String::new(),
                };
                let name = self.name(name);
                self.foreign.insert(offset.0, name);
                Ok(name)
            }
            _ => Ok(0),
        }
    }

    fn name(&mut self, name: String) -> u32 {
        if let Some(known) = self.known_names.get(&name) {
            return *known;
        }
        self.names.push(name.clone());
        let number = self.names.len() as u32 - 1;
        self.known_names.insert(name, number);
        number
    }
}

/// A file's index in an attribute.
fn file_index(value: &AttributeValue<Slice<'_>>) -> u64 {
    match value {
        AttributeValue::FileIndex(index) => *index,
        value => value.udata_value().unwrap_or(0),
    }
}

/// The name of the function that an entry describes; empty where it has none.
fn name_of(unit: UnitRef<'_, Slice<'_>>, offset: UnitOffset) -> Result<String, DwarfError> {
    let mut offset = offset;
    for _ in 0..LONGEST_CHAIN {
        let entry = unit.entry(offset)?;
        if let Some(name) = entry.attr_value(dw::DW_AT_name) {
            return Ok(shown(unit.attr_string(name)?.slice()));
        }
        let origin =
            entry.attr_value(dw::DW_AT_abstract_origin).or(entry.attr_value(dw::DW_AT_specification));
        match origin {
            Some(AttributeValue::UnitRef(next)) => offset = next,
            _ => break,
        }
    }
    Ok(String::new())
}

fn shown(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name.get(..LONGEST_NAME).unwrap_or(name));
    if is_plain(&name) { name.into_owned() } else { Escaped(name.as_bytes()).to_string() }
}
