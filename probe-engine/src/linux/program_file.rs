//! Where a place is in the file of a program: from symbols to offsets in the file (elf(5)).

mod known;
mod listing;
mod named;
mod several;
mod symbol;

use super::nearest::suggestion;
use super::partial_file::PartialFile;
use super::usdt::UsdtArgument;
use crate::addr::Gva;
use crate::insn::decode::{BoundaryError, instruction_at};
use crate::linux::program_place::{InFile, KnownFile};
use object::read::elf::{ElfFile64, FileHeader};
use object::{Object, ObjectSegment, ReadRef, SegmentFlags, elf};
use std::ops::Range;

/// Bytes of the longest instruction.
const INSTRUCTION: u64 = 15;
/// No function is followed further from its start to see where instructions begin, in bytes.
const FARTHEST: u64 = 1 << 20;

/// Why there is no such place in a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// It is no program's, or is damaged.
    #[error("it is no program or library for x86-64 (ELF): {0}")]
    NotElf(String),
    /// Nobody can read it whole.
    #[error("its tables are larger than those of a program are")]
    TooLarge,
    /// It has no such symbol.
    #[error(
        "it has no symbol `{name}`{}",
        if nearest.is_empty() { "; a file without symbols takes an offset, as PATH:0x1234".to_owned() }
        else { suggestion(nearest) }
    )]
    NoSymbol {
        /// What it is called.
        name: String,
        /// Those that it has and that are called much like it.
        nearest: Vec<String>,
    },
    /// It has several.
    #[error("it has {1} functions `{0}`: take one by its offset, as PATH:0x1234")]
    SeveralSymbols(String, usize),
    /// A processor executes nothing there.
    #[error("nothing is executed at {0:#x} of the file")]
    NotExecuted(u64),
    /// The symbol is code that finds a function.
    #[error(
        "`{0}` is a function that finds another one when the program is linked (IFUNC), and what it finds is chosen by the processor: \
         take that by its own name or its offset, as PATH:0x1234"
    )]
    Indirect(String),
    /// No function is called so.
    #[error("no function of it is called like `{0}`")]
    NoMatch(String),
    /// More places than anybody probes.
    #[error("`{0}` stands for {1} places in it, and {MOST_PLACES} are the most")]
    TooMany(String, usize),
    /// It has no such tracepoint of its own.
    #[error("it has no tracepoint `{name}`{}", told(.others))]
    NoTracepoint {
        /// `PROVIDER:NAME`
        name: String,
        /// Those that it has, or some of them.
        others: Vec<String>,
    },
    /// A tracepoint of a program's own, written without the word for that.
    #[error("it is no program; a tracepoint of a program's own is written `usdt PATH:PROVIDER:NAME`")]
    Unmarked,
    /// What was said of the place is of another file.
    #[error("it is another build than the file that its places and types were taken from")]
    OtherBuild,
    /// No instruction begins there.
    #[error(transparent)]
    Boundary(#[from] BoundaryError),
}

/// Most places that one probe stands for.
pub const MOST_PLACES: usize = 512;

fn told(names: &[String]) -> String {
    match names {
        [] => ", and no other one".to_owned(),
        names => format!("; it has {}", names.join(", ")),
    }
}

/// A place that was found in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundPlace {
    /// What it is called, if it is one of several.
    pub name: Option<String>,
    /// So many bytes from the file's start.
    pub offset: u64,
    /// Where in the file a counter lies that is not 0 while somebody probes there, if the file says that there is one.
    pub counter: Option<u64>,
    /// Where the arguments are, at a tracepoint that the program has of its own.
    pub arguments: Vec<UsdtArgument>,
}

impl FoundPlace {
    fn at(offset: u64) -> Self {
        Self { name: None, offset, counter: None, arguments: Vec::new() }
    }
}

/// What a look at a file came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Looked {
    /// There they are: one, unless the place [stands for several](InFile::is_several).
    Found(Vec<FoundPlace>),
    /// This part of the file has to be known first.
    Needs(Range<u64>),
}

pub use known::{ProgramDebug, ProgramDebugError, ProgramFunction};
pub use listing::{ListedFunction, ListedTracepoint, Listing, list};
pub use named::{FunctionTable, NamedOffset};
pub use several::LONGEST_NAME;
use symbol::address_of;

/// Looks for a place in `file`, which has to be the one that is `known`, if one is.
///
/// # Errors
/// [`NoPlace`], why it is not there.
pub fn look(file: &PartialFile, at: &InFile, known: Option<&KnownFile>) -> Result<Looked, NoPlace> {
    let found = find(file, at, known);
    match file.needed() {
        Some(needed) => Ok(Looked::Needs(needed)),
        None if file.has_refused() => Err(NoPlace::TooLarge),
        None => found.map(Looked::Found),
    }
}

type Elf<'a> = ElfFile64<'a, object::Endianness, &'a PartialFile>;

/// Parts of a file that are executed, or not.
struct Segments(Vec<Segment>);

struct Segment {
    address: u64,
    in_file: Range<u64>,
    is_executed: bool,
}

impl Segments {
    /// Those that are loaded.
    fn of(parsed: &Elf<'_>) -> Result<Self, NoPlace> {
        /// Programs have less than ten.
        const MOST: usize = 256;
        let is_executed = |flags| matches!(flags, SegmentFlags::Elf { p_flags } if p_flags & elf::PF_X != 0);
        let segment = |segment: object::read::elf::ElfSegment64<'_, '_, _, _>| {
            let (start, size) = segment.file_range();
            let in_file = start..start.saturating_add(size);
            Segment { address: segment.address(), in_file, is_executed: is_executed(segment.flags()) }
        };
        let all: Vec<_> = parsed.segments().take(MOST + 1).map(segment).collect();
        if all.len() > MOST { Err(NoPlace::TooLarge) } else { Ok(Self(all)) }
    }

    /// The address of what is at an offset in the file.
    fn address_of(&self, offset: u64) -> Option<u64> {
        let has = |segment: &&Segment| segment.is_executed && segment.in_file.contains(&offset);
        let segment = self.0.iter().find(has)?;
        segment.address.checked_add(offset - segment.in_file.start)
    }

    /// Where in the file an address is, of code or of data.
    fn offset_of(&self, address: u64, is_executed: bool) -> Option<u64> {
        self.0.iter().filter(|segment| segment.is_executed == is_executed).find_map(|segment| {
            let offset = segment.in_file.start.checked_add(address.checked_sub(segment.address)?)?;
            segment.in_file.contains(&offset).then_some(offset)
        })
    }

    fn is_code(&self, offset: u64) -> bool {
        self.0.iter().any(|segment| segment.is_executed && segment.in_file.contains(&offset))
    }
}

fn parse(file: &PartialFile) -> Result<Elf<'_>, NoPlace> {
    let parsed = Elf::parse(file).map_err(|error| NoPlace::NotElf(error.to_string()))?;
    match parsed.elf_header().e_machine(parsed.endian()) {
        elf::EM_X86_64 => Ok(parsed),
        _ => Err(NoPlace::NotElf("it is for another processor".to_owned())),
    }
}

fn find(file: &PartialFile, at: &InFile, known: Option<&KnownFile>) -> Result<Vec<FoundPlace>, NoPlace> {
    let parsed = parse(file)?;
    if known.is_some_and(|known| !is_same(&parsed, file, known)) {
        return Err(NoPlace::OtherBuild);
    }
    // What is found of several is looked for in no other file later.
    if at.is_several() && parsed.build_id().is_err() && file.is_needed() {
        return Ok(Vec::new());
    }
    let segments = Segments::of(&parsed)?;
    let (start, place) = match at {
        InFile::Functions(pattern) => return several::functions(file, &parsed, &segments, pattern),
        InFile::Tracepoint { provider, name } => {
            return several::tracepoints(file, &parsed, &segments, (provider, name));
        }
        InFile::Offset(offset) => (*offset, *offset),
        InFile::Symbol { name, offset } => {
            let start = match known.and_then(|known| known.symbol) {
                Some(start) => start,
                None => {
                    let address = address_of(file, &parsed, name)?;
                    segments.offset_of(address, true).ok_or(NoPlace::NotExecuted(address))?
                }
            };
            (start, start.saturating_add(*offset))
        }
    };
    if !segments.is_code(place) {
        return Err(NoPlace::NotExecuted(place));
    }
    let rest = |from: u64, to: u64| {
        let end = file.len().unwrap_or(0).min(to.saturating_add(INSTRUCTION));
        file.read_bytes_at(from, end.saturating_sub(from)).unwrap_or_default()
    };
    let from = if place - start <= FARTHEST { start } else { place };
    instruction_at(rest(from, place), Gva(from), Gva(place))?;
    Ok(vec![FoundPlace::at(place)])
}

/// What tells `file` from others, as far as it can be read.
#[must_use]
pub fn identity(file: &PartialFile) -> KnownFile {
    let build_id = parse(file).ok().and_then(|parsed| Some(parsed.build_id().ok()??.to_vec()));
    KnownFile { build_id, length: file.len().unwrap_or(0), symbol: None }
}

/// Whether it is the known one.
fn is_same(parsed: &Elf<'_>, file: &PartialFile, known: &KnownFile) -> bool {
    let own = parsed.build_id().ok().flatten();
    match &known.build_id {
        Some(known) => own == Some(known),
        None => own.is_none() && file.len() == Ok(known.length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::ObjectSymbol as _;

    /// What looking for it in our own test program comes to, and how much of that had to be known.
    fn looked(at: &InFile) -> (Result<u64, NoPlace>, u64, Vec<u8>) {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let mut file = PartialFile::new(bytes.len() as u64).unwrap();
        let mut known = 0;
        loop {
            match look(&file, at, None) {
                Ok(Looked::Needs(needed)) => {
                    known += needed.end - needed.start;
                    let end = bytes.len().min(needed.end as usize);
                    file.put(needed.start, &bytes[needed.start as usize..end]);
                }
                Ok(Looked::Found(places)) => {
                    assert_eq!(places.len(), 1);
                    return (Ok(places.first().unwrap().offset), known, bytes);
                }
                Err(error) => return (Err(error), known, bytes),
            }
        }
    }

    fn symbol(name: &str, offset: u64) -> InFile {
        InFile::Symbol { name: name.to_owned(), offset }
    }

    #[inline(never)]
    fn looked_for(number: u64) -> u64 {
        std::hint::black_box(number).wrapping_mul(0x1234_5678_9abc_def1)
    }

    /// What the compiler calls `looked_for`.
    fn mangled() -> String {
        let bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let program = object::File::parse(&*bytes).unwrap();
        let mut names = program.symbols().filter_map(|symbol| symbol.name().ok());
        names.find(|name| name.contains("program_file") && name.contains("10looked_for")).unwrap().to_owned()
    }

    #[test]
    fn a_symbol_is_found_with_parts_of_the_file() {
        assert_eq!(looked_for(1), 0x1234_5678_9abc_def1);
        let (found, known, bytes) = looked(&symbol(&mangled(), 0));
        let offset = found.unwrap();
        let code = &bytes[offset as usize..][..128];
        let number = 0x1234_5678_9abc_def1_u64.to_le_bytes();
        assert!(code.windows(8).any(|window| window == number), "{code:x?}");
        assert!(known < bytes.len() as u64, "{known} of {}", bytes.len());
        assert_eq!(looked(&InFile::Offset(offset)).0, Ok(offset));
    }

    #[test]
    fn what_is_no_place_is_refused() {
        let (missing, ..) = looked(&symbol("no_such_function", 0));
        assert!(matches!(missing, Err(NoPlace::NoSymbol { name, .. }) if name == "no_such_function"));
        // The header of the file.
        assert_eq!(looked(&InFile::Offset(4)).0, Err(NoPlace::NotExecuted(4)));
        assert!(matches!(looked(&InFile::Offset(1 << 50)).0, Err(NoPlace::NotExecuted(_))));
        let name = mangled();
        let mut inside = (1..16).map(|n| looked(&symbol(&name, n)).0);
        assert!(inside.any(|place| matches!(place, Err(NoPlace::Boundary(_)))));
        for bytes in [&b""[..], b"#!/bin/sh\n", b"\x7fELF\x02\x01\x01"] {
            let mut file = PartialFile::new(bytes.len() as u64).unwrap();
            file.put(0, bytes);
            assert!(matches!(look(&file, &symbol("main", 0), None), Err(NoPlace::NotElf(_))), "{bytes:?}");
        }
    }
}
