//! One definition: `p:vfs/read vfs_read file=$arg1 count=%dx:u64`.

use super::ast::{
    Definition, DefinitionKind, EventName, FetchExpr, FilterExpr, Spanned, Statement, WrittenPlace,
};
use super::error::{Error, Mistake, Named, Wanted};
use super::part::{Part, is_of_name, unsigned};
use super::place::{self, PlaceKind};
use super::{argument, filter, hist, program};
use crate::probe::spec::{USDT, kind_here, not_yet};

/// The kernel reads definitions into a buffer of this size. Everything that is made of a definition is bounded by it.
pub(super) const LONGEST: usize = 4096;
/// The kernel's MAX_EVENT_NAME_LEN, less the byte behind the end.
const LONGEST_NAME: usize = 63;
/// Words of a condition that lacks its `if`.
const OPERATORS: [&str; 11] = ["==", "=", "!=", "<", "<=", ">", ">=", "~", "&", "&&", "||"];
/// The kernel's KRETPROBE_MAXACTIVE_MAX.
const MOST_ACTIVE: u32 = 4096;

/// Reads one definition.
///
/// # Errors
/// [`Error`], which says what is wrong and where.
pub fn parse(text: &str) -> Result<Statement, Error> {
    let mut rest = Part::whole(text);
    if text.len() > LONGEST {
        return Err(rest.end().wrong(Mistake::TooLong(LONGEST)));
    }
    rest.take_space();
    let first = rest.take_word();
    rest.take_space();
    if first.is_empty() {
        return Err(first.wrong(Mistake::Empty));
    }
    let mut removed = first;
    if removed.eat("-:") {
        return match rest.is_empty() {
            true => Ok(Statement::Remove(event_name(removed)?)),
            false => Err(rest.wrong(Mistake::MoreThanRemoval)),
        };
    }
    let head = first.split_once(':').map_or(first, |(head, _)| head);
    if let Some(what) = not_yet(head.text()).filter(|_| !rest.is_empty()) {
        return Err(first.wrong(Mistake::NotYet(what)));
    }
    if let Some(here) = kind_here(head.text()) {
        return Err(first.wrong(Mistake::KindOfProbe { kind: head.text().to_owned(), here }));
    }
    if head.text() == USDT && rest.is_empty() {
        return Err(first.wrong(Mistake::UsdtAlone));
    }
    let mut definition = if is_command(first) && !rest.is_empty() {
        let place = rest.take_word();
        command(first, place)?
    } else {
        let (kind, place) = place::parse(first, DefinitionKind::Instruction)?;
        let name = EventName { group: None, event: None };
        Definition { kind, max_active: None, name, place, args: Vec::new(), filter: None, hist: None }
    };
    behind_the_place(&mut definition, rest)?;
    Ok(Statement::Define(Box::new(definition)))
}

/// Reads a filter alone: what follows `if` in a definition.
///
/// # Errors
/// [`Error`], which says what is wrong and where.
pub fn parse_filter(text: &str) -> Result<Spanned<FilterExpr>, Error> {
    let mut rest = Part::whole(text);
    if text.len() > LONGEST {
        return Err(rest.end().wrong(Mistake::TooLong(LONGEST)));
    }
    let filter = filter::parse(&mut rest)?;
    rest.take_space();
    match rest.is_empty() {
        true => Ok(filter),
        false => Err(rest.take_word().wrong(Mistake::BehindFilter)),
    }
}

/// Whether a first word is a command and not a place: a letter, a number, and what is behind a colon.
fn is_command(word: Part<'_>) -> bool {
    let head = word.split_once(':').map_or(word, |(head, _)| head).text();
    if head == USDT {
        return true;
    }
    let number = head.strip_prefix(['p', 'r', 'f', 't']);
    number.is_some_and(|number| number.chars().all(|c| c.is_ascii_digit()))
}

/// `p[:[GRP/][EVENT]] PLACE` and its like.
fn command(word: Part<'_>, place: Part<'_>) -> Result<Definition, Error> {
    let (mut head, name) = match word.split_once(':') {
        Some((head, name)) => (head, event_name(name)?),
        None => (word, EventName { group: None, event: None }),
    };
    let define = |kind, max_active, place| Definition {
        kind,
        max_active,
        name,
        place,
        args: Vec::new(),
        filter: None,
        hist: None,
    };
    if head.text() == USDT {
        return Ok(define(DefinitionKind::Instruction, None, program::tracepoint(place)?));
    }
    let letter = head.take_char();
    if letter == Some('t') {
        if !head.is_empty() {
            return Err(head.wrong(Mistake::MaxActiveNotForEntry));
        }
        return Ok(define(DefinitionKind::Tracepoint, None, place::tracepoint(place)?));
    }
    let said = match letter {
        Some('r') => DefinitionKind::Return,
        Some('f') => DefinitionKind::Entry,
        _ => DefinitionKind::Instruction,
    };
    let (kind, place) = place::parse(place, said)?;
    // `p SYM%return` is a return probe as well, but one without a number.
    // The kernel follows as many calls of a program as there are.
    let is_program = matches!(place.value, WrittenPlace::Program { .. });
    if !head.is_empty() && (kind != DefinitionKind::Return || letter == Some('p') || is_program) {
        return Err(head.wrong(Mistake::MaxActiveNotForEntry));
    }
    Ok(define(kind, max_active(head)?, place))
}

/// `MAXACTIVE`; 0 says that there is none.
fn max_active(part: Part<'_>) -> Result<Option<Spanned<u32>>, Error> {
    if part.is_empty() {
        return Ok(None);
    }
    match unsigned(part.text()).map(u32::try_from) {
        Some(Ok(0)) => Ok(None),
        Some(Ok(number)) if number <= MOST_ACTIVE => Ok(Some(part.says(number))),
        Some(_) => Err(part.wrong(Mistake::MaxActiveTooBig(MOST_ACTIVE))),
        None => Err(part.is_not(Wanted::Calls)),
    }
}

/// `[GRP/]EVENT`, `GRP/`; a `.` separates as well as a `/`.
fn event_name(part: Part<'_>) -> Result<EventName, Error> {
    let (group, event) = match part.split_once('/').or_else(|| part.split_once('.')) {
        Some((group, event)) => (Some(group), event),
        None => (None, part),
    };
    if let Some(group) = group {
        // Groups are named after modules at times, with a `-`.
        check_name(group, Named::Group, |c| is_of_name(c) || c == '-')?;
    }
    if event.is_empty() && group.is_some() {
        return Ok(EventName { group: group.map(Part::spanned), event: None });
    }
    check_name(event, Named::Event, is_of_name)?;
    Ok(EventName { group: group.map(Part::spanned), event: Some(event.spanned()) })
}

fn check_name(part: Part<'_>, what: Named, is_known: impl Fn(char) -> bool) -> Result<(), Error> {
    let name = part.text();
    if name.is_empty() {
        return Err(part.wrong(Mistake::NoName(what)));
    }
    if name.len() > LONGEST_NAME {
        return Err(part.wrong(Mistake::NameTooLong { what, most: LONGEST_NAME }));
    }
    if name.starts_with(|c: char| c.is_ascii_digit() || c == '-') || !name.chars().all(is_known) {
        return Err(part.wrong(Mistake::BadName { what, name: name.to_owned() }));
    }
    Ok(())
}

/// What is behind the place: arguments, then a filter and a histogram in whichever order.
fn behind_the_place(definition: &mut Definition, mut rest: Part<'_>) -> Result<(), Error> {
    let site = PlaceKind::of(definition.kind, &definition.place.value);
    loop {
        rest.take_space();
        let word = rest.take_word();
        if word.is_empty() {
            return check_names(definition);
        } else if word.text() == "if" {
            if definition.filter.is_some() {
                return Err(word.wrong(Mistake::FilterTwice));
            }
            definition.filter = Some(filter::parse(&mut rest)?);
        } else if hist::begins(word) {
            if definition.hist.is_some() {
                return Err(word.wrong(Mistake::HistTwice));
            }
            definition.hist = Some(hist::parse(word)?);
        } else if definition.filter.is_some() || definition.hist.is_some() {
            return Err(word.wrong(match definition.hist {
                None => Mistake::BehindFilter,
                Some(_) => Mistake::BehindHist,
            }));
        } else if OPERATORS.contains(&word.text()) {
            return Err(word.unexpected());
        } else {
            definition.args.push(argument::parse(word, site)?);
        }
    }
}

/// As far as names are known before `$arg*` is expanded.
fn check_names(definition: &Definition) -> Result<(), Error> {
    let mut all = definition.args.iter().filter(|argument| argument.fetch.value == FetchExpr::AllArguments);
    let Some(_) = all.next() else { return argument::check_names(&definition.args) };
    match all.next() {
        Some(again) => Err(Error { span: again.fetch.span.clone(), mistake: Mistake::AllArgumentsTwice }),
        None => Ok(()),
    }
}
