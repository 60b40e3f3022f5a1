//! `SYM=VALUE if FILTER under PLACE every N after M times K seed S`: calls that are to fail.

use super::ast::{Definition, DefinitionKind, EventName, FilterExpr, Injection, Spanned, WrittenPlace};
use super::error::{Error, Mistake, Wanted};
use super::filter;
use super::parse::LONGEST;
use super::part::{Part, signed, unsigned};
use super::place;
use crate::capture::names::errno_named;
use crate::probe::inject::Turns;

/// Reads an injection.
///
/// # Errors
/// [`Error`], which says what is wrong and where.
pub fn parse_injection(text: &str) -> Result<Injection, Error> {
    let mut rest = Part::whole(text);
    if text.len() > LONGEST {
        return Err(rest.end().wrong(Mistake::TooLong(LONGEST)));
    }
    rest.take_space();
    let call = rest.take_word();
    let Some((place, value)) = call.split_once('=') else {
        return Err(call.end().wrong(Mistake::NoReturned));
    };
    let returned = returned(value).ok_or_else(|| value.is_not(Wanted::Returned))?;
    let mut injection = Injection {
        function: function(place)?,
        value: value.says(returned),
        filter: None,
        under: None,
        turns: Turns::default(),
    };
    clauses(&mut injection, rest)?;
    Ok(injection)
}

fn clauses(injection: &mut Injection, mut rest: Part<'_>) -> Result<(), Error> {
    let mut said = Vec::new();
    loop {
        rest.take_space();
        let word = rest.take_word();
        if word.is_empty() {
            return Ok(());
        }
        if said.contains(&word.text()) {
            return Err(word.wrong(Mistake::SaidTwice(word.text().to_owned())));
        }
        said.push(word.text());
        if word.text() == "if" {
            injection.filter = Some(filter::parse(&mut rest)?);
            continue;
        }
        if !["under", "every", "after", "times", "seed"].contains(&word.text()) {
            return Err(word.wrong(Mistake::NoClause(word.text().to_owned())));
        }
        rest.take_space();
        let value = rest.take_word();
        let number = || unsigned(value.text()).ok_or_else(|| value.is_not(Wanted::Number));
        let least = || number().and_then(|n| if n == 0 { Err(value.is_not(Wanted::Calls)) } else { Ok(n) });
        let turns = &mut injection.turns;
        match word.text() {
            "under" => injection.under = Some(function(value)?),
            "every" => turns.every = least()?,
            "times" => turns.times = Some(least()?),
            "after" => turns.after = number()?,
            _ => turns.seed = Some(number()?),
        }
    }
}

/// The name of a function, or a pattern.
fn function(part: Part<'_>) -> Result<Spanned<WrittenPlace>, Error> {
    if part.is_empty() {
        return Err(part.is_not(Wanted::Symbol));
    }
    match place::parse(part, DefinitionKind::Entry)? {
        (DefinitionKind::Entry, place) => Ok(place),
        _ => Err(part.wrong(Mistake::BadSuffix("%return".to_owned()))),
    }
}

/// What a caller may get.
fn returned(value: Part<'_>) -> Option<i128> {
    match value.text() {
        "NULL" | "false" => Some(0),
        "true" => Some(1),
        text => {
            let error = text.strip_prefix('-').and_then(errno_named).map(i128::from);
            error.or_else(|| signed(text).map(i128::from)).or_else(|| unsigned(text).map(i128::from))
        }
    }
}

impl Injection {
    /// The probe of its calls, as a definition has it.
    #[must_use]
    pub fn calls(&self) -> Definition {
        definition(DefinitionKind::Entry, &self.function, self.filter.clone())
    }

    /// The probe of calls below which they are made, as a definition has it.
    #[must_use]
    pub fn calls_above(&self) -> Option<Definition> {
        Some(definition(DefinitionKind::Return, self.under.as_ref()?, None))
    }
}

fn definition(
    kind: DefinitionKind,
    place: &Spanned<WrittenPlace>,
    filter: Option<Spanned<FilterExpr>>,
) -> Definition {
    let name = EventName { group: None, event: None };
    Definition { kind, max_active: None, name, place: place.clone(), args: Vec::new(), filter, hist: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbol(place: &Spanned<WrittenPlace>) -> &str {
        match &place.value {
            WrittenPlace::Symbol { symbol, .. } => symbol,
            _ => panic!("{place:?}"),
        }
    }

    #[test]
    fn values_are_what_the_kernels_functions_return() {
        for (text, value) in [
            ("f=-ENOMEM", -12),
            ("f=-EIO", -5),
            ("f=NULL", 0),
            ("f=false", 0),
            ("f=true", 1),
            ("f=-1", -1),
            ("f=0x10", 16),
            ("f=18446744073709551615", i128::from(u64::MAX)),
        ] {
            assert_eq!(parse_injection(text).unwrap().value.value, value, "{text}");
        }
    }

    #[test]
    fn clauses_come_in_any_order() {
        let text = "kmem_cache_alloc*=NULL times 2 if comm == \"cat\" && gfp != 0 after 3 under syscall:openat seed 9 every 4";
        let read = parse_injection(text).unwrap();
        assert_eq!(symbol(&read.function), "kmem_cache_alloc*");
        assert_eq!(read.turns, Turns { every: 4, after: 3, times: Some(2), seed: Some(9) });
        assert!(read.calls().filter.is_some() && read.calls_above().is_some());
        let plain = parse_injection(" syscall:openat=-EIO ").unwrap();
        assert_eq!((plain.turns, plain.calls_above()), (Turns::default(), None));
    }

    #[test]
    fn mistakes_are_shown_at_their_places() {
        for (text, at, words) in [
            ("", 0..0, "what its caller gets"),
            ("vfs_read", 8..8, "what its caller gets"),
            ("=NULL", 0..0, "a symbol is missing"),
            ("f=", 2..2, "is missing"),
            ("f=ENOMEM", 2..8, "`ENOMEM` is not a value that a function returns"),
            ("f=-ENOSUCH", 2..10, "is not a value"),
            ("f+0x10=NULL", 0..6, "no offset but 0"),
            ("f%return=NULL", 0..8, "cannot follow a place"),
            ("f=NULL every 0", 13..14, "a number of calls"),
            ("f=NULL every", 12..12, "a number of 64 bits is missing"),
            ("f=NULL sometimes", 7..16, "`sometimes` is none of"),
            ("f=NULL after 1 after 2", 15..20, "was said already"),
            ("f=NULL if", 9..9, "missing"),
        ] {
            let error = parse_injection(text).unwrap_err();
            assert!(error.to_string().contains(words), "{text}: {error}");
            assert_eq!(error.span, at, "{text}: {error}");
        }
    }
}
