//! The text of a file of cases, and where in it a mistake is.

use crate::file;
use crate::mistake;
use anyhow::{Context, Error, Result};
use probe_engine::linux::nearest::nearest;
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;

/// A file of cases.
pub(crate) struct SuiteSource {
    name: String,
    text: String,
}

impl SuiteSource {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let text = String::from_utf8(file::read(path)?).with_context(|| format!("{name} is not text"))?;
        Ok(Self { name, text })
    }

    /// One that is not in a file.
    pub(crate) fn of(name: &str, text: String) -> Self {
        Self { name: name.to_owned(), text }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// What the file says.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        toml::from_str(&self.text).map_err(|error| {
            let span = error.span().unwrap_or(self.text.len()..self.text.len());
            let (message, hint) = said(error.message());
            self.mistake(span, message, hint)
        })
    }

    /// What is wrong at `span` of the file, and what to write instead.
    pub(crate) fn mistake(&self, span: Range<usize>, message: String, hint: Option<String>) -> Error {
        mistake::in_file((&self.name, &self.text), span, message, hint)
    }

    /// The line of a value, counted from 1.
    pub(crate) fn line_of<T>(&self, value: &Spanned<T>) -> usize {
        self.text.get(..value.span().start).unwrap_or_default().matches('\n').count() + 1
    }

    /// What is wrong with a whole value.
    pub(crate) fn mistake_in<T>(&self, value: &Spanned<T>, message: impl ToString) -> Error {
        self.mistake(value.span(), message.to_string(), None)
    }

    /// Where `inner`, in bytes of a text, is in the file.
    pub(crate) fn within(&self, text: &Spanned<String>, inner: Range<usize>) -> Range<usize> {
        let span = text.span();
        let literal = self.text.get(span.clone()).unwrap_or_default();
        let at = |offset| span.start + offset_in_literal(literal, offset);
        at(inner.start)..at(inner.end)
    }
}

/// A sentence of the parser's as ours: with the nearest name instead of all that there are.
fn said(message: &str) -> (String, Option<String>) {
    let names: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
    match names.split_first() {
        Some((unknown, known)) if message.starts_with("unknown ") => {
            let near = nearest(known.iter().copied(), unknown, 2);
            let near = if near.is_empty() { known.to_vec() } else { near };
            let list = near.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            let what = message.split('`').next().unwrap_or_default().trim_start_matches("unknown ");
            let what = if what.trim() == "variant" { "word" } else { "key" };
            (format!("there is no {what} `{unknown}` here"), Some(format!("there is {list}")))
        }
        _ => (message.trim().replace('\n', ": "), None),
    }
}

/// Where the byte at `offset` of a text is in the literal that is its form in the file.
fn offset_in_literal(literal: &str, offset: usize) -> usize {
    let quotes = ["'''", "\"\"\"", "'", "\""].into_iter().find(|quotes| literal.starts_with(quotes));
    let Some(quotes) = quotes else { return offset.min(literal.len()) };
    let mut at = quotes.len();
    let rest = literal.get(at..).unwrap_or_default();
    if quotes.len() == 3 {
        // A line end behind the quotes is no part of the text.
        at += if rest.starts_with("\r\n") { 2 } else { usize::from(rest.starts_with('\n')) };
    }
    if quotes.starts_with('\'') {
        return (at + offset).min(literal.len());
    }
    let mut left = offset;
    while left > 0 {
        let Some(rest) = literal.get(at..).filter(|rest| !rest.is_empty()) else { return literal.len() };
        let (written, meant) = unit(rest);
        at += written;
        left = left.saturating_sub(meant);
    }
    // What stands for nothing is no part of what follows.
    while let Some((written, 0)) = literal.get(at..).filter(|rest| !rest.is_empty()).map(unit) {
        at += written;
    }
    at.min(literal.len())
}

/// How many bytes the first unit of a basic text has in the file, and how many it stands for.
fn unit(rest: &str) -> (usize, usize) {
    let mut chars = rest.chars();
    let Some(first) = chars.next() else { return (1, 1) };
    if first != '\\' {
        return (first.len_utf8(), first.len_utf8());
    }
    let digits = match chars.next() {
        Some('x') => 2,
        Some('u') => 4,
        Some('U') => 8,
        // A line end is left out, and the space behind it.
        Some(c) if c.is_whitespace() => {
            return (rest.len() - chars.as_str().trim_start().len(), 0);
        }
        _ => return (2, 1),
    };
    let written = 2 + digits;
    let code = rest.get(2..written).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    (written, code.and_then(char::from_u32).map_or(1, char::len_utf8))
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    pub(crate) fn source(text: &str) -> SuiteSource {
        SuiteSource { name: "cases.toml".to_owned(), text: text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toml::Table;

    #[test]
    fn a_place_in_a_text_is_one_in_the_file() {
        #[derive(serde::Deserialize)]
        struct Texts {
            at: Vec<Spanned<String>>,
        }
        let text = r#"at = ['a X', "a\tX", "\u00e4\\X", '''
a X''', """
a \
   X""", "ä X"]"#;
        let file = testing::source(text);
        let Texts { at } = file.parse().unwrap();
        for value in at {
            let inner = value.get_ref().find('X').unwrap();
            let place = file.within(&value, inner..inner + 1);
            assert_eq!(&text[place], "X", "{value:?}");
        }
    }

    #[test]
    fn a_mistake_is_shown_in_its_line() {
        let said = |text: &str| testing::source(text).parse::<Table>().unwrap_err().to_string();
        let shown = said("a = 1\nb = [1,\nc = 2\n");
        assert!(shown.starts_with("cases.toml: "), "{shown}");
        assert!(shown.contains("cases.toml:3:"), "{shown}");
        let shown = testing::source("a = 1\n\tb = 'x\u{1b}[2J'\n").mistake(11..14, "wrong".to_owned(), None);
        assert!(
            shown.to_string().contains("cases.toml:2:6") && !shown.to_string().contains('\u{1b}'),
            "{shown}"
        );
        let file = testing::source("");
        assert!(file.mistake(5..9, "wrong".to_owned(), None).to_string().contains("cases.toml:1:1"));
    }

    #[test]
    fn a_name_that_there_is_not_is_answered_with_the_nearest() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code, reason = "only the names of the fields matter")]
        struct Two {
            kernels: Option<u8>,
            cpus: Option<u8>,
        }
        let said = |text: &str| testing::source(text).parse::<Two>().unwrap_err().to_string();
        let shown = said("\nkernel = 1");
        assert!(shown.starts_with("cases.toml: there is no key `kernel` here"), "{shown}");
        assert!(shown.contains("cases.toml:2:1") && shown.contains("there is `kernels`"), "{shown}");
        assert!(said("zzz = 1").contains("there is `kernels`, `cpus`"));
    }
}
