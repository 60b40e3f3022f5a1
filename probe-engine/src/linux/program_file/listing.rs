//! What can be probed in a file by its name.

use super::several::notes;
use super::symbol::{is_function, is_indirect};
use super::{NoPlace, Segments, parse};
use crate::linux::partial_file::PartialFile;
use crate::linux::program_place::is_fragment;
use object::{Object, ObjectSymbol};
use std::collections::BTreeMap;

/// A function with a longer name has none, in bytes. In a file, names may lie in each other.
const LONGEST_NAME: usize = 2048;
/// No program has more functions that are known.
const MOST_FUNCTIONS: usize = 1 << 20;

/// A function of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedFunction {
    /// As the file has it, without a version.
    pub name: String,
    /// Bytes from the file's start.
    pub offset: u64,
    /// In bytes, as the file says.
    pub size: u64,
    /// Whether it only finds another function when the program is linked (IFUNC).
    pub is_indirect: bool,
}

/// A tracepoint that a program has of its own (USDT).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedTracepoint {
    /// Whose it is.
    pub provider: String,
    /// What it is called.
    pub name: String,
    /// Where it is, in bytes from the file's start, with the words that say where the arguments are there.
    pub places: Vec<(u64, String)>,
}

/// What a file has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Listing {
    /// Functions, by their places.
    pub functions: Vec<ListedFunction>,
    /// Tracepoints, by their names.
    pub tracepoints: Vec<ListedTracepoint>,
}

/// Functions by where they are and their names, each with how long it is and whether it only finds another one.
pub(super) type Functions<'a> = BTreeMap<(u64, &'a str), (u64, bool)>;

/// Adds those of `symbols`, which are somewhere in these `segments`.
pub(super) fn add_functions<'a>(
    symbols: impl Iterator<Item = impl ObjectSymbol<'a>>,
    segments: &Segments,
    functions: &mut Functions<'a>,
) {
    for symbol in symbols.filter(is_function) {
        let (Ok(name), is_indirect) = (symbol.name(), is_indirect(&symbol)) else { continue };
        let name = name.split('@').next().unwrap_or(name);
        if name.len() > LONGEST_NAME || functions.len() >= MOST_FUNCTIONS || is_fragment(name) {
            continue;
        }
        if let Some(offset) = segments.offset_of(symbol.address(), true) {
            functions.insert((offset, name), (symbol.size(), is_indirect));
        }
    }
}

/// The same, by their places.
pub(super) fn listed(functions: Functions<'_>) -> Vec<ListedFunction> {
    let function = |((offset, name), (size, is_indirect)): ((u64, &str), _)| ListedFunction {
        name: name.to_owned(),
        offset,
        size,
        is_indirect,
    };
    functions.into_iter().map(function).collect()
}

/// Lists what can be probed by its name in a file, all of which is known.
///
/// # Errors
/// [`NoPlace`]: it is no program.
pub fn list(bytes: &[u8]) -> Result<Listing, NoPlace> {
    let mut file = PartialFile::new(bytes.len() as u64).ok_or(NoPlace::TooLarge)?;
    file.put(0, bytes);
    let parsed = parse(&file)?;
    let segments = Segments::of(&parsed)?;
    let mut functions = Functions::new();
    add_functions(parsed.symbols().chain(parsed.dynamic_symbols()), &segments, &mut functions);
    let mut tracepoints = BTreeMap::<(String, String), Vec<(u64, String)>>::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for note in notes(&file, &parsed)? {
        if let Some(offset) = segments.offset_of(note.at, true) {
            let places = tracepoints.entry((text(note.provider), text(note.name))).or_default();
            places.push((offset, text(note.arguments)));
        }
    }
    let tracepoint = |((provider, name), places)| ListedTracepoint { provider, name, places };
    Ok(Listing {
        functions: listed(functions),
        tracepoints: tracepoints.into_iter().map(tracepoint).collect(),
    })
}
