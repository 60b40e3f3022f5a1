//! Which function of a program an address is in.

use super::listing::{Functions, ListedFunction, add_functions, listed};
use super::{NoPlace, ProgramDebug, Segments, parse};
use object::Object;
use std::cmp::Reverse;
use std::fmt;
use std::ops::Range;

/// The functions of a program by where they are in its file.
pub struct FunctionTable(Vec<ListedFunction>);

/// All names together have no more bytes.
const MOST_NAMES: usize = 64 << 20;

/// A place in a function, as the kernel writes its own: `write+0x14/0x9b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedOffset<'a> {
    /// The function.
    pub name: &'a str,
    /// So many bytes from its start.
    pub offset: u64,
    /// How long it is, in bytes.
    pub size: u64,
}

impl fmt::Display for NamedOffset<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, offset, size } = self;
        write!(f, "{name}+{offset:#x}/{size:#x}")
    }
}

impl ProgramDebug {
    /// All functions that its file and the one beside that name.
    ///
    /// # Errors
    /// [`NoPlace`], why it has none.
    pub fn function_table(&self) -> Result<FunctionTable, NoPlace> {
        let parsed = parse(self.program())?;
        let segments = Segments::of(&parsed)?;
        let mut functions = Functions::new();
        add_functions(parsed.symbols().chain(parsed.dynamic_symbols()), &segments, &mut functions);
        let beside = self.beside();
        let beside = beside.as_ref().map(parse).transpose()?;
        if let Some(beside) = &beside {
            add_functions(beside.symbols(), &segments, &mut functions);
        }
        Ok(FunctionTable::of(listed(functions)))
    }
}

impl FunctionTable {
    /// Of several names of a place, that is the one which people use: `write`, and not `__write`.
    fn of(mut functions: Vec<ListedFunction>) -> Self {
        let underscores = |name: &str| name.len() - name.trim_start_matches('_').len();
        functions.sort_by(|one, other| {
            let rank = |own: &ListedFunction| (Reverse(own.size > 0), underscores(&own.name), own.name.len());
            (one.offset, rank(one), &one.name).cmp(&(other.offset, rank(other), &other.name))
        });
        functions.dedup_by_key(|function| function.offset);
        let mut names = 0;
        functions.retain(|function| {
            names += function.name.len();
            names <= MOST_NAMES
        });
        Self(functions)
    }

    /// How much of the file around this offset, in which there is [no function](Self::at), has none.
    #[must_use]
    pub fn gap(&self, place: u64) -> Range<u64> {
        let after = self.0.partition_point(|function| function.offset <= place);
        let start = self
            .0
            .get(..after)
            .and_then(<[_]>::last)
            .map_or(0, |before| before.offset.saturating_add(before.size));
        let end = self.0.get(after).map_or(u64::MAX, |next| next.offset);
        // A function may go on behind one that lies in it.
        start.min(place)..end
    }

    /// The function that has what is at this offset in the file. One of which the file does not say how long it is goes on to the next.
    #[must_use]
    pub fn at(&self, place: u64) -> Option<NamedOffset<'_>> {
        /// Functions that lie in others are few.
        const NESTED: usize = 8;
        let after = self.0.partition_point(|function| function.offset <= place);
        let end = self.0.get(after).map_or(u64::MAX, |next| next.offset);
        let before = self.0.get(..after)?.iter().enumerate().rev().take(NESTED);
        before.into_iter().find_map(|(n, function)| {
            let offset = place - function.offset;
            let size = match function.size {
                0 if n + 1 == after && end != u64::MAX => end - function.offset,
                size => size,
            };
            (offset < size).then_some(NamedOffset { name: &function.name, offset, size })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(functions: &[(u64, u64, &str)]) -> FunctionTable {
        let function = |(offset, size, name): &(u64, u64, &str)| ListedFunction {
            name: (*name).to_owned(),
            offset: *offset,
            size: *size,
            is_indirect: false,
        };
        FunctionTable::of(functions.iter().map(function).collect())
    }

    #[test]
    fn an_offset_is_in_a_function_or_in_none() {
        let table = table(&[
            (0x100, 0x20, "__write"),
            (0x100, 0x20, "write"),
            (0x100, 0x20, "__libc_write"),
            (0x100, 0, "w"),
            (0x140, 0, "start"),
            (0x160, 0x40, "outer"),
            (0x170, 0x4, "inner"),
            (0x200, 0, "last"),
        ]);
        let at = |place| table.at(place).map(|found| found.to_string());
        assert_eq!(at(0x114).as_deref(), Some("write+0x14/0x20"));
        assert_eq!(at(0x120), None, "it is between two");
        assert_eq!(at(0x15f).as_deref(), Some("start+0x1f/0x20"));
        assert_eq!(at(0x173).as_deref(), Some("inner+0x3/0x4"));
        assert_eq!(at(0x174).as_deref(), Some("outer+0x14/0x40"));
        assert_eq!((at(0x99), at(0x200)), (None, None), "nothing says where the last one ends");
        assert_eq!(
            [0x99, 0x130, 0x300].map(|place| table.gap(place)),
            [0..0x100, 0x120..0x140, 0x200..u64::MAX]
        );
    }

    #[test]
    fn this_program_has_functions() {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let program = ProgramDebug::read(bytes, |_| None).unwrap();
        let table = program.function_table().unwrap();
        let own = table.0.iter().find(|own| own.name.contains("this_program_has_functions")).unwrap();
        assert_eq!(table.at(own.offset + 1).map(|found| found.offset), Some(1));
    }
}
