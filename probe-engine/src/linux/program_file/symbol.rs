//! Which function of a file a name means.

use super::{Elf, NoPlace};
use crate::linux::nearest::nearest;
use crate::linux::partial_file::PartialFile;
use object::read::elf::{SectionHeader, VersionTable};
use object::{Object, ObjectSymbol, SymbolFlags, SymbolIndex, SymbolKind, elf};
use std::collections::BTreeSet;

/// So many names of a file are compared with one that the file does not have.
const MOST_COMPARED: usize = 1 << 16;
/// No file has longer definitions of versions, in bytes.
const LONGEST_DEFINITIONS: u64 = 64 << 10;
/// So many are named.
const NAMED: usize = 2;

/// Whether a symbol is of code that begins in this file: of a function, or of what [finds one](is_indirect).
pub(super) fn is_function<'a>(symbol: &impl ObjectSymbol<'a>) -> bool {
    let is_here = symbol.section_index().is_some();
    is_here && (symbol.kind() == SymbolKind::Text || is_indirect(symbol))
}

/// Whether a symbol is of code that finds a function when the program is linked.
pub(super) fn is_indirect<'a>(symbol: &impl ObjectSymbol<'a>) -> bool {
    kind(symbol) == Some(elf::STT_GNU_IFUNC)
}

/// Whether a symbol says nothing of what lies there, as those of functions that are written in assembly do at times.
fn is_untyped<'a>(symbol: &impl ObjectSymbol<'a>) -> bool {
    symbol.is_definition() && kind(symbol) == Some(elf::STT_NOTYPE)
}

fn kind<'a>(symbol: &impl ObjectSymbol<'a>) -> Option<u8> {
    match symbol.flags() {
        SymbolFlags::Elf { st_info, .. } => Some(st_info & 0xf),
        _ => None,
    }
}

/// A name as programs have it: a library may have several functions of one name, each of another version.
#[derive(Clone, Copy, PartialEq, Eq)]
struct VersionedName<'a> {
    name: &'a str,
    version: Option<&'a str>,
    /// Whether programs that are linked today get this one (`@@`).
    is_default: bool,
}

impl<'a> VersionedName<'a> {
    /// `name`, `name@VERSION` or `name@@VERSION`.
    fn of(written: &'a str) -> Self {
        match written.split_once('@') {
            None => Self { name: written, version: None, is_default: true },
            Some((name, version)) => {
                let default = version.strip_prefix('@');
                Self { name, version: Some(default.unwrap_or(version)), is_default: default.is_some() }
            }
        }
    }

    fn means(&self, other: &VersionedName<'_>) -> bool {
        let is_version = self.version.is_none() || self.version == other.version;
        self.name == other.name
            && is_version
            && (other.is_default || !self.is_default || self.version.is_none())
    }
}

/// The versions of the symbols that programs are linked with, which lie beside their names.
type Versions<'a> = VersionTable<'a, elf::FileHeader64<object::Endianness>>;

/// The functions that a name may mean.
#[derive(Default)]
struct Candidates {
    addresses: BTreeSet<u64>,
    is_indirect: bool,
}

impl Candidates {
    fn one(&self, name: &str) -> Result<Option<u64>, NoPlace> {
        match self.addresses.len() {
            _ if self.is_indirect => Err(NoPlace::Indirect(name.to_owned())),
            0 | 1 => Ok(self.addresses.first().copied()),
            count => Err(NoPlace::SeveralSymbols(name.to_owned(), count)),
        }
    }
}

/// The address of the function that is called so: of several versions that of the one which programs are linked with today, where none
/// is asked for.
///
/// # Errors
/// [`NoPlace`], why there is no such one. Where more of the file has to be known for that, any.
pub(super) fn address_of(file: &PartialFile, parsed: &Elf<'_>, written: &str) -> Result<u64, NoPlace> {
    let wanted = VersionedName::of(written);
    let own = functions(file, parsed.symbols(), &wanted, None).one(written);
    if let Ok(Some(address)) = own {
        return Ok(address);
    }
    let versions = versions(file, parsed);
    let linked = functions(file, parsed.dynamic_symbols(), &wanted, versions.as_ref()).one(written);
    match (own, linked) {
        // Some linkers leave versions out of the names that are for debuggers.
        (Err(NoPlace::SeveralSymbols(..)), Ok(Some(address))) => Ok(address),
        (Err(error), _) | (_, Err(error)) => Err(error),
        (Ok(_), Ok(Some(address))) => Ok(address),
        (Ok(_), Ok(None)) => Err(NoPlace::NoSymbol { name: written.to_owned(), nearest: Vec::new() }),
    }
}

/// The versions of a file's dynamic symbols, where they are known. Those that it needs of others are left out.
fn versions<'a>(file: &'a PartialFile, parsed: &Elf<'a>) -> Option<Versions<'a>> {
    let (sections, endian) = (parsed.elf_section_table(), parsed.endian());
    let mut defining = sections.iter().filter(|section| section.sh_type(endian) == elf::SHT_GNU_VERDEF);
    if defining.any(|section| section.sh_size(endian) > LONGEST_DEFINITIONS) {
        return None;
    }
    let (symbols, table) = sections.gnu_versym(endian, file).ok()??;
    let strings = sections.symbol_table_by_index(endian, file, table).ok()?.strings();
    let (defined, _) = sections.gnu_verdef(endian, file).ok()??;
    Versions::parse(endian, symbols, Some(defined), None, strings).ok()
}

/// The functions that are called so. Where more of the file has to be known for that, none.
fn functions<'a>(
    file: &PartialFile,
    symbols: impl Iterator<Item = impl ObjectSymbol<'a>>,
    wanted: &VersionedName<'_>,
    versions: Option<&Versions<'a>>,
) -> Candidates {
    let (mut today, mut old) = (Candidates::default(), Candidates::default());
    for symbol in symbols.filter(|symbol| is_function(symbol) || is_untyped(symbol)) {
        let own = symbol.name();
        if file.is_needed() {
            return Candidates::default();
        }
        let Ok(own) = own else { continue };
        let own = versioned(own, symbol.index(), versions);
        if wanted.means(&own) {
            let found = if own.is_default { &mut today } else { &mut old };
            found.is_indirect |= is_indirect(&symbol);
            found.addresses.insert(symbol.address());
        }
    }
    if today.addresses.is_empty() { old } else { today }
}

/// A symbol's name and its version.
fn versioned<'a>(name: &'a str, index: SymbolIndex, versions: Option<&Versions<'a>>) -> VersionedName<'a> {
    let named = VersionedName::of(name);
    let Some(versions) = versions else { return named };
    let number = versions.version_index(object::Endianness::Little, index);
    let version =
        versions.version(number).ok().flatten().and_then(|version| str::from_utf8(version.name()).ok());
    VersionedName { version, is_default: !number.is_hidden(), ..named }
}

/// The functions of a file of this machine whose names are like this one.
pub(super) fn like(parsed: &Elf<'_>, name: &str) -> Vec<String> {
    let name = VersionedName::of(name).name;
    let symbols = parsed.symbols().chain(parsed.dynamic_symbols()).take(MOST_COMPARED);
    let names = symbols.filter(is_function).filter_map(|symbol| symbol.name().ok());
    let names = names.map(|name| VersionedName::of(name).name);
    nearest(names, name, NAMED).into_iter().map(|name| name.escape_default().to_string()).collect()
}
