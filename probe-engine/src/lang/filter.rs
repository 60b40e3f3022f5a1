//! `if FILTER`: `count > 4096 && (comm == "cat" || comm ~ "b*sh")`.

use super::ast::{FilterExpr, Literal, Operator, Spanned};
use super::error::{Error, Mistake, Wanted};
use super::fields::RETURN_VALUE;
use super::part::{Part, is_of_name, signed, unsigned};
use crate::linux::glob::Glob;
use std::ops::Range;

/// How deep parentheses may be nested.
const DEEPEST: usize = 64;
/// How many comparisons there may be: it bounds how deep the tree is that `&&` and `||` grow.
const MOST_COMPARISONS: usize = 128;
/// The largest number of CPUs that a kernel is built for.
const MOST_CPUS: u32 = 8192;

/// The longer ones before those that they begin with.
const OPERATORS: [(&str, Operator); 8] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::LessOrEqual),
    ("<", Operator::Less),
    (">=", Operator::GreaterOrEqual),
    (">", Operator::Greater),
    ("~", Operator::Glob),
    ("&", Operator::And),
];

/// Takes a filter off, as far as it goes.
pub(super) fn parse(rest: &mut Part<'_>) -> Result<Spanned<FilterExpr>, Error> {
    rest.take_space();
    let before = *rest;
    let mut parser = Parser { rest: *rest, end: *rest, comparisons: 0 };
    let filter = parser.any(0)?;
    *rest = parser.rest;
    Ok(before.until(parser.end).says(filter))
}

struct Parser<'a> {
    /// Behind white space.
    rest: Part<'a>,
    /// Before it.
    end: Part<'a>,
    comparisons: usize,
}

impl<'a> Parser<'a> {
    fn eat(&mut self, text: &str) -> bool {
        let eaten = self.rest.eat(text);
        if eaten {
            self.end = self.rest;
            self.rest.take_space();
        }
        eaten
    }

    /// `a || b || c`
    fn any(&mut self, depth: usize) -> Result<FilterExpr, Error> {
        let mut filter = self.all(depth)?;
        while self.eat("||") {
            filter = FilterExpr::Or(Box::new(filter), Box::new(self.all(depth)?));
        }
        Ok(filter)
    }

    /// `a && b && c`, which binds closer.
    fn all(&mut self, depth: usize) -> Result<FilterExpr, Error> {
        let mut filter = self.one(depth)?;
        while self.eat("&&") {
            filter = FilterExpr::And(Box::new(filter), Box::new(self.one(depth)?));
        }
        Ok(filter)
    }

    /// `a == 1`, `(a)`, `!a`
    fn one(&mut self, depth: usize) -> Result<FilterExpr, Error> {
        let mut negated = false;
        while self.eat("!") {
            negated = !negated;
        }
        let open = self.rest;
        let filter = if self.eat("(") {
            if depth >= DEEPEST {
                return Err(open.split_at(1).0.wrong(Mistake::FilterTooDeep(DEEPEST)));
            }
            let filter = self.any(depth + 1)?;
            if !self.eat(")") {
                return Err(match self.rest.is_empty() {
                    true => self.rest.wrong(Mistake::OpenParenthesis),
                    false => self.rest.take_word().wrong(Mistake::BehindFilter),
                });
            }
            filter
        } else {
            self.comparison()?
        };
        Ok(if negated { FilterExpr::Not(Box::new(filter)) } else { filter })
    }

    fn comparison(&mut self) -> Result<FilterExpr, Error> {
        let start = self.rest;
        let mut rest = self.rest;
        let name = match rest.eat(RETURN_VALUE) {
            true => start.until(rest),
            false => rest.take_while(is_of_name),
        };
        self.rest = rest;
        if name.is_empty() {
            let mut found = start;
            return Err(found.take_word().is_not(Wanted::Field));
        }
        self.comparisons += 1;
        if self.comparisons > MOST_COMPARISONS {
            return Err(name.wrong(Mistake::TooManyComparisons(MOST_COMPARISONS)));
        }
        let mut suffix = self.rest;
        let suffix = suffix.take_while(|c| is_of_name(c) || c == '.');
        let user_string = suffix.text() == ".ustring";
        if !suffix.is_empty() && !user_string {
            return Err(suffix.wrong(Mistake::BadFieldSuffix(suffix.text().to_owned())));
        }
        self.eat(suffix.text());
        self.rest.take_space();
        let op = self.operator()?;
        let (written, value) = self.value(op)?;
        if user_string && !matches!(value, Literal::Text(_)) {
            return Err(written.wrong(Mistake::UserStringOfNumber(written.text().to_owned())));
        }
        let value = written.says(value);
        Ok(FilterExpr::Compare { field: name.spanned(), user_string, op, value })
    }

    fn operator(&mut self) -> Result<Operator, Error> {
        let found = OPERATORS.iter().find(|(text, _)| self.rest.text().starts_with(text));
        let joins = self.rest.text().starts_with("&&");
        match found {
            Some((text, operator)) if !joins => {
                self.eat(text);
                Ok(*operator)
            }
            _ => Err(self.rest.split_at(1).0.wrong(match self.rest.first() {
                Some('=') => Mistake::SingleEqual,
                _ => Mistake::NoOperator,
            })),
        }
    }

    fn value(&mut self, op: Operator) -> Result<(Part<'a>, Literal), Error> {
        let start = self.rest;
        let value = match start.first() {
            Some(quote @ ('"' | '\'')) => {
                self.rest.take_char();
                let text = self.rest.take_while(|c| c != quote);
                if self.rest.take_char().is_none() {
                    return Err(start.wrong(Mistake::OpenQuote));
                }
                Literal::Text(text.text().to_owned())
            }
            _ if self.rest.eat("CPUS{") => {
                let list = self.rest.take_while(|c| c != '}');
                let ranges = self.rest.eat("}").then(|| cpus(list.text())).flatten();
                let written = start.until(self.rest);
                Literal::Cpus(ranges.ok_or_else(|| written.is_not(Wanted::Cpus))?)
            }
            _ => {
                let word = self.rest.take_while(|c| !c.is_whitespace() && !"()&|\"'".contains(c));
                bare(word, op)?
            }
        };
        let written = start.until(self.rest);
        self.end = self.rest;
        self.rest.take_space();
        check(&value, op, written)?;
        Ok((written, value))
    }
}

/// A number, or a word.
fn bare(word: Part<'_>, op: Operator) -> Result<Literal, Error> {
    let text = word.text();
    if text.is_empty() {
        return Err(word.is_not(Wanted::Value));
    }
    let number = unsigned(text).map(i128::from).or_else(|| signed(text).map(i128::from));
    let is_number = text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
    match number {
        Some(_) if op == Operator::Glob => Err(word.wrong(Mistake::NumberPattern(text.to_owned()))),
        Some(number) => Ok(Literal::Number(number)),
        None if is_number && op != Operator::Glob => Err(word.is_not(Wanted::Number)),
        None => Ok(Literal::Text(text.to_owned())),
    }
}

/// Whether the operator is one for such values.
fn check(value: &Literal, op: Operator, written: Part<'_>) -> Result<(), Error> {
    match (value, op) {
        (Literal::Text(pattern), Operator::Glob) => match Glob::new(pattern) {
            Ok(_) => Ok(()),
            Err(error) => Err(written.wrong(Mistake::Pattern(error))),
        },
        (_, Operator::Equal | Operator::NotEqual) => Ok(()),
        (Literal::Text(_), _) => Err(written.wrong(Mistake::TextOperator)),
        (Literal::Cpus(_), Operator::And) => Ok(()),
        (Literal::Cpus(_), _) => Err(written.wrong(Mistake::CpusOperator)),
        (Literal::Number(_), _) => Ok(()),
    }
}

/// `0-3,7`, `4-N`, `all`, sorted and put together.
fn cpus(list: &str) -> Option<Vec<Range<u32>>> {
    let number = |text: &str| {
        let is_decimal = text.chars().all(|c| c.is_ascii_digit());
        text.parse().ok().filter(|cpu| is_decimal && *cpu < MOST_CPUS)
    };
    let mut ranges = Vec::new();
    for range in list.split(',') {
        let (first, last) = match range.trim() {
            "all" => ("0", "N"),
            range => range.split_once('-').unwrap_or((range, range)),
        };
        let first = number(first.trim())?;
        let last = match last.trim() {
            "N" => MOST_CPUS - 1,
            last => number(last)?,
        };
        if last < first {
            return None;
        }
        ranges.push(first..last + 1);
    }
    ranges.sort_by_key(|range| range.start);
    let mut merged: Vec<Range<u32>> = Vec::new();
    for range in ranges {
        match merged.last_mut() {
            Some(before) if range.start <= before.end => before.end = before.end.max(range.end),
            _ => merged.push(range),
        }
    }
    Some(merged)
}
