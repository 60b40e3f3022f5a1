//! The symbol table that a kernel carries in its own read-only data, found without any symbol.
//!
//! Format: scripts/kallsyms.c, kernel/kallsyms.c. The tables come in one of these orders, each aligned to 8 bytes, and
//! to 4 since 7.0:
//!
//! ```text
//! to 6.4:    offsets relative_base  num_syms names markers [seqs_of_names] token_table token_index
//! from 6.5:  num_syms names markers token_table token_index  offsets relative_base [seqs_of_names]
//! from 7.0:  num_syms names markers token_table token_index  offsets [seqs_of_names]
//! ```
//!
//! `seqs_of_names` (three bytes a symbol) is there since 6.2, and in the stable series of 6.1. A name is a length
//! and that many token numbers; a token is a string of `token_table`. Characters that occur in names are tokens of
//! their own at the place of their ASCII code: ten digits in a row give the tables away.
//!
//! An offset counts from `relative_base`, which is `_text`, or from its own place where there is no such base. Which
//! order, alignment and origin a kernel has is not asked of its version: the right one puts `_text` where the image's
//! text begins.

use std::ops::Range;

use super::read::{array, u16_at, u32_at, u64_at};
use super::symbols::{LONGEST_NAME, SymbolTable, SymbolTableBuilder, TableFull};
use super::vmlinux::Vmlinux;
use crate::addr::Gva;

/// Tokens `0` to `9`, each with its NUL.
const DIGITS: &[u8; 20] = b"0\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00";
/// The token table is a few KiB long: its index begins within this many bytes of the digits.
const TOKEN_TABLE_REACH: usize = 8 << 10;
/// Names a marker stands for.
const NAMES_A_MARKER: usize = 256;
/// Such a group is at least 512 bytes long (a length and one token each), and by the kernel's limit on names
/// never longer than this.
const LONGEST_GROUP: usize = 64 << 10;
/// How far before the tokens the markers are looked for: room for `seqs_of_names` of 5 million symbols.
const MARKERS_REACH: usize = 16 << 20;
/// Every table begins at a multiple of this; up to 6.19 at multiples of 8.
const ALIGNMENT: usize = 4;
/// How many places that look like a table are tried, for each of the tables. In a real kernel the first is right; in
/// one made to waste our time, a try costs a walk through all names.
const MOST_TRIES: usize = 8;

/// No symbols in the image. The later the variant, the further the search came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum KallsymsError {
    /// Built without CONFIG_KALLSYMS, or damaged.
    #[error("the kernel has no symbol table (kallsyms): no token table in its data")]
    NoTokens,
    /// Damaged.
    #[error("the kernel's symbol table (kallsyms) is of an unknown layout: no markers before its tokens")]
    NoMarkers,
    /// Damaged.
    #[error("the kernel's symbol table (kallsyms) is of an unknown layout: no names before its markers")]
    NoNames,
    /// Built without CONFIG_KALLSYMS_BASE_RELATIVE, or damaged.
    #[error(
        "the kernel's symbol table (kallsyms) is of an unknown layout: no addresses that have _text where the text begins"
    )]
    NoAddresses,
    /// A name longer than the kernel itself allows.
    #[error("the kernel's symbol table (kallsyms) is damaged: {0}")]
    Full(#[from] TableFull),
}

/// Finds and decodes the symbols of a kernel image, at link-time addresses.
///
/// # Errors
/// [`KallsymsError`]: how far the search came.
pub fn decode(image: &Vmlinux) -> Result<SymbolTable, KallsymsError> {
    let mut furthest = KallsymsError::NoTokens;
    let mut tries = 0;
    for segment in image.segments() {
        let bytes = image.segment_bytes(segment);
        for digits in find_all(bytes, DIGITS) {
            tries += 1;
            if tries > MOST_TRIES {
                return Err(furthest);
            }
            let tables = KallsymsTables::find(bytes, segment.range.start, digits);
            match tables.and_then(|tables| tables.decode(image.text_start())) {
                Ok(symbols) => return Ok(symbols),
                Err(error) => furthest = furthest.max(error),
            }
        }
    }
    Err(furthest)
}

/// Where `needle` occurs in `bytes`.
fn find_all(bytes: &[u8], needle: &'static [u8]) -> impl Iterator<Item = usize> {
    bytes.windows(needle.len()).enumerate().filter(move |(_, window)| *window == needle).map(|(at, _)| at)
}

/// The tables, as positions in one segment.
struct KallsymsTables<'a> {
    bytes: &'a [u8],
    /// The link-time address of `bytes`.
    start: Gva,
    tokens: Vec<&'a str>,
    /// Behind `token_index`.
    index_end: usize,
    num_syms_at: usize,
    count: usize,
    names: Range<usize>,
}

/// Where the offsets may lie, and what they count from.
#[derive(Debug, Clone, Copy)]
enum Offsets {
    /// At `at`, from `relative_base`, which is at `base_at`.
    FromBase { at: usize, base_at: usize },
    /// At `at`, each from its own place.
    FromPlace { at: usize },
}

impl<'a> KallsymsTables<'a> {
    fn find(bytes: &'a [u8], start: Gva, digits: usize) -> Result<Self, KallsymsError> {
        let reach = digits.next_multiple_of(ALIGNMENT)..digits + TOKEN_TABLE_REACH;
        let (tokens, tokens_at, index_end) = reach
            .step_by(ALIGNMENT)
            .find_map(|index| token_table(bytes, digits, index))
            .ok_or(KallsymsError::NoTokens)?;
        let mut error = KallsymsError::NoMarkers;
        for (markers_at, markers) in markers_before(bytes, tokens_at).take(MOST_TRIES) {
            match names_before(bytes, markers_at, &markers) {
                Some((num_syms_at, count, names)) => {
                    return Ok(Self { bytes, start, tokens, index_end, num_syms_at, count, names });
                }
                None => error = KallsymsError::NoNames,
            }
        }
        Err(error)
    }

    /// Decodes with the addresses of whichever layout has all of them in order, and `_text` at `text_start`. The order
    /// tells a table from the same one with its neighbour's first word: symbols often share an address.
    fn decode(&self, text_start: Gva) -> Result<SymbolTable, KallsymsError> {
        let text = self.number_of("_text").ok_or(KallsymsError::NoAddresses)?;
        let layouts = self.layouts();
        let addresses = layouts.iter().filter_map(|layout| self.addresses(*layout, text_start));
        let mut right =
            addresses.filter(|found| found.of(text) == Some(text_start) && found.rise(self.count));
        let addresses = right.next();
        self.symbols(&addresses.ok_or(KallsymsError::NoAddresses)?)
    }

    /// Every place at which the offsets may begin: behind the index of the tokens or before the number of symbols.
    fn layouts(&self) -> Vec<Offsets> {
        let len = self.count * 4;
        let mut layouts = Vec::new();
        for alignment in [ALIGNMENT, 2 * ALIGNMENT] {
            let behind = self.index_end.next_multiple_of(alignment);
            let base_at = (behind + len).next_multiple_of(alignment);
            layouts.push(Offsets::FromBase { at: behind, base_at });
            layouts.push(Offsets::FromPlace { at: behind });
            let before = |end: usize| Some(end.checked_sub(len)? / alignment * alignment);
            if let Some((base_at, at)) =
                self.num_syms_at.checked_sub(8).and_then(|at| Some((at, before(at)?)))
            {
                layouts.push(Offsets::FromBase { at, base_at });
            }
            if let Some(at) = before(self.num_syms_at) {
                layouts.push(Offsets::FromPlace { at });
            }
        }
        layouts
    }

    /// The addresses by one layout; `None` where it cannot be right.
    fn addresses(&self, layout: Offsets, text_start: Gva) -> Option<Addresses<'a>> {
        let offsets = |at: usize| Some(self.bytes.get(at..at.checked_add(self.count * 4)?)?.as_chunks().0);
        Some(match layout {
            Offsets::FromBase { base_at, .. } if u64_at(self.bytes, base_at) != Some(text_start.0) => {
                return None;
            }
            Offsets::FromBase { at, .. } => {
                let offsets = offsets(at)?;
                // Where per-CPU variables are absolute (to 6.14), everything else has a negative offset; later
                // kernels have no absolute symbols, and offsets count upwards.
                let has_absolute = offsets.iter().any(|offset| i32::from_le_bytes(*offset) < 0);
                Addresses::FromBase { offsets, base: text_start, has_absolute }
            }
            Offsets::FromPlace { at } => {
                Addresses::FromPlace { offsets: offsets(at)?, place: self.start.add(at as u64) }
            }
        })
    }

    /// Its number among all symbols.
    fn number_of(&self, name: &str) -> Option<usize> {
        let names = self.bytes.get(self.names.clone())?;
        let mut at = 0;
        (0..self.count).find(|_| {
            let Some((tokens, next)) = entry(names, at) else { return false };
            at = next;
            // The first character says of what kind it is.
            tokens.iter().flat_map(|token| self.token(*token).bytes()).skip(1).eq(name.bytes())
        })
    }

    fn token(&self, number: u8) -> &'a str {
        self.tokens.get(usize::from(number)).copied().unwrap_or_default()
    }

    fn symbols(&self, addresses: &Addresses<'_>) -> Result<SymbolTable, KallsymsError> {
        let names = self.bytes.get(self.names.clone()).unwrap_or_default();
        let mut builder = SymbolTableBuilder::default();
        let mut name = String::new();
        let mut at = 0;
        for number in 0..self.count {
            let (tokens, next) = entry(names, at).ok_or(KallsymsError::NoNames)?;
            at = next;
            name.clear();
            for token in tokens {
                name.push_str(self.token(*token));
                if name.len() > LONGEST_NAME + 1 {
                    return Err(TableFull::LongName.into());
                }
            }
            let address = addresses.of(number).ok_or(KallsymsError::NoAddresses)?;
            let kind = name.bytes().next().unwrap_or(b'?');
            builder.push(address, kind, name.get(1..).unwrap_or_default())?;
        }
        Ok(builder.finish())
    }
}

/// The offsets, and what they count from.
enum Addresses<'a> {
    FromBase { offsets: &'a [[u8; 4]], base: Gva, has_absolute: bool },
    FromPlace { offsets: &'a [[u8; 4]], place: Gva },
}

impl Addresses<'_> {
    /// Whether the first `count` are in order (`sort_symbols`, scripts/kallsyms.c).
    fn rise(&self, count: usize) -> bool {
        (0..count).map(|number| self.of(number)).is_sorted()
    }

    /// The address of a symbol, by its number (`kallsyms_sym_address`, kernel/kallsyms.c).
    fn of(&self, number: usize) -> Option<Gva> {
        let offset = |offsets: &[[u8; 4]]| offsets.get(number).map(|offset| i32::from_le_bytes(*offset));
        Some(match *self {
            Self::FromBase { offsets, base, has_absolute } => match offset(offsets)? {
                // They are unsigned there.
                up if !has_absolute => base.add(u64::from(up.cast_unsigned())),
                down if down < 0 => base.offset(-1 - i64::from(down)),
                absolute => Gva(absolute as u64),
            },
            Self::FromPlace { offsets, place } => {
                place.add(4 * number as u64).offset(offset(offsets)?.into())
            }
        })
    }
}

/// Reads the token table whose index would begin at `index`: the tokens, where the table begins, where the index
/// ends.
fn token_table(bytes: &[u8], digits: usize, index: usize) -> Option<(Vec<&str>, usize, usize)> {
    const FIRST_DIGIT: usize = b'0' as usize;
    let start_of = |token: usize| u16_at(bytes, index + 2 * token).map(usize::from);
    if start_of(0)? != 0 {
        return None;
    }
    let table = digits.checked_sub(start_of(FIRST_DIGIT)?)?;
    if start_of(FIRST_DIGIT + 1)? != digits - table + 2 {
        return None;
    }
    let mut tokens = Vec::with_capacity(256);
    for token in 0..256 {
        let start = table + start_of(token)?;
        // The last token ends at its own NUL, every other one where the next begins.
        let end = match token {
            255 => start + bytes.get(start..index)?.iter().position(|byte| *byte == 0)?,
            _ => (table + start_of(token + 1)?).checked_sub(1).filter(|end| bytes.get(*end) == Some(&0))?,
        };
        let text = bytes.get(start..end)?;
        if end > index || !text.iter().all(u8::is_ascii_graphic) {
            return None;
        }
        tokens.push(str::from_utf8(text).ok()?);
    }
    Some((tokens, table, index + 512))
}

/// Finds what may be the markers before `tokens_at`: where they begin, and the offsets into the names.
fn markers_before(bytes: &[u8], tokens_at: usize) -> impl Iterator<Item = (usize, Vec<usize>)> {
    let starts =
        (ALIGNMENT..=MARKERS_REACH).step_by(ALIGNMENT).map_while(move |back| tokens_at.checked_sub(back));
    starts.flat_map(move |at| {
        let room = tokens_at - at;
        // Either nothing but padding follows them, or `seqs_of_names` does: 772 bytes a marker in all.
        let in_a_group = 4 + 3 * NAMES_A_MARKER;
        let counts = [room / 4, (room / 4).saturating_sub(1), room.div_ceil(in_a_group)];
        counts.into_iter().filter_map(move |count| Some((at, markers_at(bytes, at, count)?)))
    })
}

/// Reads `count` markers.
fn markers_at(bytes: &[u8], at: usize, count: usize) -> Option<Vec<usize>> {
    let table = bytes.get(at..at.checked_add(count.checked_mul(4)?)?)?;
    let markers = || table.as_chunks::<4>().0.iter().map(|marker| u32::from_le_bytes(*marker) as usize);
    let is_group = |(start, end): (usize, usize)| {
        end.checked_sub(start).is_some_and(|len| (2 * NAMES_A_MARKER..=LONGEST_GROUP).contains(&len))
    };
    let holds = markers().next() == Some(0) && markers().zip(markers().skip(1)).all(is_group);
    holds.then(|| markers().collect())
}

/// Finds the names that end before `markers_at`: where their number is stored, that number, and where they lie.
fn names_before(bytes: &[u8], markers_at: usize, markers: &[usize]) -> Option<(usize, usize, Range<usize>)> {
    let last = *markers.last()?;
    let highest = markers_at.checked_sub(last)?.checked_sub(8)?;
    let lowest = highest.saturating_sub(LONGEST_GROUP);
    let counts = (markers.len() - 1) * NAMES_A_MARKER + 1..=markers.len() * NAMES_A_MARKER;
    let likely = (lowest..=highest).rev().filter_map(|at| {
        let count = u32_at(bytes, at)? as usize;
        counts.contains(&count).then_some((at, count))
    });
    for (at, count) in likely.filter(|(at, _)| (markers_at - at).is_multiple_of(4)).take(MOST_TRIES) {
        // The number takes 4 bytes, and from 4.20 to 6.19 leaves room up to the next multiple of 8.
        for start in [at + 8, at + 4] {
            let names = bytes.get(start..markers_at)?;
            if names_meet_markers(names, count, markers) {
                return Some((at, count, start..markers_at));
            }
        }
    }
    None
}

/// Whether `count` names reach every marker, and end less than 8 bytes before the markers do.
fn names_meet_markers(names: &[u8], count: usize, markers: &[usize]) -> bool {
    let mut at = 0;
    for number in 0..count {
        if number % NAMES_A_MARKER == 0 && markers.get(number / NAMES_A_MARKER) != Some(&at) {
            return false;
        }
        match entry(names, at) {
            Some((_, next)) => at = next,
            None => return false,
        }
    }
    names.len() - at < 8
}

/// The token numbers of the name at `at`, and where the next name begins. The length is one byte, or two (low seven
/// bits first) when bit 7 of the first is set.
fn entry(names: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let [first, second] = array(names, at).or_else(|| Some([*names.get(at)?, 0]))?;
    let (len, start) = match first {
        0x80.. => (usize::from(first & 0x7f) | usize::from(second) << 7, at + 2),
        _ => (usize::from(first), at + 1),
    };
    let tokens = names.get(start..start.checked_add(len)?).filter(|tokens| !tokens.is_empty())?;
    Some((tokens, start + len))
}

#[cfg(test)]
mod tests;
