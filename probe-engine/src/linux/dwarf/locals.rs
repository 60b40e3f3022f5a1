//! Local variables and parameters by name, at any address of the kernel's text.

use gimli::{Dwarf, EndianSlice, LittleEndian, SectionId, Unit};

use super::code::CodeAttributes;
use super::functions::entry_at;
use super::location::{Frames, Hidden, Locations, VariablePlace};
use super::scopes::scopes_at;
use super::sections::UnitCode;
use super::units::Units;
use super::{DebugFile, DwarfError, Slice, types};
use crate::addr::Gva;
use crate::linux::btf::TypeId;
use crate::regs::Register;

/// Most stretches of code of all units.
const MOST_STRETCHES: usize = 1 << 20;

/// What has a name at an address.
#[derive(Debug, Default)]
pub struct VariablesInScope {
    /// The types of the source file that the code is from, as a `.BTF` section; empty where none of them is known.
    pub types: Vec<u8>,
    /// Those of the innermost block first, each name once.
    pub variables: Vec<LocalVariable>,
}

/// A local variable or a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocalVariable {
    /// Its name.
    pub name: String,
    /// Its type, among [`VariablesInScope::types`]; `None` where that is not known.
    pub ty: Option<TypeId>,
    /// Where its value is, or why it cannot be read.
    pub place: Result<VariablePlace, Hidden>,
}

impl DebugFile<'_> {
    /// What has a name at the instruction at `at`, a link-time address; nothing where the code is of no source.
    ///
    /// # Errors
    /// [`DwarfError`] for a damaged file.
    pub fn variables_at(&self, at: Gva) -> Result<VariablesInScope, DwarfError> {
        let dwarf = self.dwarf()?;
        let Some(unit) = self.unit_at(&dwarf, at)? else { return Ok(VariablesInScope::default()) };
        let unit = unit.unit_ref(&dwarf);
        let scopes = scopes_at(unit, at.0)?;
        let frames = Frames {
            debug: self.section(SectionId::DebugFrame),
            eh: EndianSlice::new(self.eh_frame.0, LittleEndian),
            eh_at: self.eh_frame.1,
        };
        let locations = Locations::new(unit, frames, at.0, scopes.frame_base);
        let wanted: Vec<usize> = scopes.variables.iter().filter_map(|declared| declared.ty).collect();
        let (types, numbers) = types::btf_of(unit, &wanted)?;
        let is_entry = entry_at(unit, at.0)?.is_some();
        let mut numbers = numbers.into_iter();
        let mut variables = Vec::new();
        for declared in scopes.variables {
            let ty = declared.ty.and_then(|_| numbers.next()).filter(|ty| *ty != TypeId::VOID);
            let place = locations.place(&declared)?.and_then(|place| match place {
                place if is_entry && is_in_new_frame(place) => Err(Hidden::NotYet),
                place => Ok(place),
            });
            variables.push(LocalVariable { name: declared.name, ty, place });
        }
        Ok(VariablesInScope { types, variables })
    }

    /// The unit that has the code at `at`, a link-time address.
    pub(super) fn unit_at<'d>(
        &self,
        dwarf: &Dwarf<Slice<'d>>,
        at: Gva,
    ) -> Result<Option<Unit<Slice<'d>>>, DwarfError> {
        let code = match self.units.get() {
            Some(code) => code,
            None => {
                let code = unit_code(dwarf)?;
                self.units.get_or_init(|| code)
            }
        };
        let after = code.partition_point(|(low, ..)| *low <= at.0);
        let around = after.checked_sub(1).and_then(|index| code.get(index));
        let Some((.., unit)) = around.filter(|(_, high, _)| at.0 < *high) else { return Ok(None) };
        Ok(Some(dwarf.unit(dwarf.unit_header(*unit)?)?))
    }
}

/// Whether a place is, where a function begins, in the stack frame that it is about to make.
fn is_in_new_frame(place: VariablePlace) -> bool {
    matches!(place, VariablePlace::Memory(Register::Rsp, ..0) | VariablePlace::Memory(Register::Rbp, _))
}

fn unit_code(dwarf: &Dwarf<Slice<'_>>) -> Result<UnitCode, DwarfError> {
    let mut code = UnitCode::new();
    for header in Units::of(dwarf)?.headers {
        let Some(offset) = header.debug_info_offset() else { continue };
        let unit = dwarf.unit(header)?;
        let unit = unit.unit_ref(dwarf);
        let root = unit.entry(unit.header.root_offset())?;
        CodeAttributes::of(&root).pieces(unit, |low, high| {
            code.push((low, high, offset));
            if code.len() > MOST_STRETCHES { Err(DwarfError::TooMuch) } else { Ok(()) }
        })?;
    }
    code.sort_unstable_by_key(|(low, high, _)| (*low, *high));
    Ok(code)
}

#[cfg(test)]
mod tests;
