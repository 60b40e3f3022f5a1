//! The rows of line programs (DWARF 5, 6.2): from which address on which line holds.

use gimli::UnitRef;

use super::files::{Files, UNKNOWN, UnitFiles};
use super::{DwarfError, Slice};
use crate::addr::Gva;

/// Most rows of all units; Debian's kernels have 4 million.
const MOST_ROWS: usize = 64 << 20;

/// From an address on, this line holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Row {
    /// Bytes from the start of the kernel's text.
    pub(super) at: u32,
    /// The number of the file; [`UNKNOWN`] behind the end of what is known.
    pub(super) file: u32,
    /// The line; 0 where no line of the file is to blame.
    pub(super) line: u32,
    /// Whether a statement begins there, so that a breakpoint at the line belongs there.
    pub(super) is_stmt: bool,
}

/// Adds the rows of a unit that lie behind `base`.
pub(super) fn collect(
    unit: UnitRef<'_, Slice<'_>>,
    base: Gva,
    unit_files: &mut UnitFiles<'_, '_>,
    files: &mut Files,
    rows: &mut Vec<Row>,
) -> Result<(), DwarfError> {
    let Some(program) = unit.line_program.clone() else { return Ok(()) };
    let mut program = program.rows();
    let mut start = rows.len();
    while let Some((_, row)) = program.next_row()? {
        let offset = Gva(row.address()).offset_from(base).and_then(|offset| u32::try_from(offset).ok());
        // What the linker has thrown away lies at 0.
        let Some(at) = offset else { continue };
        if rows.len() == MOST_ROWS {
            return Err(DwarfError::TooMuch);
        }
        if row.end_sequence() {
            // A row where all ends is for no instruction.
            while rows.len() > start && rows.last().is_some_and(|last| last.at >= at) {
                rows.pop();
            }
            rows.push(Row { at, file: UNKNOWN, line: 0, is_stmt: false });
            start = rows.len();
            continue;
        }
        rows.push(Row {
            at,
            file: unit_files.number(row.file_index(), files),
            line: row.line().map_or(0, |line| line.get().try_into().unwrap_or(0)),
            is_stmt: row.is_stmt(),
        });
    }
    Ok(())
}

/// Puts the rows of all units into the order of their addresses. Where what is known ends at an address, what begins there
/// comes behind.
pub(super) fn sort(rows: &mut [Row]) {
    rows.sort_by_key(|row| (row.at, row.file != UNKNOWN));
}
