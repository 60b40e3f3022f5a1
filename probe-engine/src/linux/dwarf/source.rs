//! Which source each instruction of a kernel is from.

use super::files::{Files, UNKNOWN, UnitFiles};
use super::inlined::{Inlined, InlinedCall, NO_CALL, Stretch};
use super::rows::{self, Row};
use super::units::Units;
use super::{DebugFile, DwarfError};
use crate::addr::Gva;
use crate::linux::lines::{LineTable, LineTableBuilder};

/// Most inlined calls that are inside each other at one address.
const DEEPEST: usize = 1 << 10;

/// The source of a kernel's text, at link-time addresses.
#[derive(Debug)]
pub struct SourceMap {
    pub(super) base: Gva,
    pub(super) files: Vec<String>,
    pub(super) root: Option<String>,
    /// By address.
    pub(super) rows: Vec<Row>,
    pub(super) inlined: Inlined,
    /// From which byte on which inlined call holds, by address.
    pub(super) calls: Vec<(u32, u32)>,
}

impl SourceMap {
    /// Reads that of a kernel, whose text begins at `base`.
    ///
    /// # Errors
    /// [`DwarfError`] for a damaged file.
    pub fn read(file: &DebugFile<'_>, base: Gva) -> Result<Self, DwarfError> {
        let dwarf = file.dwarf()?;
        let mut units = Units::of(&dwarf)?;
        let (mut files, mut rows, mut inlined) = (Files::default(), Vec::new(), Inlined::new());
        for header in units.headers.clone() {
            let unit = dwarf.unit(header)?;
            let unit = unit.unit_ref(&dwarf);
            let mut unit_files = UnitFiles::new(unit);
            rows::collect(unit, base, &mut unit_files, &mut files, &mut rows)?;
            inlined.collect(unit, base, &mut units, |file| unit_files.number(file, &mut files))?;
        }
        rows::sort(&mut rows);
        let calls = innermost(std::mem::take(&mut inlined.stretches));
        let (files, root) = files.finish();
        Ok(Self { base, files, root, rows, inlined, calls })
    }

    /// The folder that names of files are relative to, where they say it.
    #[must_use]
    pub fn root(&self) -> Option<&str> {
        self.root.as_deref()
    }

    /// Bytes from the start of the text.
    pub(super) fn offset(&self, at: Gva) -> Option<u32> {
        at.offset_from(self.base)?.try_into().ok()
    }

    /// The innermost of the inlined calls at a byte.
    pub(super) fn innermost_at(&self, at: u32) -> u32 {
        let after = self.calls.partition_point(|(start, _)| *start <= at);
        after.checked_sub(1).and_then(|index| self.calls.get(index)).map_or(NO_CALL, |(_, call)| *call)
    }

    /// All inlined calls at a byte with their numbers, the innermost first.
    pub(super) fn calls_at(&self, at: u32) -> impl Iterator<Item = (u32, InlinedCall)> {
        let mut next = self.innermost_at(at);
        std::iter::from_fn(move || {
            let number = next;
            let call = self.inlined.calls.get(number as usize).filter(|_| number != NO_CALL)?;
            // Whoever calls comes before what is called.
            next = call.caller;
            Some((number, *call))
        })
    }

    /// All that is needed to say from which line an address is, as small as it can be.
    #[must_use]
    pub fn line_table(&self) -> LineTable {
        let mut table = LineTableBuilder::new(self.base, &self.files, &self.inlined.names);
        for call in &self.inlined.calls {
            table.call(call.caller, call.function, call.file, call.line);
        }
        let mut calls = self.calls.iter().peekable();
        let mut call = NO_CALL;
        let mut line = (UNKNOWN, 0);
        let mut rows = self.rows.iter().peekable();
        loop {
            let next = [rows.peek().map(|row| row.at), calls.peek().map(|(at, _)| *at)];
            let Some(at) = next.into_iter().flatten().min() else { break };
            // Of several rows for one address, the last is what a debugger shows.
            while let Some(row) = rows.next_if(|row| row.at == at) {
                line = (row.file, row.line);
            }
            while let Some((_, next)) = calls.next_if(|(own, _)| *own == at) {
                call = *next;
            }
            let (file, line) = line;
            table.push(at, file, line, call);
        }
        table.finish()
    }
}

/// From which byte on which of the calls is the innermost one, by address.
fn innermost(mut stretches: Vec<Stretch>) -> Vec<(u32, u32)> {
    stretches.sort_unstable_by_key(|stretch| (stretch.start, stretch.depth));
    let mut found: Vec<(u32, u32)> = Vec::new();
    let mut mark = |at: u32, call: u32| match found.last_mut() {
        Some(last) if last.0 == at => last.1 = call,
        Some(last) if last.1 == call => {}
        _ => found.push((at, call)),
    };
    // Those that hold, the innermost last.
    let mut open: Vec<Stretch> = Vec::new();
    let close = |open: &mut Vec<Stretch>, until: u32, mark: &mut dyn FnMut(u32, u32)| {
        while let Some(end) = open.last().map(|last| last.end).filter(|end| *end <= until) {
            while open.last().is_some_and(|last| last.end <= end) {
                open.pop();
            }
            mark(end, open.last().map_or(NO_CALL, |last| last.call));
        }
    };
    for stretch in stretches {
        close(&mut open, stretch.start, &mut mark);
        if open.len() < DEEPEST {
            let outside = open.partition_point(|other| other.depth <= stretch.depth);
            open.insert(outside, stretch);
            mark(stretch.start, open.last().map_or(NO_CALL, |last| last.call));
        }
    }
    close(&mut open, u32::MAX, &mut mark);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_call_holds() {
        let stretch = |start, end, call, depth| Stretch { start, end, call, depth };
        let whole = vec![
            stretch(10, 50, 1, 0),
            stretch(10, 20, 2, 1),
            stretch(30, 40, 3, 1),
            stretch(32, 34, 4, 2),
            stretch(60, 70, 1, 0),
        ];
        let expected = [(10, 2), (20, 1), (30, 3), (32, 4), (34, 3), (40, 1), (50, 0), (60, 1), (70, 0)];
        assert_eq!(innermost(whole), expected);
        // An inner one that goes on behind the end of the outer, and one that begins before it.
        assert_eq!(
            innermost(vec![stretch(10, 20, 1, 0), stretch(15, 30, 2, 1)]),
            [(10, 1), (15, 2), (30, 0)]
        );
        assert_eq!(innermost(vec![stretch(10, 40, 2, 1), stretch(15, 30, 1, 0)]), [(10, 2), (40, 0)]);
        assert_eq!(innermost(Vec::new()), []);
    }
}
