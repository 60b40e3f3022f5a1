//! Where the code of a source line is.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::inlined::{InlinedCall, NO_CALL};
use super::rows::Row;
use super::source::SourceMap;
use crate::addr::Gva;
use crate::linux::symbols::SymbolTable;

/// A place at which code of a line begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinePlace {
    /// The instruction, at its link-time address.
    pub at: Gva,
    /// The file, relative to the source.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The function that the line is of, where it is inlined into another one there.
    pub inlined: Option<String>,
}

impl SourceMap {
    /// The files with code that are called `name`, which may lack folders at its beginning.
    #[must_use]
    pub fn files_called(&self, name: &str) -> Vec<&str> {
        let name = name.trim_start_matches("./");
        let is_called = |file: &&str| {
            file.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        let numbers: BTreeSet<u32> = self.rows.iter().map(|row| row.file).collect();
        let found = numbers.into_iter().filter_map(|number| self.files.get(number as usize));
        let found: BTreeSet<&str> = found.map(String::as_str).filter(is_called).collect();
        found.into_iter().collect()
    }

    /// The file that the function at `entry` is in.
    #[must_use]
    pub fn file_of(&self, entry: Gva) -> Option<&str> {
        let at = self.offset(entry)?;
        let after = self.rows.partition_point(|row| row.at <= at);
        let row = self.rows.get(after.checked_sub(1)?)?;
        let mut file = row.file;
        // What is inlined there may be of another one.
        if let Some((_, call)) = self.calls_at(at).last() {
            file = call.file;
        }
        self.files.get(file as usize).map(String::as_str).filter(|file| !file.is_empty())
    }

    /// The places of a line, one for each function that it is in and each copy of it that is inlined there: the first of the
    /// instructions with which a statement of the line begins. `within` has those of one function alone.
    #[must_use]
    pub fn places(
        &self,
        file: &str,
        line: u32,
        within: Option<&Range<Gva>>,
        symbols: &SymbolTable,
    ) -> Vec<LinePlace> {
        let mut found: BTreeMap<(Option<Gva>, u32), LinePlace> = BTreeMap::new();
        let wanted = |row: &&Row| row.is_stmt && row.line == line && self.is_file(row.file, file);
        for row in self.rows_within(within).iter().filter(wanted) {
            let at = self.base.add(row.at.into());
            let function = symbols.function_at(at).map(|function| function.symbol.at);
            let call = self.owner(row);
            let name = self.inlined.calls.get(call as usize).filter(|_| call != NO_CALL);
            let name = name.and_then(|call| self.inlined.names.get(call.function as usize));
            found.entry((function, call)).or_insert_with(|| LinePlace {
                at,
                file: file.to_owned(),
                line,
                inlined: name.cloned(),
            });
        }
        let mut places: Vec<LinePlace> = found.into_values().collect();
        places.sort_by_key(|place| place.at);
        places.dedup_by_key(|place| place.at);
        places
    }

    /// The lines of a file that have code of their own, within one function or anywhere.
    #[must_use]
    pub fn lines_with_code(&self, file: &str, within: Option<&Range<Gva>>) -> BTreeSet<u32> {
        let rows = self.rows_within(within).iter();
        let rows = rows.filter(|row| row.is_stmt && row.line != 0 && self.is_file(row.file, file));
        rows.map(|row| row.line).collect()
    }

    /// The inlined call that a row is of: the innermost at its address, or, of a row for the line of the call itself, whoever
    /// makes that call.
    fn owner(&self, row: &Row) -> u32 {
        let is_call = |(_, call): &(u32, InlinedCall)| (call.file, call.line) == (row.file, row.line);
        let caller = self.calls_at(row.at).find(is_call).map(|(_, call)| call.caller);
        caller.unwrap_or_else(|| self.innermost_at(row.at))
    }

    fn is_file(&self, number: u32, name: &str) -> bool {
        self.files.get(number as usize).is_some_and(|own| own == name)
    }

    fn rows_within(&self, within: Option<&Range<Gva>>) -> &[Row] {
        let Some(range) = within else { return &self.rows };
        let (Some(start), Some(end)) = (self.offset(range.start), self.offset(range.end)) else { return &[] };
        let start = self.rows.partition_point(|row| row.at < start);
        let end = self.rows.partition_point(|row| row.at < end);
        self.rows.get(start..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
