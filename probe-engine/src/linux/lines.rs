//! From which line of the source an instruction is, and through which inlined functions: plain data, which is sent to
//! where it is needed and looked up where it lies.
//!
//! A kernel has two million rows. They are written one behind the other, each as its differences from the one before, and
//! an index says where every 64th begins.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::addr::Gva;

mod bytes;

use bytes::{Bytes, Words};

/// Rows that the index has one entry for.
const BLOCK: usize = 64;
/// Words of an entry of the index: bytes from the base, and where its rows begin.
const INDEX: usize = 2;
/// Most frames of one address.
const DEEPEST: usize = 256;

/// The lines of a kernel's text, at link-time addresses.
#[derive(Clone, Serialize, Deserialize)]
pub struct LineTable {
    base: Gva,
    index: Words,
    rows: Bytes,
    /// Of each inlined call: in which call, which function, file, line.
    calls: Words,
    files: NameTable,
    functions: NameTable,
}

/// A line of the source, and the inlined function that it is a part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceLine<'a> {
    /// The file, relative to the source.
    pub file: &'a str,
    /// The line, from 1 on; 0 where none is to blame.
    pub line: u32,
    /// The function, where it was inlined; `None` for the one that the code belongs to.
    pub inlined: Option<&'a str>,
}

impl fmt::Display for SourceLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}:?", self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

impl fmt::Debug for LineTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineTable").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl LineTable {
    /// How much memory it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.index.bytes()
            + self.rows.len()
            + self.calls.bytes()
            + self.files.bytes()
            + self.functions.bytes()
    }

    /// The line that the instruction at `link` is from: that of the innermost inlined function first, then from where that
    /// was called, and so on. Nothing where none is known.
    #[must_use]
    pub fn at(&self, link: Gva) -> Vec<SourceLine<'_>> {
        let row = link.offset_from(self.base).and_then(|at| self.row(at.try_into().ok()?));
        let Some(LineRow { mut file, mut line, mut call, .. }) = row.filter(|row| row.file != 0) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        while found.len() < DEEPEST {
            let [caller, function, next_file, next_line] = self.calls.get(call as usize).unwrap_or_default();
            let inlined = (call != 0).then(|| self.functions.get(function));
            found.push(SourceLine { file: self.files.get(file), line, inlined });
            // Whoever calls comes before what is called, but in a damaged table.
            if call == 0 || caller >= call {
                break;
            }
            (file, line, call) = (next_file, next_line, caller);
        }
        found
    }

    /// The last row that begins at `at` or before.
    fn row(&self, at: u32) -> Option<LineRow> {
        let after = self.index.partition_point::<INDEX>(|[start, _]| start <= at);
        let [start, position] = self.index.get::<INDEX>(after.checked_sub(1)?)?;
        let mut bytes = self.rows.get(position as usize..)?;
        let mut row = LineRow { at: start, ..LineRow::default() };
        let mut last = None;
        for _ in 0..BLOCK {
            let Some(next) = row.next(&mut bytes) else { break };
            if next.at > at {
                break;
            }
            last = Some(next);
            row = next;
        }
        last
    }
}

/// From an address on, this holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct LineRow {
    at: u32,
    file: u32,
    line: u32,
    call: u32,
}

impl LineRow {
    /// Reads the row behind this one.
    fn next(self, bytes: &mut &[u8]) -> Option<Self> {
        let mut add = |value: u32| Some(value.wrapping_add_signed(bytes::signed(bytes::take(bytes)?)));
        Some(Self { file: add(self.file)?, line: add(self.line)?, call: add(self.call)?, at: self.at })
            .and_then(|row| Some(Self { at: row.at.wrapping_add(bytes::take(bytes)?), ..row }))
    }

    /// Writes itself behind `last`.
    fn write(self, last: Self, bytes: &mut Vec<u8>) {
        for (value, last) in [(self.file, last.file), (self.line, last.line), (self.call, last.call)] {
            bytes::put(bytes, bytes::unsigned(value.wrapping_sub(last).cast_signed()));
        }
        bytes::put(bytes, self.at.wrapping_sub(last.at));
    }
}

/// Makes a [`LineTable`], row by row.
#[derive(Debug)]
pub struct LineTableBuilder {
    table: LineTable,
    rows: Vec<u8>,
    last: LineRow,
    /// Rows so far.
    count: usize,
}

impl LineTableBuilder {
    /// Begins one for the text at `base`. Files and functions are numbered as they come here; those of number 0 are not known.
    #[must_use]
    pub fn new(base: Gva, files: &[String], functions: &[String]) -> Self {
        let table = LineTable {
            base,
            index: Words::default(),
            rows: Bytes::default(),
            calls: Words::default(),
            files: NameTable::of(files),
            functions: NameTable::of(functions),
        };
        Self { table, rows: Vec::new(), last: LineRow::default(), count: 0 }
    }

    /// Adds an inlined call, in another one of those before. Calls are numbered as they come; the first stands for none.
    pub fn call(&mut self, caller: u32, function: u32, file: u32, line: u32) {
        self.table.calls.push([caller, function, file, line]);
    }

    /// Adds what holds from the byte `at` on, which is behind what was added before.
    pub fn push(&mut self, at: u32, file: u32, line: u32, call: u32) {
        let row = LineRow { at, file, line, call };
        let is_same = LineRow { at, ..self.last } == row;
        if is_same && self.count > 0 {
            return;
        }
        if self.count.is_multiple_of(BLOCK) {
            self.table.index.push([at, self.rows.len() as u32]);
            self.last = LineRow { at, ..LineRow::default() };
        }
        row.write(self.last, &mut self.rows);
        self.last = row;
        self.count += 1;
    }

    /// The whole table.
    #[must_use]
    pub fn finish(self) -> LineTable {
        LineTable { rows: Bytes::from(self.rows), ..self.table }
    }
}

/// NameTable, one behind the other.
#[derive(Clone, Default, Serialize, Deserialize)]
struct NameTable {
    text: String,
    /// Where each ends.
    ends: Words,
}

impl NameTable {
    fn of(names: &[String]) -> Self {
        let mut found = Self::default();
        for name in names {
            found.text.push_str(name);
            found.ends.push([found.text.len() as u32]);
        }
        found
    }

    fn get(&self, number: u32) -> &str {
        let end = |number: usize| self.ends.get(number).map(|[end]| end as usize);
        let start = (number as usize).checked_sub(1).and_then(end).unwrap_or(0);
        end(number as usize).and_then(|end| self.text.get(start..end)).unwrap_or_default()
    }

    fn bytes(&self) -> usize {
        self.text.len() + self.ends.bytes()
    }
}

#[cfg(test)]
mod tests;
