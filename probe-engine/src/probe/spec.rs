//! Where a user wants a probe: `vfs_read`, `vfs_read+0x10`, `ext4:ext4_readdir`, `0xffffffff81000000` or `vfs_*`,
//! `show#2` for the second function of that name, and `vfs_read%return` for where a function returns.

mod error;

pub use error::SpecError;

use crate::addr::Gva;
use crate::linux::glob::Glob;
use crate::linux::symbols::named::{SymbolName, plain_name};
use std::fmt;
use std::str::FromStr;

/// What a user asked to be probed, as text and as understood. Nothing is looked up yet: whether the symbol
/// exists, or the address holds code, is known only with a kernel at hand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeSpec {
    written: String,
    location: Location,
    returns: bool,
}

/// The ways to say where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A place in one function.
    Symbol {
        /// The symbol's name, with `#2` behind it where one of several is meant.
        name: String,
        /// Bytes from the symbol; 0 is the function's entry.
        offset: u64,
    },
    /// A place in one function of a module, which may not be loaded yet.
    Module {
        /// The module's name, as `lsmod` prints it.
        module: String,
        /// The symbol's name, as above.
        symbol: String,
        /// Bytes from the symbol; 0 is the function's entry.
        offset: u64,
    },
    /// A system call, by the name that programs know.
    SystemCall(String),
    /// A guest-virtual address.
    Address(Gva),
    /// The entries of all functions whose names match.
    Glob(Glob),
    /// A line of the source.
    Line {
        /// Of what.
        of: LineOf,
        /// The line, counted from the start of the file.
        line: u32,
    },
}

/// The words of kinds of probes that there are not, and what these would probe.
const NOT_YET: [(&str, &str); 3] = [("e", EVENTS), ("s", EVENTS), ("profile", "moments in time")];
/// The word for a tracepoint that a program has of its own.
pub(crate) const USDT: &str = "usdt";
const USDT_HERE: &str = "usdt PATH:PROVIDER:NAME";
const TRACEPOINT_HERE: &str = "t SYSTEM:NAME";
const EVENTS: &str = "events made of events";
/// What can be probed instead.
pub(crate) const NOT_YET_ADVICE: &str = "write a function of the kernel with `p` (calls) or `r` (returns), a tracepoint with `t`, or syscall:NAME";

/// What a word that begins a definition would probe, where that kind is not there yet.
pub(crate) fn not_yet(word: &str) -> Option<&'static str> {
    NOT_YET.iter().find(|(kind, _)| *kind == word).map(|(_, what)| *what)
}

/// What to write here for a kind of probe that other tools call so.
pub(crate) fn kind_here(word: &str) -> Option<&'static str> {
    match word {
        "kprobe" | "fentry" | "kfunc" => Some("p FUNCTION"),
        "u" | "uprobe" => Some("p PATH:SYMBOL"),
        "uretprobe" => Some("r PATH:SYMBOL"),
        "kretprobe" | "fexit" | "kretfunc" => Some("r FUNCTION"),
        "tracepoint" | "rawtracepoint" | "tp" => Some(TRACEPOINT_HERE),
        _ => None,
    }
}

/// Whether a place is one in a program or a library, and no line of a file of source.
pub(crate) fn is_in_program(place: &str) -> bool {
    place.contains('/') && place.contains(':') && split_line(place).is_none()
}

/// What is before the `:` of a system call.
pub const SYSTEM_CALL: &str = "syscall";

/// What a line is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LineOf {
    /// A function, and what is inlined into it: the line is one of the file that it is in. `#2` may be behind its name.
    Function(String),
    /// A file, by its path or the end of it.
    File(String),
}

impl LineOf {
    /// Whether `name` is that of a file of source, and no symbol.
    #[must_use]
    pub fn is_file(name: &str) -> bool {
        name.contains('/') || is_source(name)
    }
}

/// Whether a file that is called so is one of source.
pub(crate) fn is_source(name: &str) -> bool {
    const EXTENSIONS: [&str; 7] = [".c", ".h", ".S", ".rs", ".cc", ".cpp", ".hpp"];
    EXTENSIONS.iter().any(|extension| name.ends_with(extension))
}

/// What is before and behind the last `:` of a place, where that is a number.
#[must_use]
pub fn split_line(place: &str) -> Option<(&str, &str)> {
    let (of, line) = place.rsplit_once(':')?;
    let is_number = !line.is_empty() && line.bytes().all(|c| c.is_ascii_digit());
    (is_number && !of.contains(':')).then_some((of, line))
}

impl ProbeSpec {
    /// Where the probe is wanted.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Whether it is wanted where the function returns, and not where it is entered.
    #[must_use]
    pub fn returns(&self) -> bool {
        self.returns
    }
}

/// What the user wrote.
impl fmt::Display for ProbeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.written)
    }
}

impl FromStr for ProbeSpec {
    type Err = SpecError;

    fn from_str(written: &str) -> Result<Self, SpecError> {
        let (place, returns) = match written.split_once('%') {
            Some((place, "return")) => (place, true),
            Some((_, suffix)) => return Err(SpecError::UnknownSuffix(format!("%{suffix}"))),
            None => (written, false),
        };
        if place.is_empty() {
            return Err(if returns { SpecError::NoSymbol(written.to_owned()) } else { SpecError::Empty });
        }
        if names_both(place) {
            return Err(SpecError::SymbolAndAddress(place.to_owned()));
        }
        if returns && is_hexadecimal(place) {
            return Err(SpecError::ReturnAddress(place.to_owned()));
        }
        if returns && let Some(plus) = place.find('+') {
            let (_, offset) = place.split_at(plus);
            return Err(SpecError::ReturnOffset(offset.to_owned()));
        }
        let location = if is_hexadecimal(place) {
            address(place)?
        } else if let Some((of, number)) =
            split_line(place).filter(|(of, _)| !is_command(of) && !of.is_empty())
        {
            if returns {
                return Err(SpecError::ReturnLine(place.to_owned()));
            }
            line(of, number)?
        } else if let Some((module, symbol)) = place.split_once(':') {
            in_module(place, module, symbol)?
        } else if Glob::is_pattern(place) {
            pattern(place)?
        } else {
            let (name, offset) = symbol(place)?;
            Location::Symbol { name, offset }
        };
        Ok(Self { written: written.to_owned(), location, returns })
    }
}

fn address(written: &str) -> Result<Location, SpecError> {
    if let Some(sign) = written.find(['+', '-']) {
        let (_, offset) = written.split_at(sign);
        return Err(SpecError::AddressOffset(offset.to_owned()));
    }
    match number(written) {
        Ok(value) => Ok(Location::Address(Gva(value))),
        Err(_) => Err(SpecError::BadAddress(written.to_owned())),
    }
}

/// Whether a word begins a definition. A number behind `r` says how many calls are followed.
fn is_command(word: &str) -> bool {
    let is_return = word.strip_prefix('r').is_some_and(|most| most.bytes().all(|c| c.is_ascii_digit()));
    matches!(word, "p" | "f") || is_return
}

/// A line of a function or of a file.
fn line(of: &str, number: &str) -> Result<Location, SpecError> {
    let line = number.parse().ok().filter(|line| *line > 0);
    let line = line.ok_or_else(|| SpecError::BadLine(number.to_owned()))?;
    if LineOf::is_file(of) {
        let is_of_path = |c| is_of_symbol(c) || "/-+,~".contains(c);
        check_characters(of, of, is_of_path)?;
        return Ok(Location::Line { of: LineOf::File(of.to_owned()), line });
    }
    match symbol(of) {
        Ok((name, 0)) if !of.contains('+') => Ok(Location::Line { of: LineOf::Function(name), line }),
        _ => Err(SpecError::LineOfOther(of.to_owned())),
    }
}

fn pattern(written: &str) -> Result<Location, SpecError> {
    if let Some(plus) = written.find('+') {
        let (_, offset) = written.split_at(plus);
        return Err(SpecError::PatternOffset(offset.to_owned()));
    }
    let is_known = |c: char| is_of_symbol(c) || "*?[]!-\\".contains(c);
    check_characters(written, written, is_known)?;
    match Glob::new(written) {
        Ok(glob) => Ok(Location::Glob(glob)),
        Err(source) => Err(SpecError::Pattern { written: written.to_owned(), source }),
    }
}

fn in_module(written: &str, module: &str, place: &str) -> Result<Location, SpecError> {
    if module.is_empty() {
        return Err(SpecError::NoModule(written.to_owned()));
    }
    if let Some(what) = not_yet(module) {
        return Err(SpecError::NotYet(what));
    }
    // `t:NAME` and `usdt:NAME` give a definition its name. Alone they may as well mean a tracepoint.
    let of_a_definition = || match module {
        "t" => Some(TRACEPOINT_HERE),
        USDT => Some(USDT_HERE),
        _ => None,
    };
    if is_in_program(written) && module != USDT {
        return Err(SpecError::InProgram(written.to_owned()));
    }
    if let Some(here) = kind_here(module).or_else(of_a_definition) {
        return Err(SpecError::KindOfProbe { kind: module.to_owned(), here });
    }
    if is_command(module) {
        return Err(SpecError::NoPlace(written.to_owned()));
    }
    if place.is_empty() {
        return Err(SpecError::NoModuleSymbol(written.to_owned()));
    }
    if module == SYSTEM_CALL {
        let is_name = !place.is_empty() && place.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        return match is_name {
            true => Ok(Location::SystemCall(place.to_owned())),
            false => Err(SpecError::NoSystemCall(place.to_owned())),
        };
    }
    if place.contains(':') {
        return Err(SpecError::SeveralModules(written.to_owned()));
    }
    // The file of a module may have a `-` in its name, the module itself has a `_` there.
    if let Some(character) = module.chars().find(|c| !c.is_ascii_alphanumeric() && *c != '_') {
        return Err(SpecError::BadModule { module: module.to_owned(), character });
    }
    if Glob::is_pattern(place) {
        return Err(SpecError::ModulePattern(place.to_owned()));
    }
    let (symbol, offset) = symbol(place)?;
    Ok(Location::Module { module: module.to_owned(), symbol, offset })
}

/// A symbol and the offset from it.
fn symbol(written: &str) -> Result<(String, u64), SpecError> {
    let (name, offset) = match written.split_once('+') {
        Some((name, offset)) => (name, Some(offset)),
        None => (written, None),
    };
    if plain_name(name).is_empty() {
        return Err(SpecError::NoSymbol(written.to_owned()));
    }
    let is_negative = |offset: &str| offset.strip_prefix('-').is_some_and(|rest| number(rest).is_ok());
    let minus = name.find('-').map(|minus| name.split_at(minus).1);
    if offset.or(minus).is_some_and(is_negative) {
        return Err(SpecError::NegativeOffset(written.to_owned()));
    }
    check_characters(written, plain_name(name), is_of_symbol)?;
    if SymbolName::parse(name).is_none() {
        let (_, ordinal) = name.split_at(plain_name(name).len());
        return Err(SpecError::BadOrdinal(ordinal.to_owned()));
    }
    if name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(SpecError::BareNumber(written.to_owned()));
    }
    let offset = match offset {
        None => 0,
        Some("") => return Err(SpecError::NoOffset(written.to_owned())),
        Some(text) => match number(text) {
            Ok(value) if value >> 63 != 0 => return Err(SpecError::SymbolAndAddress(written.to_owned())),
            Ok(value) => value,
            Err(NumberError::TooLarge) => return Err(SpecError::OffsetTooLarge(text.to_owned())),
            Err(NumberError::NoNumber) => return Err(SpecError::BadOffset(text.to_owned())),
        },
    };
    Ok((name.to_owned(), offset))
}

/// Whether a symbol and an address stand side by side, with something between them that is in neither.
fn names_both(written: &str) -> bool {
    let parts: Vec<&str> = written.split([' ', ',', ':', '@', '=']).filter(|part| !part.is_empty()).collect();
    parts.iter().any(|part| is_hexadecimal(part)) && !parts.iter().all(|part| is_hexadecimal(part))
}

fn check_characters(written: &str, part: &str, is_known: impl Fn(char) -> bool) -> Result<(), SpecError> {
    match part.chars().find(|c| !is_known(*c)) {
        Some(character) => Err(SpecError::BadCharacter { written: written.to_owned(), character }),
        None => Ok(()),
    }
}

fn is_of_symbol(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$')
}

fn is_hexadecimal(text: &str) -> bool {
    text.starts_with("0x") || text.starts_with("0X")
}

enum NumberError {
    NoNumber,
    TooLarge,
}

/// A decimal number, or a hexadecimal one after `0x`.
fn number(text: &str) -> Result<u64, NumberError> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(NumberError::NoNumber);
    }
    u64::from_str_radix(digits, radix).map_err(|_| NumberError::TooLarge)
}

#[cfg(test)]
mod tests;
