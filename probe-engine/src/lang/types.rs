//! `TYPE`: `u32`, `x8[16]`, `string`, `b4@0/32`, `%pd`, `path`.

use super::ast::{Element, FetchType, Spanned};
use super::error::{Error, Mistake, Wanted, nearest};
use super::part::{Part, unsigned};

/// The kernel's MAX_ARRAY_LEN.
const LONGEST_ARRAY: u32 = 64;

const NAMED: [(&str, Element); 20] = [
    ("u8", Element::Unsigned(8)),
    ("u16", Element::Unsigned(16)),
    ("u32", Element::Unsigned(32)),
    ("u64", Element::Unsigned(64)),
    ("s8", Element::Signed(8)),
    ("s16", Element::Signed(16)),
    ("s32", Element::Signed(32)),
    ("s64", Element::Signed(64)),
    ("x8", Element::Hex(8)),
    ("x16", Element::Hex(16)),
    ("x32", Element::Hex(32)),
    ("x64", Element::Hex(64)),
    ("char", Element::Char),
    ("symbol", Element::Symbol),
    ("symstr", Element::SymbolString),
    ("string", Element::String),
    ("ustring", Element::UserString),
    ("%pd", Element::Dentry),
    ("%pD", Element::File),
    ("path", Element::Path),
];

/// A whole type.
pub(super) fn parse(part: Part<'_>) -> Result<Spanned<FetchType>, Error> {
    let (name, count) = match part.split_once('[') {
        None => (part, None),
        Some((name, length)) => (name, Some(array_length(length)?)),
    };
    let element = element(name)?;
    if count.is_some()
        && matches!(element, Element::Dentry | Element::File | Element::Path | Element::SymbolString)
    {
        return Err(part.wrong(Mistake::NoArray));
    }
    Ok(part.says(FetchType { element, count }))
}

/// `N]`
fn array_length(mut part: Part<'_>) -> Result<u32, Error> {
    let length = part.take_while(|c| c != ']');
    if !part.eat("]") {
        return Err(part.wrong(Mistake::OpenArray));
    }
    if !part.is_empty() {
        return Err(part.unexpected());
    }
    match unsigned(length.text()).and_then(|length| u32::try_from(length).ok()) {
        Some(count) if (1..=LONGEST_ARRAY).contains(&count) => Ok(count),
        _ => Err(length.wrong(Mistake::BadArrayLength(LONGEST_ARRAY))),
    }
}

fn element(part: Part<'_>) -> Result<Element, Error> {
    let name = part.text();
    if let Some((_, element)) = NAMED.iter().find(|(known, _)| *known == name) {
        return Ok(*element);
    }
    if name.starts_with('b') && name.contains(['@', '/']) {
        return bit_field(part);
    }
    if name.is_empty() {
        return Err(part.is_not(Wanted::Type));
    }
    let nearest = nearest(NAMED.iter().map(|(known, _)| *known), name);
    Err(part.wrong(Mistake::UnknownType { name: name.to_owned(), nearest }))
}

/// `b<width>@<offset>/<container>`
fn bit_field(part: Part<'_>) -> Result<Element, Error> {
    let numbers = || {
        let (width, rest) = part.text().strip_prefix('b')?.split_once('@')?;
        let (offset, container) = rest.split_once('/')?;
        Some((unsigned(width).filter(|width| *width > 0)?, unsigned(offset)?, unsigned(container)?))
    };
    let Some((width, offset, container)) = numbers() else {
        return Err(part.is_not(Wanted::BitField));
    };
    let Some(container) = [8, 16, 32, 64].into_iter().find(|bits| u64::from(*bits) == container) else {
        return Err(part.wrong(Mistake::BadContainer));
    };
    match (u8::try_from(width), u8::try_from(offset)) {
        (Ok(w), Ok(o)) if w.checked_add(o).is_some_and(|bits| bits <= container) => {
            Ok(Element::BitField { width: w, offset: o, container })
        }
        _ => Err(part.wrong(Mistake::BitFieldTooWide { width, offset, container })),
    }
}
