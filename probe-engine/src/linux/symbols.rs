//! A kernel's symbols: by name, by address, by pattern.
//!
//! Names lie one behind the other in one string, as the kernel's own tables keep them: 150,000 symbols are two
//! allocations, not 150,000.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use super::glob::Glob;
use super::nearest;
use crate::addr::Gva;
use crate::guest_text::{Escaped, is_plain};

pub mod named;
mod packed;
mod renamed;

use renamed::PROMOTED;
pub use renamed::{is_changed, promoted_from};

/// Most bytes that all names may take together; Debian's kernels use 5 MB.
const MOST_NAME_BYTES: usize = 256 << 20;
/// Most symbols; Debian's kernels have 155,000.
const MOST_SYMBOLS: usize = 4 << 20;
/// Longest name, in bytes (KSYM_NAME_LEN, include/linux/kallsyms.h).
pub(crate) const LONGEST_NAME: usize = 512;

/// A symbol, at its link-time address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Symbol<'a> {
    /// Its address; an offset into the per-CPU area for per-CPU variables.
    pub at: Gva,
    /// What it is, as `nm` says it: `t` and `T` text (upper case: global), `d` data, `b` zeroed data, `r`
    /// read-only data, `w`, `v` weak, `a` absolute.
    pub kind: char,
    /// Its name. Several symbols may share one.
    pub name: &'a str,
}

impl Symbol<'_> {
    /// Whether it is code: a function, an entry point, or a mark in `.text`.
    #[must_use]
    pub fn is_text(&self) -> bool {
        matches!(self.kind, 't' | 'T' | 'w' | 'W')
    }

    /// Whether it lies in the kernel: a constant does not, and a per-CPU variable has an offset for an address.
    #[must_use]
    pub fn is_placed(&self) -> bool {
        !matches!(self.kind, 'a' | 'A') && self.at.0 >> 63 != 0
    }

    /// Whether it names the padding before a function.
    #[must_use]
    pub fn is_padding(&self) -> bool {
        self.name.starts_with("__pfx_") || self.name.starts_with("__cfi_")
    }
}

/// A function: a text symbol and where the next symbol begins. Data has such bounds, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function<'a> {
    /// The first of the symbols at its address.
    pub symbol: Symbol<'a>,
    /// The address of the next symbol that lies higher. Padding before that one is included, unless a `__pfx_`
    /// symbol marks it.
    pub end: Gva,
}

impl Function<'_> {
    /// The addresses of its code.
    #[must_use]
    pub fn range(&self) -> Range<Gva> {
        self.symbol.at..self.end
    }
}

/// An address as a user reads it: `do_sys_openat2`, `do_sys_openat2+0x10`, or the number when no symbol is near.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedAddress<'a> {
    /// The address.
    pub at: Gva,
    /// The function around it.
    pub function: Option<Function<'a>>,
}

impl fmt::Display for NamedAddress<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self
            .function
            .and_then(|function| Some((function.symbol.name, self.at.offset_from(function.symbol.at)?)));
        match found {
            Some((name, 0)) => f.write_str(name),
            Some((name, offset)) => write!(f, "{name}+{offset:#x}"),
            None => write!(f, "{}", self.at),
        }
    }
}

/// The symbols do not fit into a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum TableFull {
    /// A name of more than 512 bytes.
    #[error("a symbol's name is longer than {LONGEST_NAME} bytes")]
    LongName,
    /// Far more symbols than any kernel has.
    #[error(
        "there are more than {MOST_SYMBOLS} symbols, or their names take more than {MOST_NAME_BYTES} bytes"
    )]
    TooMany,
}

#[derive(Debug, Clone, Copy)]
struct PackedSymbol {
    at: Gva,
    name: u32,
    name_len: u16,
    kind: u8,
}

/// Collects the symbols of a [`SymbolTable`] in any order.
#[derive(Debug, Default)]
pub struct SymbolTableBuilder {
    names: String,
    entries: Vec<PackedSymbol>,
}

impl SymbolTableBuilder {
    /// Adds a symbol. `kind` is the letter of `nm`. A name that no compiler makes is kept as it is [shown](Escaped).
    ///
    /// # Errors
    /// [`TableFull`] when the name, or all names together, are longer than a kernel's can be.
    pub fn push(&mut self, at: Gva, kind: u8, name: &str) -> Result<(), TableFull> {
        if !is_plain(name) {
            return self.push_plain(at, kind, &Escaped(name.as_bytes()).to_string());
        }
        self.push_plain(at, kind, name)
    }

    fn push_plain(&mut self, at: Gva, kind: u8, name: &str) -> Result<(), TableFull> {
        if name.len() > LONGEST_NAME {
            return Err(TableFull::LongName);
        }
        if self.entries.len() == MOST_SYMBOLS || self.names.len() + name.len() > MOST_NAME_BYTES {
            return Err(TableFull::TooMany);
        }
        self.entries.push(PackedSymbol {
            at,
            name: self.names.len() as u32,
            name_len: name.len() as u16,
            kind,
        });
        self.names.push_str(name);
        Ok(())
    }

    /// Sorts what was added. Symbols at one address stay in the order in which they came.
    #[must_use]
    pub fn finish(self) -> SymbolTable {
        let Self { names, mut entries } = self;
        entries.sort_by_key(|entry| entry.at);
        SymbolTable { names, entries, by_name: OnceLock::new() }
    }
}

/// All symbols of a kernel, at link-time addresses.
#[derive(Clone, Serialize, Deserialize)]
#[serde(into = "packed::Packed", try_from = "packed::Packed")]
pub struct SymbolTable {
    names: String,
    /// By address.
    entries: Vec<PackedSymbol>,
    /// Indices into `entries`, by name and then by address; sorted when they are needed first.
    by_name: OnceLock<Vec<u32>>,
}

impl fmt::Debug for SymbolTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SymbolTable").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl SymbolTable {
    /// How many symbols there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// How much memory it takes, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.names.len() + self.entries.len() * (size_of::<PackedSymbol>() + size_of::<u32>())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether those of data are there, as `init_task` is in every kernel: one without CONFIG_KALLSYMS_ALL keeps those of
    /// functions alone, and a few at the ends of its text.
    #[must_use]
    pub fn have_data(&self) -> bool {
        self.lookup("init_task").next().is_some()
    }

    /// All symbols by address.
    pub fn iter(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.entries.iter().map(|entry| self.view(entry))
    }

    /// The text symbols by address, aliases included.
    pub fn text(&self) -> impl Iterator<Item = Symbol<'_>> {
        self.iter().filter(Symbol::is_text)
    }

    /// Every symbol of that name: static functions of several files often share one. Those of the name itself come first,
    /// by address, and then those that clang has promoted: see [`PROMOTED`].
    pub fn lookup(&self, name: &str) -> impl Iterator<Item = Symbol<'_>> {
        let exact = self.beginning_with(name).take_while(move |symbol| symbol.name == name);
        let promoted = self.beginning_with(format!("{name}{PROMOTED}"));
        exact.chain(promoted.filter(|symbol| promoted_from(symbol.name).is_some()))
    }

    /// The symbols whose names begin so, by name.
    fn beginning_with<'a, S: AsRef<str>>(
        &'a self,
        start: S,
    ) -> impl Iterator<Item = Symbol<'a>> + use<'a, S> {
        let by_name = self.by_name();
        let first = by_name
            .partition_point(|index| self.symbol(*index).is_some_and(|symbol| symbol.name < start.as_ref()));
        let from = by_name.get(first..).unwrap_or_default().iter().map_while(|index| self.symbol(*index));
        from.take_while(move |symbol| symbol.name.starts_with(start.as_ref()))
    }

    /// The address of the only symbol of that name; `None` when there is none, or several.
    #[must_use]
    pub fn address_of(&self, name: &str) -> Option<Gva> {
        let mut found = self.lookup(name);
        found.next().filter(|_| found.next().is_none()).map(|symbol| symbol.at)
    }

    /// The function around an address, as the kernel's own `kallsyms_lookup` names it: among several symbols at
    /// one address the first. `None` outside text, and behind the last symbol, whose end nothing tells.
    #[must_use]
    pub fn function_at(&self, at: Gva) -> Option<Function<'_>> {
        self.first_at(at, |symbol| symbol.is_text())
    }

    /// The same of data as well. `None` for constants, per-CPU variables among them.
    #[must_use]
    pub fn symbol_at(&self, at: Gva) -> Option<Function<'_>> {
        self.first_at(at, |symbol| symbol.is_placed())
    }

    fn first_at(&self, at: Gva, wanted: impl Fn(&Symbol<'_>) -> bool) -> Option<Function<'_>> {
        let after = self.entries.partition_point(|entry| entry.at <= at);
        let end = self.entries.get(after)?.at;
        let start = self.entries.get(after.checked_sub(1)?)?.at;
        let first = self.entries.partition_point(|entry| entry.at < start);
        let mut aliases = self.entries.get(first..after)?.iter().map(|entry| self.view(entry));
        Some(Function { symbol: aliases.find(wanted)?, end })
    }

    /// An address as a user reads it.
    #[must_use]
    pub fn place(&self, at: Gva) -> NamedAddress<'_> {
        NamedAddress { at, function: self.function_at(at) }
    }

    /// The text symbols whose names match, by address.
    pub fn matching(&self, glob: &Glob) -> impl Iterator<Item = Symbol<'_>> {
        self.text().filter(|symbol| glob.matches(symbol.name))
    }

    /// Up to `count` names of text symbols that a user may have meant by `name`, the likeliest first.
    #[must_use]
    pub fn nearest(&self, name: &str, count: usize) -> Vec<&str> {
        let functions = self.text().filter(|symbol| !symbol.is_padding());
        nearest::nearest(functions.map(|symbol| symbol.name), name, count)
    }

    /// As [`nearest`](Self::nearest), among the symbols of data as well. Absolute ones are left out.
    #[must_use]
    pub fn nearest_of_all(&self, name: &str, count: usize) -> Vec<&str> {
        let fixed = self.iter().filter(|symbol| !matches!(symbol.kind, 'a' | 'A'));
        nearest::nearest(fixed.map(|symbol| symbol.name), name, count)
    }

    /// The address of the next symbol that lies higher than `at`; `None` behind the last.
    #[must_use]
    pub fn end_of(&self, at: Gva) -> Option<Gva> {
        let after = self.entries.partition_point(|entry| entry.at <= at);
        self.entries.get(after).map(|entry| entry.at)
    }

    fn by_name(&self) -> &[u32] {
        self.by_name.get_or_init(|| {
            let mut by_name: Vec<u32> = (0..self.entries.len() as u32).collect();
            by_name.sort_by_key(|index| self.symbol(*index).map(|symbol| symbol.name));
            by_name
        })
    }

    fn symbol(&self, index: u32) -> Option<Symbol<'_>> {
        self.entries.get(index as usize).map(|entry| self.view(entry))
    }

    fn view(&self, entry: &PackedSymbol) -> Symbol<'_> {
        let start = entry.name as usize;
        let name = self.names.get(start..start + usize::from(entry.name_len)).unwrap_or_default();
        Symbol { at: entry.at, kind: entry.kind.into(), name }
    }
}

#[cfg(test)]
mod tests;
