//! What stands for as many places as a file has: patterns of functions, and tracepoints of the program's own.

use super::symbol::{is_function, is_indirect};
use super::{Elf, FoundPlace, MOST_PLACES, NoPlace, Segments};
use crate::linux::glob::Glob;
use crate::linux::partial_file::PartialFile;
use crate::linux::program_place::is_fragment;
use crate::linux::usdt::{NOTE, OWNER, UsdtNote};
use object::read::elf::{FileHeader, SectionHeader};
use object::{Object, ObjectSection, ObjectSymbol, elf};
use std::collections::{BTreeMap, BTreeSet};

/// Most symbols of a file, in both of its tables.
const MOST_SYMBOLS: usize = 4 << 20;
/// Most sections of a file with notes, and bytes of those.
const MOST_SECTIONS: usize = 4096;
const MOST_NOTE_BYTES: u64 = 16 << 20;
/// So many others are named where one is not found.
const NAMED: usize = 20;
/// So many functions are counted, and no more.
const MOST_COUNTED: usize = 1 << 17;
/// No name is longer in a message, in bytes.
const LONGEST_SHOWN: usize = 100;
/// A function's name that is longer is cut, in bytes.
pub const LONGEST_NAME: usize = 256;

/// The entries of all functions that `pattern` matches. Of several names of one place, the first in order is given.
pub(super) fn functions(
    file: &PartialFile,
    parsed: &Elf<'_>,
    segments: &Segments,
    pattern: &str,
) -> Result<Vec<FoundPlace>, NoPlace> {
    let none = || NoPlace::NoMatch(pattern.to_owned());
    let glob = Glob::new(pattern).map_err(|_| none())?;
    let mut found = BTreeMap::<u64, &str>::new();
    // A file may have either table.
    for (number, symbol) in parsed.symbols().chain(parsed.dynamic_symbols()).enumerate() {
        if number >= MOST_SYMBOLS {
            return Err(NoPlace::TooLarge);
        }
        // Code that finds a function is none that programs call.
        if !is_function(&symbol) || is_indirect(&symbol) {
            continue;
        }
        let name = symbol.name();
        if file.is_needed() {
            return Ok(Vec::new());
        }
        let Ok(name) = name else { continue };
        // A version may follow an `@`.
        let unversioned = name.split('@').next().unwrap_or(name);
        let is_meant = glob.matches(name) || glob.matches(unversioned);
        if !is_meant || is_fragment(unversioned) {
            continue;
        }
        if let Some(offset) = segments.offset_of(symbol.address(), true) {
            let known = found.entry(offset).or_insert(name);
            *known = (*known).min(name);
        }
        if found.len() > MOST_COUNTED {
            break;
        }
    }
    match found.len() {
        0 => Err(none()),
        count if count > MOST_PLACES => Err(NoPlace::TooMany(pattern.to_owned(), count)),
        _ => {
            let place = |(offset, name): (u64, &str)| FoundPlace {
                name: Some(name.get(..name.floor_char_boundary(LONGEST_NAME)).unwrap_or(name).to_owned()),
                ..FoundPlace::at(offset)
            };
            Ok(found.into_iter().map(place).collect())
        }
    }
}

/// All places of the tracepoint that `provider` has by this name.
pub(super) fn tracepoints(
    file: &PartialFile,
    parsed: &Elf<'_>,
    segments: &Segments,
    (provider, name): (&str, &str),
) -> Result<Vec<FoundPlace>, NoPlace> {
    let (mut places, mut others) = (Vec::new(), BTreeSet::new());
    for note in notes(file, parsed)? {
        if (note.provider, note.name) != (provider.as_bytes(), name.as_bytes()) {
            if others.len() < NAMED {
                others.insert(shown(note.provider, note.name));
            }
            continue;
        }
        let at = note.at;
        let offset = segments.offset_of(at, true).ok_or(NoPlace::NotExecuted(at))?;
        let counter = match note.counter {
            0 => None,
            counter => Some(segments.offset_of(counter, false).ok_or(NoPlace::NotExecuted(counter))?),
        };
        let arguments = note.arguments();
        places.push(FoundPlace { name: None, offset, counter, arguments });
        if places.len() > MOST_PLACES {
            return Err(NoPlace::TooMany(format!("{provider}:{name}"), places.len()));
        }
    }
    if file.is_needed() {
        return Ok(Vec::new());
    }
    // Two notes may be of one instruction, of which the kernel calls the same consumer once.
    places.sort_by_key(|place| place.offset);
    places.dedup_by_key(|place| place.offset);
    match places.is_empty() {
        true => Err(NoPlace::NoTracepoint {
            name: format!("{provider}:{name}"),
            others: others.into_iter().collect(),
        }),
        false => Ok(places),
    }
}

/// The notes of a file that are of tracepoints. What links a file beforehand moves its addresses, and leaves the notes as they are: these
/// here are where the file has them now.
///
/// # Errors
/// [`NoPlace::TooLarge`]: no program has so many.
pub(super) fn notes<'a>(file: &'a PartialFile, parsed: &Elf<'a>) -> Result<Vec<UsdtNote<'a>>, NoPlace> {
    let base = parsed.section_by_name(".stapsdt.base").map(|section| section.address());
    let endian = parsed.endian();
    let mut found = Vec::new();
    let Ok(sections) = parsed.elf_header().section_headers(endian, file) else { return Ok(found) };
    let with_notes = sections.iter().filter(|section| section.sh_type(endian) == elf::SHT_NOTE);
    let mut bytes: u64 = 0;
    for (number, section) in with_notes.enumerate() {
        bytes = bytes.saturating_add(section.sh_size(endian));
        if number >= MOST_SECTIONS || bytes > MOST_NOTE_BYTES {
            return Err(NoPlace::TooLarge);
        }
        let Ok(Some(mut notes)) = section.notes(endian, file) else { continue };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == OWNER && note.n_type(endian) == NOTE {
                found.extend(UsdtNote::parse(note.desc()).map(|note| note.moved(base)));
            }
        }
    }
    Ok(found)
}

/// What the file calls a tracepoint, as far as a message shows that.
fn shown(provider: &[u8], name: &[u8]) -> String {
    let shown = |text: &[u8]| text.get(..LONGEST_SHOWN).unwrap_or(text).escape_ascii().to_string();
    format!("{}:{}", shown(provider), shown(name))
}
