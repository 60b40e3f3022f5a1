//! The units that the debugging information consists of, one for each file that was compiled.

use std::collections::HashMap;

use gimli::{DebugInfoOffset, Dwarf, Unit, UnitHeader, UnitOffset};

use super::{DwarfError, Slice};

/// Where units are. Those that others refer to are kept.
pub(super) struct Units<'a> {
    /// In the order in which they lie.
    pub(super) headers: Vec<UnitHeader<Slice<'a>>>,
    kept: HashMap<usize, Unit<Slice<'a>>>,
}

impl<'a> Units<'a> {
    pub(super) fn of(dwarf: &Dwarf<Slice<'a>>) -> Result<Self, DwarfError> {
        let mut units = dwarf.units();
        let mut headers = Vec::new();
        while let Some(header) = units.next()? {
            headers.push(header);
        }
        Ok(Self { headers, kept: HashMap::new() })
    }

    /// The unit in which an entry is, and where it is in that; `None` where there is none.
    pub(super) fn find(
        &mut self,
        dwarf: &Dwarf<Slice<'a>>,
        entry: DebugInfoOffset,
    ) -> Result<Option<(&Unit<Slice<'a>>, UnitOffset)>, DwarfError> {
        let start = |header: &UnitHeader<Slice<'a>>| header.debug_info_offset().map_or(0, |start| start.0);
        let after = self.headers.partition_point(|header| start(header) <= entry.0);
        let Some((index, header)) = after.checked_sub(1).and_then(|n| Some((n, self.headers.get(n)?))) else {
            return Ok(None);
        };
        let Some(inside) = entry.to_unit_offset(header) else { return Ok(None) };
        let unit = match self.kept.entry(index) {
            std::collections::hash_map::Entry::Occupied(kept) => kept.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => place.insert(dwarf.unit(*header)?),
        };
        Ok(Some((unit, inside)))
    }
}
