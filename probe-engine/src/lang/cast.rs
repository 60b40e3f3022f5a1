//! `(STRUCT[,FIELD])FETCH->FIELD`: a value as the address of a structure, or of a member of one.

use super::ast::Spanned;
use super::error::{Error, Mistake, Wanted};
use super::part::{Part, is_of_name, is_per_cpu};

/// What a cast is made of.
pub(super) struct Parts<'a> {
    pub(super) structure: Spanned<String>,
    /// The member whose address the value is, or none for that of the structure.
    pub(super) container_of: Vec<Spanned<String>>,
    /// The value, a fetch.
    pub(super) value: Part<'a>,
    /// The members behind it.
    pub(super) path: Part<'a>,
}

/// Takes a whole cast apart.
pub(super) fn parse(part: Part<'_>) -> Result<Parts<'_>, Error> {
    let mut rest = part;
    rest.take_char();
    let inside = rest.take_while(|c| c != ')');
    let mut what = inside;
    let structure = what.take_while(is_of_name);
    if !structure.is_name() || !matches!(what.first(), None | Some(',')) {
        return Err(inside.is_not(Wanted::Structure));
    }
    // `(struct file)`: the definition's word ends at the space.
    if structure.text() == "struct" {
        return Err(structure.is_not(Wanted::Structure));
    }
    let container_of = if what.eat(",") { members(what)? } else { Vec::new() };
    if !rest.eat(")") {
        return Err(rest.wrong(Mistake::OpenParenthesis));
    }
    let (value, path) = value(rest)?;
    Ok(Parts { structure: structure.spanned(), container_of, value, path })
}

/// `FIELD.FIELD`
fn members(mut part: Part<'_>) -> Result<Vec<Spanned<String>>, Error> {
    let mut members = Vec::new();
    loop {
        let member = part.take_while(is_of_name);
        let before = part;
        if !member.is_name() {
            return Err(match member.is_empty() {
                true => part.is_not(Wanted::Member),
                false => member.is_not(Wanted::Member),
            });
        }
        members.push(member.spanned());
        if part.eat("->") {
            return Err(before.until(part).wrong(Mistake::ArrowInCast));
        }
        if !part.eat(".") {
            return if part.is_empty() { Ok(members) } else { Err(part.unexpected()) };
        }
    }
}

/// What is cast, and the members behind it. Only what is in parentheses may have members of its own.
fn value(part: Part<'_>) -> Result<(Part<'_>, Part<'_>), Error> {
    let has_parentheses = matches!(part.first(), Some('(' | '+' | '-')) || is_per_cpu(part);
    if part.is_empty() {
        return Err(part.is_not(Wanted::Fetch));
    }
    let end = match (has_parentheses, part.text().find('(')) {
        (true, Some(open)) => Some(closed(part, open)?),
        (true, None) => return Err(part.wrong(Mistake::NoParenthesis)),
        (false, _) => part.text().find('-'),
    };
    let (value, path) = part.split_at(end.unwrap_or(part.text().len()));
    if !has_parentheses && is_symbol_with_offset(value, path) {
        return Err(value.wrong(Mistake::CastOfOffset));
    }
    if !path.text().starts_with("->") {
        return Err(match path.first() {
            Some('-') => path.split_at(1).0.wrong(Mistake::BadHyphen),
            _ => path.wrong(Mistake::CastWithoutMember),
        });
    }
    let mut inside = value;
    let value = match inside.eat("(") {
        true => inside.without_last(')').unwrap_or(inside),
        false => value,
    };
    Ok((value, path))
}

/// The end of the parenthesis that opens at `open`.
fn closed(part: Part<'_>, open: usize) -> Result<usize, Error> {
    let mut depth = 0_usize;
    for (at, c) in part.text().char_indices().skip_while(|(at, _)| *at < open) {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Ok(at + c.len_utf8());
        }
    }
    Err(part.end().wrong(Mistake::OpenParenthesis))
}

/// `@SYM+8`, or `@SYM` before `-8`. `@+8` is an offset in a file.
fn is_symbol_with_offset(value: Part<'_>, path: Part<'_>) -> bool {
    let is_behind =
        path.text().strip_prefix('-').is_some_and(|path| path.starts_with(|c: char| c.is_ascii_digit()));
    let symbol = value.text().strip_prefix('@').filter(|symbol| !symbol.starts_with('+'));
    symbol.is_some_and(|symbol| symbol.contains('+') || is_behind)
}
