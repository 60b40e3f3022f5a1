//! `[MOD:]SYM[#N][+offs][%return]`, `ADDR`, `[SYSTEM:]TRACEPOINT`: where a probe is wanted.

use super::ast::{DefinitionKind, Spanned, WrittenPlace};
use super::error::{Error, Mistake, Wanted};
use super::part::{Part, is_of_name, unsigned};
use super::program;
use crate::linux::glob::Glob;
use crate::linux::program_place::{InFile, is_fragment};
use crate::linux::symbols::named::SymbolName;
use crate::probe::spec::{LineOf, split_line};

/// What the place means for what can be fetched there.
#[derive(Debug, Clone, Copy)]
pub(super) struct PlaceKind {
    /// A function returns there.
    pub(super) returns: bool,
    /// It is a function's entry or its returns, or a tracepoint.
    pub(super) knows_parameters: bool,
}

impl PlaceKind {
    pub(super) fn of(kind: DefinitionKind, place: &WrittenPlace) -> Self {
        let returns = kind == DefinitionKind::Return;
        let knows_parameters = match place {
            WrittenPlace::Symbol { offset, .. } => returns || *offset == 0,
            WrittenPlace::Tracepoint { .. } => true,
            WrittenPlace::Program { at, .. } => match at {
                InFile::Symbol { offset, .. } => !returns && *offset == 0,
                InFile::Functions(_) => !returns,
                InFile::Tracepoint { .. } => true,
                InFile::Offset(_) => false,
            },
            WrittenPlace::Address(_) | WrittenPlace::Line { .. } => returns,
        };
        Self { returns, knows_parameters }
    }
}

/// A whole place. `kind` is what the command says, and comes back as what it is with a `%return`.
pub(super) fn parse(
    part: Part<'_>,
    kind: DefinitionKind,
) -> Result<(DefinitionKind, Spanned<WrittenPlace>), Error> {
    let (place, kind) = match part.split_once('%') {
        None => (part, kind),
        Some((place, suffix)) if suffix.text() == "return" => (place, DefinitionKind::Return),
        Some((place, _)) => {
            let suffix = part.split_at(place.text().len()).1;
            return Err(suffix.wrong(Mistake::BadSuffix(suffix.text().to_owned())));
        }
    };
    if program::is_program(place.text()) {
        if kind == DefinitionKind::Entry {
            return Err(place.wrong(Mistake::ProgramEntry));
        }
        let found = program::parse(place)?;
        if let (DefinitionKind::Return, WrittenPlace::Program { at: InFile::Symbol { name, offset }, .. }) =
            (kind, &found)
        {
            if *offset != 0 {
                return Err(place.wrong(Mistake::ReturnOffset));
            }
            if is_fragment(name) {
                return Err(place.wrong(Mistake::ReturnOfFragment));
            }
        }
        return Ok((kind, place.says(found)));
    }
    let is_line = split_line(place.text()).is_some();
    let found = match place.text().starts_with(|c: char| c.is_ascii_digit()) && !is_line {
        true => digits(place)?,
        false => symbol(None, place)?,
    };
    match (kind, &found) {
        (DefinitionKind::Instruction, _) | (_, WrittenPlace::Symbol { offset: 0, .. }) => {
            Ok((kind, part.says(found)))
        }
        (_, WrittenPlace::Address(_) | WrittenPlace::Line { .. }) => Err(place.wrong(Mistake::NeedsFunction)),
        (DefinitionKind::Return, _) => Err(place.wrong(Mistake::ReturnOffset)),
        (DefinitionKind::Entry | DefinitionKind::Tracepoint, _) => Err(place.wrong(Mistake::EntryOffset)),
    }
}

/// `[SYSTEM:]NAME` of a tracepoint. The kernel's own files have a `/` there.
pub(super) fn tracepoint(place: Part<'_>) -> Result<Spanned<WrittenPlace>, Error> {
    let parts = place.split_once(':').or_else(|| place.split_once('/'));
    let (system, name) = parts.map_or((None, place), |(system, name)| (Some(system), name));
    for part in system.into_iter().chain([name]) {
        if part.is_empty() {
            return Err(part.is_not(Wanted::Tracepoint));
        }
        let is_pattern = Glob::is_pattern(part.text());
        let is_known = |c: char| is_of_name(c) || (is_pattern && "*?[]!^-\\".contains(c));
        if let Some(character) = part.text().chars().find(|c| !is_known(*c)) {
            return Err(part.wrong(Mistake::BadTracepoint(character)));
        }
        if is_pattern && let Err(error) = Glob::new(part.text()) {
            return Err(part.wrong(Mistake::Pattern(error)));
        }
    }
    let system = system.map(|system| system.text().to_owned());
    Ok(place.says(WrittenPlace::Tracepoint { system, name: name.text().to_owned() }))
}

/// An address, or a module whose name begins with a digit, as that of VLANs does.
fn digits(place: Part<'_>) -> Result<WrittenPlace, Error> {
    if place.text().contains(':') {
        return symbol(None, place);
    }
    if place.text().contains(['+', '-']) {
        return Err(place.wrong(Mistake::AddressOffset));
    }
    match unsigned(place.text()) {
        Some(address) => Ok(WrittenPlace::Address(address)),
        None => Err(place.is_not(Wanted::Address)),
    }
}

/// `[MOD:]SYM[+offs]`; what is before the `:` is taken off once.
fn symbol(module: Option<Part<'_>>, place: Part<'_>) -> Result<WrittenPlace, Error> {
    if let (None, Some((of, number))) = (module, split_line(place.text())) {
        return line(place, of, number);
    }
    if let (None, Some((module, symbol_part))) = (module, place.split_once(':')) {
        if module.is_empty() {
            return Err(place.wrong(Mistake::NoModule));
        }
        if let Some(character) = module.text().chars().find(|c| !is_of_name(*c)) {
            return Err(module.wrong(Mistake::BadModule(character)));
        }
        return symbol(Some(module), symbol_part);
    }
    if Glob::is_pattern(place.text()) {
        return pattern(module, place);
    }
    let mut rest = place;
    let name = rest.take_while(|c| is_of_symbol(c) || c == '#');
    if name.is_empty() {
        return Err(match rest.first() {
            None | Some('+' | '-') => place.is_not(Wanted::Symbol),
            Some(character) => place.wrong(Mistake::BadSymbol(character)),
        });
    }
    check_ordinal(name)?;
    let offset = match rest.first() {
        None => 0,
        Some('+') => offset(rest)?,
        Some('-') => return Err(rest.wrong(Mistake::NegativeOffset)),
        Some(character) => return Err(rest.wrong(Mistake::BadSymbol(character))),
    };
    Ok(WrittenPlace::Symbol {
        module: module.map(|module| module.text().to_owned()),
        symbol: name.text().to_owned(),
        offset,
    })
}

/// `SYM:LINE` or `FILE:LINE`
fn line(place: Part<'_>, of: &str, number: &str) -> Result<WrittenPlace, Error> {
    let (of_part, _) = place.split_at(of.len());
    let Some(line) = number.parse().ok().filter(|line| *line > 0) else {
        return Err(place.is_not(Wanted::Line));
    };
    if LineOf::is_file(of) {
        let other = of.chars().find(|c| !is_of_symbol(*c) && !"/-+,~".contains(*c));
        if let Some(character) = other {
            return Err(of_part.wrong(Mistake::BadSymbol(character)));
        }
    } else if let WrittenPlace::Symbol { offset: 1.., .. } = symbol(Some(of_part), of_part)? {
        return Err(of_part.is_not(Wanted::Symbol));
    } else if Glob::is_pattern(of) {
        return Err(of_part.is_not(Wanted::Symbol));
    }
    Ok(WrittenPlace::Line { of: of.to_owned(), line })
}

/// `+offs`
fn offset(mut written: Part<'_>) -> Result<u64, Error> {
    written.take_char();
    let offset = unsigned(written.text()).filter(|offset| u32::try_from(*offset).is_ok());
    offset.ok_or_else(|| written.is_not(Wanted::PlaceOffset))
}

/// `SYM#N`: the `N`th of several symbols of that name.
pub(super) fn check_ordinal(name: Part<'_>) -> Result<(), Error> {
    let Some((symbol, number)) = name.split_once('#') else { return Ok(()) };
    if symbol.is_empty() {
        return Err(name.is_not(Wanted::Symbol));
    }
    match SymbolName::parse(name.text()) {
        Some(_) => Ok(()),
        None => Err(number.is_not(Wanted::Ordinal)),
    }
}

fn pattern(module: Option<Part<'_>>, place: Part<'_>) -> Result<WrittenPlace, Error> {
    if module.is_some() {
        return Err(place.wrong(Mistake::PatternModule));
    }
    if place.text().contains('+') {
        return Err(place.wrong(Mistake::PatternOffset));
    }
    if let Some(character) = place.text().chars().find(|c| !is_of_symbol(*c) && !"*?[]!^-\\".contains(*c)) {
        return Err(place.wrong(Mistake::BadSymbol(character)));
    }
    match Glob::new(place.text()) {
        Ok(_) => Ok(WrittenPlace::Symbol { module: None, symbol: place.text().to_owned(), offset: 0 }),
        Err(error) => Err(place.wrong(Mistake::Pattern(error))),
    }
}

pub(super) fn is_of_symbol(c: char) -> bool {
    is_of_name(c) || matches!(c, '.' | '$')
}
