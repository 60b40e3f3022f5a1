//! Where the code of an entry lies: in one piece, or in several.

use gimli::{AttributeValue, DebuggingInformationEntry, DwAt, UnitRef, constants as dw};

use super::{DwarfError, Slice};

/// What an entry says of the place of its code.
#[derive(Default, Clone, Copy)]
pub(super) struct CodeAttributes<'a> {
    low: Option<AttributeValue<Slice<'a>>>,
    high: Option<AttributeValue<Slice<'a>>>,
    ranges: Option<AttributeValue<Slice<'a>>>,
}

impl<'a> CodeAttributes<'a> {
    /// Keeps an attribute of the entry, if it is about its code.
    pub(super) fn keep(&mut self, name: DwAt, value: AttributeValue<Slice<'a>>) {
        match name {
            dw::DW_AT_low_pc => self.low = Some(value),
            dw::DW_AT_high_pc => self.high = Some(value),
            dw::DW_AT_ranges => self.ranges = Some(value),
            _ => {}
        }
    }

    /// That of an entry.
    pub(super) fn of(entry: &DebuggingInformationEntry<Slice<'a>>) -> Self {
        let mut code = Self::default();
        entry.attrs().iter().for_each(|attribute| code.keep(attribute.name(), attribute.value()));
        code
    }

    /// Whether anything is said of it.
    pub(super) fn is_said(&self) -> bool {
        self.low.is_some() || self.ranges.is_some()
    }

    /// Calls `each` with the first address of each piece and the first one behind it.
    pub(super) fn pieces(
        self,
        unit: UnitRef<'_, Slice<'a>>,
        mut each: impl FnMut(u64, u64) -> Result<(), DwarfError>,
    ) -> Result<(), DwarfError> {
        if let Some(ranges) = self.ranges {
            let Some(mut ranges) = unit.attr_ranges(ranges)? else { return Ok(()) };
            while let Some(range) = ranges.next()? {
                each(range.begin, range.end)?;
            }
            return Ok(());
        }
        let (Some(low), Some(high)) = (self.low, self.high) else { return Ok(()) };
        let Some(low) = unit.attr_address(low)? else { return Ok(()) };
        let high = match unit.attr_address(high)? {
            Some(high) => Some(high),
            None => high.udata_value().and_then(|len| low.checked_add(len)),
        };
        high.map_or(Ok(()), |high| each(low, high))
    }
}
