//! `PATH:SYMBOL[+offs]`, `PATH:OFFSET[(COUNTER)]`: places in the files of programs (Documentation/trace/uprobetracer.rst).

use super::ast::{Spanned, WrittenPlace};
use super::error::{Error, Mistake, Wanted};
use super::part::{Part, unsigned};
use crate::linux::glob::Glob;
use crate::linux::program_place::InFile;
use crate::probe::spec::{LineOf, is_in_program, is_source, split_line};

/// Whether a path is `PATH:FILE` of a program and a file of its source.
fn is_source_of_program(path: &str) -> bool {
    path.rsplit_once(':').is_some_and(|(program, file)| !is_source(program) && is_source(file))
}

/// Whether a place is one in a program. A number behind the name of a file is an offset, unless that is a file of source.
#[must_use]
pub fn is_program(place: &str) -> bool {
    match split_line(place) {
        Some((of, _)) => {
            let is_kernels = is_source(of) && !is_source_of_program(of);
            of.starts_with('/') && !is_kernels && LineOf::is_file(of)
        }
        None => is_in_program(place),
    }
}

/// `PATH:PROVIDER:NAME`: a tracepoint of a program's own.
pub(super) fn tracepoint(place: Part<'_>) -> Result<Spanned<WrittenPlace>, Error> {
    let behind = |text: &str| text.rfind(':');
    let Some(name_at) = behind(place.text()) else { return Err(place.is_not(Wanted::Usdt)) };
    let (before, mut name) = place.split_at(name_at);
    name.take_char();
    let Some(provider_at) = behind(before.text()) else { return Err(place.is_not(Wanted::Usdt)) };
    let (path, mut provider) = before.split_at(provider_at);
    provider.take_char();
    if !path.text().starts_with('/') {
        return Err(path.wrong(Mistake::RelativeProgram));
    }
    for part in [provider, name] {
        if part.is_empty() {
            return Err(part.is_not(Wanted::Usdt));
        }
        if let Some(character) = part.text().chars().find(|c| !is_of_usdt(*c)) {
            return Err(part.wrong(Mistake::BadSymbol(character)));
        }
    }
    let (provider, name) = (provider.text().to_owned(), name.text().to_owned());
    let at = InFile::Tracepoint { provider, name };
    Ok(place.says(WrittenPlace::Program { path: path.text().to_owned(), at, counter: None }))
}

/// Such a place.
pub(super) fn parse(place: Part<'_>) -> Result<WrittenPlace, Error> {
    // A path may have a `:` in it.
    let (path, _) = place.text().rsplit_once(':').unwrap_or_default();
    let (path, mut rest) = place.split_at(path.len());
    rest.take_char();
    if !path.text().starts_with('/') {
        return Err(path.wrong(Mistake::RelativeProgram));
    }
    if path.text().ends_with(':') {
        return Err(place.wrong(Mistake::QualifiedName));
    }
    if is_source_of_program(path.text()) && rest.text().bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(place.wrong(Mistake::ProgramLine));
    }
    let path = path.text().to_owned();
    if rest.first().is_some_and(|c| c.is_ascii_digit()) {
        let offset = rest.take_while(|c| c != '(');
        let at = unsigned(offset.text()).ok_or_else(|| offset.is_not(Wanted::FileOffset))?;
        let counter = match rest.is_empty() {
            true => None,
            false => Some(counter(rest)?),
        };
        return Ok(WrittenPlace::Program { path, at: InFile::Offset(at), counter });
    }
    if Glob::is_pattern(rest.text()) {
        return match Glob::new(rest.text()) {
            Err(error) => Err(rest.wrong(Mistake::Pattern(error))),
            Ok(_) if rest.text().contains('+') => Err(rest.wrong(Mistake::PatternOffset)),
            Ok(_) => {
                let at = InFile::Functions(rest.text().to_owned());
                Ok(WrittenPlace::Program { path, at, counter: None })
            }
        };
    }
    let name = rest.take_while(is_of_symbol);
    if name.is_empty() {
        return Err(match rest.first() {
            None | Some('+' | '-') => rest.is_not(Wanted::Symbol),
            Some(character) => rest.wrong(Mistake::BadSymbol(character)),
        });
    }
    let offset = match rest.first() {
        None => 0,
        Some('+') => {
            rest.take_char();
            unsigned(rest.text()).ok_or_else(|| rest.is_not(Wanted::PlaceOffset))?
        }
        Some('-') => return Err(rest.wrong(Mistake::NegativeOffset)),
        Some(character) => return Err(rest.wrong(Mistake::BadSymbol(character))),
    };
    let at = InFile::Symbol { name: name.text().to_owned(), offset };
    Ok(WrittenPlace::Program { path, at, counter: None })
}

/// `(COUNTER)`
fn counter(mut part: Part<'_>) -> Result<u64, Error> {
    let whole = part;
    part.take_char();
    let number = part.take_while(|c| c != ')');
    match (unsigned(number.text()), part.text()) {
        (Some(number), ")") => Ok(number),
        _ => Err(whole.is_not(Wanted::FileOffset)),
    }
}

fn is_of_usdt(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Names of C++ and Rust are written as the file has them; a version may follow an `@`.
fn is_of_symbol(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$' | '@')
}
