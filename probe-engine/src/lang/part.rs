//! A part of a definition that knows where it stands.

use super::ast::{Span, Spanned};
use super::error::{Error, Mistake, Wanted};

/// Text out of a definition. Parsers take such a part from the left, or cut it into smaller ones; positions come along
/// by themselves, always between two characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part<'a> {
    text: &'a str,
    start: usize,
}

impl<'a> Part<'a> {
    /// The whole definition.
    pub(super) fn whole(text: &'a str) -> Self {
        Self { text, start: 0 }
    }

    pub(super) fn text(self) -> &'a str {
        self.text
    }

    pub(super) fn span(self) -> Span {
        self.start..self.start + self.text.len()
    }

    pub(super) fn is_empty(self) -> bool {
        self.text.is_empty()
    }

    pub(super) fn first(self) -> Option<char> {
        self.text.chars().next()
    }

    /// The first `at` bytes, and the others.
    pub(super) fn split_at(self, at: usize) -> (Self, Self) {
        let (left, right) = self.text.split_at_checked(at).unwrap_or((self.text, ""));
        (Self { text: left, start: self.start }, Self { text: right, start: self.start + left.len() })
    }

    /// What is before the first `separator`, and what is behind it.
    pub(super) fn split_once(self, separator: char) -> Option<(Self, Self)> {
        let (left, mut right) = self.split_at(self.text.find(separator)?);
        right.take_char();
        Some((left, right))
    }

    /// The parts between one `separator` and the next.
    pub(super) fn split(self, separator: char) -> impl Iterator<Item = Self> {
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let part = rest?;
            let (first, others) = match part.split_once(separator) {
                Some((first, others)) => (first, Some(others)),
                None => (part, None),
            };
            rest = others;
            Some(first)
        })
    }

    /// What is left of it without its last character, where that is `last`.
    pub(super) fn without_last(self, last: char) -> Option<Self> {
        let text = self.text.strip_suffix(last)?;
        Some(Self { text, start: self.start })
    }

    /// What was taken off this part until `rest` was left.
    pub(super) fn until(self, rest: Self) -> Self {
        self.split_at(self.text.len().saturating_sub(rest.text.len())).0
    }

    /// The empty part at its end.
    pub(super) fn end(self) -> Self {
        self.split_at(self.text.len()).1
    }

    /// Takes `prefix` off, where it is there.
    pub(super) fn eat(&mut self, prefix: &str) -> bool {
        let there = self.text.starts_with(prefix);
        if there {
            *self = self.split_at(prefix.len()).1;
        }
        there
    }

    /// Takes one character off.
    pub(super) fn take_char(&mut self) -> Option<char> {
        let first = self.first()?;
        *self = self.split_at(first.len_utf8()).1;
        Some(first)
    }

    /// Takes off as many characters as are `wanted`.
    pub(super) fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> Self {
        let (taken, rest) = self.split_at(self.text.find(|c| !wanted(c)).unwrap_or(self.text.len()));
        *self = rest;
        taken
    }

    /// Takes off white space.
    pub(super) fn take_space(&mut self) {
        self.take_while(char::is_whitespace);
    }

    /// Takes off a word, which ends at white space outside of double quotes.
    pub(super) fn take_word(&mut self) -> Self {
        let mut quoted = false;
        let end = self.text.find(|c: char| {
            quoted ^= c == '"';
            !quoted && c.is_whitespace()
        });
        let (word, rest) = self.split_at(end.unwrap_or(self.text.len()));
        *self = rest;
        word
    }

    /// Whether it is a name as C has them.
    pub(super) fn is_name(self) -> bool {
        self.first().is_some_and(|c| !c.is_ascii_digit()) && self.text.chars().all(is_of_name)
    }

    /// This part is wrong.
    pub(super) fn wrong(self, mistake: Mistake) -> Error {
        Error { span: self.span(), mistake }
    }

    /// This part should be something else than what is written, if anything is.
    pub(super) fn is_not(self, wanted: Wanted) -> Error {
        self.wrong(match self.is_empty() {
            true => Mistake::Missing(wanted),
            false => Mistake::Not { wanted, written: self.text.to_owned() },
        })
    }

    /// Nothing should be here.
    pub(super) fn unexpected(self) -> Error {
        self.wrong(Mistake::Unexpected(self.text.to_owned()))
    }

    /// This part says `value`.
    pub(super) fn says<T>(self, value: T) -> Spanned<T> {
        Spanned { value, span: self.span() }
    }

    /// This part, as it is.
    pub(super) fn spanned(self) -> Spanned<String> {
        self.says(self.text.to_owned())
    }
}

pub(super) fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// A number as the kernel reads it: hexadecimal after `0x`, octal after `0`, decimal otherwise.
pub(super) fn unsigned(text: &str) -> Option<u64> {
    let (digits, radix) = match (text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")), text) {
        (Some(digits), _) => (digits, 16),
        (None, "0") => (text, 10),
        (None, _) => (text.strip_prefix('0').unwrap_or(text), if text.starts_with('0') { 8 } else { 10 }),
    };
    // A sign is not a digit, but the standard library would take one.
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

/// The same with a minus before it, or without.
pub(super) fn signed(text: &str) -> Option<i64> {
    match text.strip_prefix('-') {
        Some(digits) => 0_i64.checked_sub_unsigned(unsigned(digits)?),
        None => unsigned(text)?.try_into().ok(),
    }
}

/// How the CPU's own one of a per-CPU variable is asked for, and whether what lies there is.
pub(super) const PER_CPU: [(&str, bool); 2] = [("this_cpu_ptr(", false), ("this_cpu_read(", true)];

/// Whether a per-CPU variable follows.
pub(super) fn is_per_cpu(part: Part<'_>) -> bool {
    PER_CPU.iter().any(|(prefix, _)| part.text().starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (text, value) in [
            ("0", Some(0)),
            ("00", Some(0)),
            ("10", Some(10)),
            ("010", Some(8)),
            ("0x1F", Some(31)),
            ("0Xff", Some(255)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("08", None),
            ("0x", None),
            ("0x+1", None),
            ("+1", None),
            ("1a", None),
            ("", None),
        ] {
            assert_eq!(unsigned(text), value, "{text}");
        }
        for (text, value) in [
            ("-1", Some(-1)),
            ("-0x10", Some(-16)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("-9223372036854775809", None),
            ("9223372036854775808", None),
            ("--1", None),
            ("-", None),
        ] {
            assert_eq!(signed(text), value, "{text}");
        }
    }

    #[test]
    fn parts_know_where_they_are() {
        let mut part = Part::whole("p \\\"a b\" x,,y\u{e4}");
        assert_eq!(part.take_word().span(), 0..1);
        part.take_space();
        assert_eq!(part.take_word().span(), 2..8);
        part.take_space();
        let spans: Vec<Span> = part.split(',').map(Part::span).collect();
        assert_eq!(spans, [9..10, 11..11, 12..15]);
        assert_eq!(part.end().span(), 15..15);
    }
}
