//! Where a user wants a probe: `vfs_read`, `vfs_read+0x10`, `ext4:ext4_readdir`, `0xffffffff81000000` or `vfs_*`,
//! `show#2` for the second function of that name, and `vfs_read%return` for where a function returns.

use crate::addr::Gva;
use crate::linux::glob::{Glob, GlobError};
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
const NOT_YET: [(&str, &str); 10] = [
    ("t", TRACEPOINTS),
    ("tracepoint", TRACEPOINTS),
    ("rawtracepoint", TRACEPOINTS),
    ("e", EVENTS),
    ("s", EVENTS),
    ("u", PROGRAMS),
    ("uprobe", PROGRAMS),
    ("uretprobe", PROGRAMS),
    ("usdt", PROGRAMS),
    ("profile", "moments in time"),
];
const TRACEPOINTS: &str = "tracepoints";
const EVENTS: &str = "events made of events";
pub(crate) const PROGRAMS: &str = "programs in the guest";
/// What can be probed instead.
pub(crate) const NOT_YET_ADVICE: &str =
    "write a function of the kernel with `p` (calls) or `r` (returns), or syscall:NAME";

/// What a word that begins a definition would probe, where that kind is not there yet.
pub(crate) fn not_yet(word: &str) -> Option<&'static str> {
    NOT_YET.iter().find(|(kind, _)| *kind == word).map(|(_, what)| *what)
}

/// The letter of a kind of probe here that other tools call so.
pub(crate) fn kind_here(word: &str) -> Option<char> {
    match word {
        "kprobe" | "fentry" | "kfunc" => Some('p'),
        "kretprobe" | "fexit" | "kretfunc" => Some('r'),
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
        const EXTENSIONS: [&str; 4] = [".c", ".h", ".S", ".rs"];
        name.contains('/') || EXTENSIONS.iter().any(|extension| name.ends_with(extension))
    }
}

/// What is before and behind the last `:` of a place, where that is a number.
#[must_use]
pub fn split_line(place: &str) -> Option<(&str, &str)> {
    let (of, line) = place.rsplit_once(':')?;
    let is_number = !line.is_empty() && line.bytes().all(|c| c.is_ascii_digit());
    (is_number && !of.contains(':')).then_some((of, line))
}

/// Why a text is no [`ProbeSpec`], and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// `vfs_read:0`.
    #[error("`{0}` is no line: they are counted from 1 on")]
    BadLine(String),
    /// `vfs_read:10%return`.
    #[error("`{0}` is a line of the source: a return probe needs the function's name before `%return`")]
    ReturnLine(String),
    /// `vfs_*:10`, `vfs_read+4:10`.
    #[error("`{0}` is neither a function nor a file of source (open.c): write one of them before the `:`")]
    LineOfOther(String),
    /// Nothing at all.
    #[error(
        "empty: write a symbol (vfs_read), symbol+offset, MODULE:SYMBOL, an address (0xffffffff81000000) or a pattern (vfs_*)"
    )]
    Empty,
    /// `vfs_read@0xffffffff81000000`, or an "offset" that is an address.
    #[error("`{0}` has both a symbol and an address: write one of them")]
    SymbolAndAddress(String),
    /// `0xffffffff81000000+4`.
    #[error("an address takes no offset: add `{0}` to it yourself")]
    AddressOffset(String),
    /// `vfs_read+4%return`.
    #[error("a return probe takes no offset: leave out `{0}`, a function returns as a whole")]
    ReturnOffset(String),
    /// `0xffffffff81000000%return`.
    #[error("`{0}` is an address: a return probe needs the function's name before `%return`")]
    ReturnAddress(String),
    /// `vfs_read%exit`.
    #[error("`{0}` is not known: `%return` is all that may follow a symbol")]
    UnknownSuffix(String),
    /// `ext4:`.
    #[error("`{0}` has no symbol: write one after the `:`")]
    NoModuleSymbol(String),
    /// `:ext4_readdir`.
    #[error("`{0}` has no module: write its name before the `:`, or leave out the `:`")]
    NoModule(String),
    /// `a:b:c`.
    #[error("`{0}` has more than one `:`: write MODULE:SYMBOL")]
    SeveralModules(String),
    /// `syscall:open*`, `syscall:openat+4`.
    #[error("`{0}` is no name of a system call: write one, as in syscall:openat")]
    NoSystemCall(String),
    /// `kprobe:vfs_read`, as other tools have it.
    #[error("`{kind}:` is another tool's word, and no module: write `{here} FUNCTION`")]
    KindOfProbe {
        /// The word before the first `:`.
        kind: String,
        /// The letter of that kind here.
        here: char,
    },
    /// `tracepoint:sched:sched_switch`, `uprobe:/bin/sh:main`, `/bin/sh:main`.
    #[error("{0} cannot be probed yet: {NOT_YET_ADVICE}")]
    NotYet(&'static str),
    /// `p:opens`, a definition without its place.
    #[error("`{0}` gives a probe its name, and has no place: write `{0} FUNCTION`")]
    NoPlace(String),
    /// `ext4:ext4_*`.
    #[error("`{0}` is a pattern, and a module takes none: name one function of it")]
    ModulePattern(String),
    /// `0x`, `0xfoo`, or more than 64 bits.
    #[error("`{0}` is no address: write 0x and up to 16 hexadecimal digits")]
    BadAddress(String),
    /// `1234`, which could be meant in either base.
    #[error("`{0}` is neither a symbol nor an address: write addresses in hexadecimal, after 0x")]
    BareNumber(String),
    /// `vfs_*+4`.
    #[error("a pattern takes no offset: leave out `{0}`, or name one function")]
    PatternOffset(String),
    /// A pattern that does not end.
    #[error("`{written}` cannot be used as a pattern")]
    Pattern {
        /// The pattern.
        written: String,
        /// What is wrong with it.
        source: GlobError,
    },
    /// `+4`.
    #[error("`{0}` has no symbol: begin with one")]
    NoSymbol(String),
    /// `show#0`, `show#x`.
    #[error("`{0}` does not say which function: write `#2` for the second of that name, by address")]
    BadOrdinal(String),
    /// `vfs_read+`.
    #[error("`{0}` lacks its offset: leave out the `+`, or write bytes behind it")]
    NoOffset(String),
    /// `vfs_read-4`.
    #[error("`{0}` lies before its symbol: name the function that holds the address, and count from there")]
    NegativeOffset(String),
    /// `vfs_read+x`.
    #[error("`{0}` is no offset: write bytes in decimal, or in hexadecimal after 0x")]
    BadOffset(String),
    /// More than 64 bits.
    #[error("the offset `{0}` is larger than any function: write bytes from the start of the symbol")]
    OffsetTooLarge(String),
    /// A character that no module has in its name.
    #[error("`{module}` is no module's name: it has {character:?} in it, use letters, digits and `_`")]
    BadModule {
        /// What was written before the `:`.
        module: String,
        /// The first such character.
        character: char,
    },
    /// A character that no symbol of a kernel has.
    #[error(
        "`{written}` has {character:?} in it, which no kernel symbol has: use letters, digits, `_`, `.` and `$`"
    )]
    BadCharacter {
        /// The text.
        written: String,
        /// The first such character.
        character: char,
    },
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
    if is_in_program(written) {
        return Err(SpecError::NotYet(PROGRAMS));
    }
    if let Some(what) = not_yet(module) {
        return Err(SpecError::NotYet(what));
    }
    if let Some(here) = kind_here(module) {
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
mod tests {
    use super::*;

    fn symbol(name: &str, offset: u64) -> Location {
        Location::Symbol { name: name.to_owned(), offset }
    }

    fn module(module: &str, symbol: &str, offset: u64) -> Location {
        Location::Module { module: module.to_owned(), symbol: symbol.to_owned(), offset }
    }

    fn line(of: LineOf, line: u32) -> Location {
        Location::Line { of, line }
    }

    #[test]
    fn understood_and_given_back_as_written() {
        let cases = [
            ("vfs_read", symbol("vfs_read", 0)),
            ("vfs_read+0", symbol("vfs_read", 0)),
            ("vfs_read+16", symbol("vfs_read", 16)),
            ("vfs_read+0x10", symbol("vfs_read", 16)),
            ("vfs_read+0X1f", symbol("vfs_read", 31)),
            ("do_sys_openat2.constprop.0", symbol("do_sys_openat2.constprop.0", 0)),
            ("_RNvNtCs1_4core3fmt$u20", symbol("_RNvNtCs1_4core3fmt$u20", 0)),
            ("f+0x7fffffffffffffff", symbol("f", i64::MAX as u64)),
            ("show#2", symbol("show#2", 0)),
            ("show#2+0x10", symbol("show#2", 16)),
            ("ext4:show#10+4", module("ext4", "show#10", 4)),
            ("ext4:ext4_readdir", module("ext4", "ext4_readdir", 0)),
            ("kvm_intel:vmx_exit+0x10", module("kvm_intel", "vmx_exit", 16)),
            ("8021q:vlan_init.isra.0", module("8021q", "vlan_init.isra.0", 0)),
            ("vfs_read:460", line(LineOf::Function("vfs_read".to_owned()), 460)),
            ("show#2:7", line(LineOf::Function("show#2".to_owned()), 7)),
            ("open.c:1420", line(LineOf::File("open.c".to_owned()), 1420)),
            ("8250_core.c:1", line(LineOf::File("8250_core.c".to_owned()), 1)),
            ("drivers/gpu-x/a.rs:1", line(LineOf::File("drivers/gpu-x/a.rs".to_owned()), 1)),
            ("0xffffffff81000000", Location::Address(Gva(0xffff_ffff_8100_0000))),
            ("0XFFFFFFFF81000000", Location::Address(Gva(0xffff_ffff_8100_0000))),
            ("vfs_*", Location::Glob(Glob::new("vfs_*").unwrap())),
            ("vfs_rea?", Location::Glob(Glob::new("vfs_rea?").unwrap())),
            ("[a-z]*_read", Location::Glob(Glob::new("[a-z]*_read").unwrap())),
            ("*", Location::Glob(Glob::new("*").unwrap())),
        ];
        for (written, expected) in cases {
            let spec: ProbeSpec = written.parse().unwrap_or_else(|e| panic!("{written}: {e}"));
            assert_eq!(*spec.location(), expected, "{written}");
            assert_eq!(spec.to_string(), written);
            assert!(!spec.returns(), "{written}");
        }
    }

    #[test]
    fn returns_are_asked_for_behind_the_place() {
        let cases = [
            ("vfs_read%return", symbol("vfs_read", 0)),
            ("show#2%return", symbol("show#2", 0)),
            ("ext4:ext4_readdir%return", module("ext4", "ext4_readdir", 0)),
            ("vfs_*%return", Location::Glob(Glob::new("vfs_*").unwrap())),
        ];
        for (written, expected) in cases {
            let spec: ProbeSpec = written.parse().unwrap_or_else(|e| panic!("{written}: {e}"));
            assert_eq!(*spec.location(), expected, "{written}");
            assert_eq!(spec.to_string(), written);
            assert!(spec.returns(), "{written}");
        }
    }

    #[test]
    fn every_mistake_has_its_own_sentence() {
        let text = str::to_owned;
        let character = |written, character| SpecError::BadCharacter { written: text(written), character };
        let cases = [
            ("", SpecError::Empty),
            ("vfs_read@0xffffffff81000000", SpecError::SymbolAndAddress(text("vfs_read@0xffffffff81000000"))),
            ("0xffffffff81000000 vfs_read", SpecError::SymbolAndAddress(text("0xffffffff81000000 vfs_read"))),
            ("vfs_read+0xffffffff81000000", SpecError::SymbolAndAddress(text("vfs_read+0xffffffff81000000"))),
            ("0xffffffff81000000+4", SpecError::AddressOffset(text("+4"))),
            ("0x", SpecError::BadAddress(text("0x"))),
            ("0xvfs", SpecError::BadAddress(text("0xvfs"))),
            ("0x1ffffffff81000000", SpecError::BadAddress(text("0x1ffffffff81000000"))),
            ("1234", SpecError::BareNumber(text("1234"))),
            ("vfs_*+4", SpecError::PatternOffset(text("+4"))),
            ("vfs_[a", SpecError::Pattern { written: text("vfs_[a"), source: GlobError::OpenClass }),
            ("+4", SpecError::NoSymbol(text("+4"))),
            ("+", SpecError::NoSymbol(text("+"))),
            ("%return", SpecError::NoSymbol(text("%return"))),
            ("vfs_read%", SpecError::UnknownSuffix(text("%"))),
            ("vfs_read%exit", SpecError::UnknownSuffix(text("%exit"))),
            ("vfs_read%return%return", SpecError::UnknownSuffix(text("%return%return"))),
            ("vfs_read%return+4", SpecError::UnknownSuffix(text("%return+4"))),
            ("vfs_read+4%return", SpecError::ReturnOffset(text("+4"))),
            ("vfs_read+0%return", SpecError::ReturnOffset(text("+0"))),
            ("ext4:ext4_readdir+4%return", SpecError::ReturnOffset(text("+4"))),
            ("0xffffffff81000000%return", SpecError::ReturnAddress(text("0xffffffff81000000"))),
            ("ext4:", SpecError::NoModuleSymbol(text("ext4:"))),
            (":ext4_readdir", SpecError::NoModule(text(":ext4_readdir"))),
            (":", SpecError::NoModule(text(":"))),
            ("a:b:c", SpecError::SeveralModules(text("a:b:c"))),
            ("syscall:", SpecError::NoModuleSymbol(text("syscall:"))),
            ("syscall:open*", SpecError::NoSystemCall(text("open*"))),
            ("syscall:openat+4", SpecError::NoSystemCall(text("openat+4"))),
            ("kprobe:vfs_*", SpecError::KindOfProbe { kind: text("kprobe"), here: 'p' }),
            ("kretprobe:vfs_read", SpecError::KindOfProbe { kind: text("kretprobe"), here: 'r' }),
            ("tracepoint:sched:sched_switch", SpecError::NotYet(TRACEPOINTS)),
            ("t:sched_switch", SpecError::NotYet(TRACEPOINTS)),
            ("usdt:/bin/sh:main", SpecError::NotYet(PROGRAMS)),
            ("/bin/sh:main", SpecError::NotYet(PROGRAMS)),
            ("./a.out:main+4", SpecError::NotYet(PROGRAMS)),
            ("p:opens", SpecError::NoPlace(text("p:opens"))),
            ("r16:opens", SpecError::NoPlace(text("r16:opens"))),
            ("ext4:ext4_*", SpecError::ModulePattern(text("ext4_*"))),
            ("ext*:ext4_readdir", SpecError::BadModule { module: text("ext*"), character: '*' }),
            ("kvm-intel:vmx_exit", SpecError::BadModule { module: text("kvm-intel"), character: '-' }),
            ("ext4:0xffffffffc0000000", SpecError::SymbolAndAddress(text("ext4:0xffffffffc0000000"))),
            ("vfs_read:0", SpecError::BadLine(text("0"))),
            ("open.c:4294967296", SpecError::BadLine(text("4294967296"))),
            ("vfs_read:10%return", SpecError::ReturnLine(text("vfs_read:10"))),
            ("vfs_read+4:10", SpecError::LineOfOther(text("vfs_read+4"))),
            ("vfs_*:10", SpecError::LineOfOther(text("vfs_*"))),
            ("a:b:10", SpecError::SeveralModules(text("a:b:10"))),
            ("a%b/c.c:10", SpecError::UnknownSuffix(text("%b/c.c:10"))),
            ("a b/c.c:10", SpecError::BadCharacter { written: text("a b/c.c"), character: ' ' }),
            ("ext4:+4", SpecError::NoSymbol(text("+4"))),
            ("ext4:a-4", SpecError::NegativeOffset(text("a-4"))),
            ("ext4:a b", character("a b", ' ')),
            ("show#", SpecError::BadOrdinal(text("#"))),
            ("show#0", SpecError::BadOrdinal(text("#0"))),
            ("show#+4", SpecError::BadOrdinal(text("#"))),
            ("ext4:show#x+4", SpecError::BadOrdinal(text("#x"))),
            ("#2", SpecError::NoSymbol(text("#2"))),
            ("vfs_*#2", character("vfs_*#2", '#')),
            ("vfs_read+", SpecError::NoOffset(text("vfs_read+"))),
            ("vfs_read-4", SpecError::NegativeOffset(text("vfs_read-4"))),
            ("vfs_read-0x4", SpecError::NegativeOffset(text("vfs_read-0x4"))),
            ("vfs_read+-4", SpecError::NegativeOffset(text("vfs_read+-4"))),
            ("vfs_read+ten", SpecError::BadOffset(text("ten"))),
            ("vfs_read+0x", SpecError::BadOffset(text("0x"))),
            ("vfs_read+4+4", SpecError::BadOffset(text("4+4"))),
            ("f+18446744073709551616", SpecError::OffsetTooLarge(text("18446744073709551616"))),
            ("vfs-read", character("vfs-read", '-')),
            ("vfs read", character("vfs read", ' ')),
            ("vfs_read()", character("vfs_read()", '(')),
            ("vfs_re\u{e4}d", character("vfs_re\u{e4}d", '\u{e4}')),
            ("vfs_* ", character("vfs_* ", ' ')),
        ];
        for (written, expected) in cases {
            let error = written.parse::<ProbeSpec>().unwrap_err();
            assert_eq!(error, expected, "{written:?}");
            assert!(!error.to_string().contains('\n'), "{written:?}");
        }
    }
}
