//! `hist:keys=...:values=...:sort=...:size=...:name=...`

use super::ast::{Hist, KeyExpr, KeyModifier, SortExpr, Spanned};
use super::error::{Error, Mistake, Wanted, nearest};
use super::part::{Part, is_of_name, unsigned};
use super::types;

/// The kernel's TRACING_MAP_KEYS_MAX.
const MOST_KEYS: usize = 3;
/// More than the kernel has (TRACING_MAP_VALS_MAX), because nothing is gained by refusing them.
const MOST_VALUES: usize = 16;
/// The kernel's TRACING_MAP_SORT_KEYS_MAX.
const MOST_SORTS: usize = 2;
/// The kernel's TRACING_MAP_BITS_MIN: what is rounded up to less is refused.
const SMALLEST: u64 = 1 << 7;
/// The kernel's TRACING_MAP_BITS_MAX.
const LARGEST: u64 = 1 << 17;

const PARTS: [&str; 5] = ["keys", "values", "sort", "size", "name"];
const NOT_HERE: [&str; 6] = ["pause", "cont", "continue", "clear", "nohitcount", "clock"];

const MODIFIERS: [(&str, KeyModifier); 6] = [
    ("hex", KeyModifier::Hex),
    ("sym", KeyModifier::Symbol),
    ("sym-offset", KeyModifier::SymbolOffset),
    ("syscall", KeyModifier::SystemCall),
    ("execname", KeyModifier::Execname),
    ("log2", KeyModifier::Log2),
];
const MODIFIERS_NOT_HERE: [&str; 4] = ["usecs", "percent", "graph", "stacktrace"];

/// Whether a word is a histogram, and not a parameter that is called `hist`.
pub(super) fn begins(mut word: Part<'_>) -> bool {
    word.eat("hist:") && types::parse(word).is_err()
}

/// A whole histogram.
pub(super) fn parse(part: Part<'_>) -> Result<Spanned<Hist>, Error> {
    let mut rest = part;
    rest.eat("hist:");
    let mut hist = Hist::default();
    let mut values = None;
    for attribute in rest.split(':') {
        let (name, value) = match attribute.split_once('=') {
            Some((name, value)) => (name, value),
            None => (attribute, attribute.end()),
        };
        let again = match name.text() {
            "key" | "keys" => !hist.keys.is_empty(),
            "val" | "vals" | "values" => values.is_some(),
            "sort" => !hist.sort.is_empty(),
            "size" => hist.size.is_some(),
            "name" => hist.name.is_some(),
            "" => return Err(name.is_not(Wanted::HistPart)),
            _ => return Err(name.wrong(unknown(name.text()))),
        };
        if again {
            return Err(name.wrong(Mistake::SaidTwice(name.text().to_owned())));
        }
        if value.is_empty() {
            return Err(attribute.wrong(Mistake::NothingBehind(name.text().to_owned())));
        }
        match name.text() {
            "key" | "keys" => hist.keys = list(value, "keys", MOST_KEYS, key)?,
            "sort" => hist.sort = list(value, "fields to sort by", MOST_SORTS, sort)?,
            "size" => hist.size = Some(size(value)?),
            "name" => hist.name = Some(value.spanned()),
            _ => values = Some(list(value, "values", MOST_VALUES, summed)?),
        }
    }
    if hist.keys.is_empty() {
        return Err(part.wrong(Mistake::NoKeys));
    }
    // The number of hits is always there.
    hist.values = values.unwrap_or_default().into_iter().filter(|value| value.value != "hitcount").collect();
    check_sort(&hist)?;
    Ok(part.says(hist))
}

fn unknown(name: &str) -> Mistake {
    let is_action = name.starts_with("on") && name.contains('(');
    match is_action || NOT_HERE.contains(&name) {
        true => Mistake::NotHere(name.to_owned()),
        false => Mistake::UnknownPart { name: name.to_owned(), nearest: nearest(PARTS, name) },
    }
}

/// `a,b,c`, each of them read by `item`.
fn list<'a, T>(
    part: Part<'a>,
    what: &'static str,
    most: usize,
    item: impl Fn(Part<'a>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    let mut items = Vec::new();
    for one in part.split(',') {
        if items.len() == most {
            return Err(one.wrong(Mistake::TooMany { what, most }));
        }
        items.push(item(one)?);
    }
    Ok(items)
}

/// A field's name, and what is behind its dot.
fn field(part: Part<'_>) -> Result<(Spanned<String>, Option<Part<'_>>), Error> {
    let mut rest = part;
    let name = rest.take_while(is_of_name);
    let modifier = rest.eat(".").then_some(rest);
    if modifier.is_none() && !rest.is_empty() {
        // Variables and arithmetic.
        return Err(part.wrong(Mistake::NotHere(part.text().to_owned())));
    }
    match name.text() {
        "" => Err(part.is_not(Wanted::Field)),
        "stacktrace" => Ok((name.says("common_stacktrace".to_owned()), modifier)),
        _ => Ok((name.spanned(), modifier)),
    }
}

/// `FIELD[.MODIFIER]`
fn key(part: Part<'_>) -> Result<KeyExpr, Error> {
    let (field, written) = field(part)?;
    let Some(written) = written else { return Ok(KeyExpr { field, modifier: KeyModifier::Plain }) };
    if let Some((name, width)) = written.split_once('=')
        && name.text() == "buckets"
    {
        return match unsigned(width.text()) {
            Some(width @ 1..) => Ok(KeyExpr { field, modifier: KeyModifier::Buckets(width) }),
            _ => Err(width.is_not(Wanted::Buckets)),
        };
    }
    let Some((_, modifier)) = MODIFIERS.iter().find(|(name, _)| *name == written.text()) else {
        return Err(written.wrong(unknown_modifier(written.text())));
    };
    if *modifier == KeyModifier::Execname && field.value != "common_pid" {
        return Err(written.wrong(Mistake::NotAProcess));
    }
    Ok(KeyExpr { field, modifier: *modifier })
}

fn unknown_modifier(name: &str) -> Mistake {
    if MODIFIERS_NOT_HERE.contains(&name) {
        return Mistake::NotHere(format!(".{name}"));
    }
    let names = MODIFIERS.iter().map(|(name, _)| *name).chain(["buckets=10"]);
    Mistake::UnknownModifier { name: name.to_owned(), nearest: nearest(names, name) }
}

/// A value, which has no modifiers.
fn summed(part: Part<'_>) -> Result<Spanned<String>, Error> {
    match field(part)? {
        (field, None) => Ok(field),
        (_, Some(modifier)) => Err(modifier.wrong(Mistake::NotHere(format!(".{}", modifier.text())))),
    }
}

/// `FIELD[.descending]`
fn sort(part: Part<'_>) -> Result<SortExpr, Error> {
    let (field, order) = field(part)?;
    let descending = match order.map(|order| (order, order.text())) {
        None | Some((_, "ascending")) => false,
        Some((_, "descending")) => true,
        Some((order, name)) => {
            let nearest = nearest(["ascending", "descending"], name);
            return Err(order.wrong(Mistake::UnknownModifier { name: name.to_owned(), nearest }));
        }
    };
    Ok(SortExpr { field, descending })
}

/// A number of keys, rounded up to a power of two.
fn size(part: Part<'_>) -> Result<Spanned<u32>, Error> {
    let size = unsigned(part.text()).and_then(u64::checked_next_power_of_two);
    let size =
        size.filter(|size| (SMALLEST..=LARGEST).contains(size)).and_then(|size| u32::try_from(size).ok());
    let bad = Mistake::BadSize { least: SMALLEST / 2 + 1, most: LARGEST };
    size.map(|size| part.says(size)).ok_or_else(|| part.wrong(bad))
}

fn check_sort(hist: &Hist) -> Result<(), Error> {
    let is_there = |name: &str| {
        name == "hitcount"
            || hist.keys.iter().any(|key| key.field.value == name)
            || hist.values.iter().any(|value| value.value == name)
    };
    match hist.sort.iter().find(|sort| !is_there(&sort.field.value)) {
        None => Ok(()),
        Some(SortExpr { field, .. }) => {
            Err(Error { span: field.span.clone(), mistake: Mistake::NotSortable(field.value.clone()) })
        }
    }
}
