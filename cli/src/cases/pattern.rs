//! Patterns of a file of cases: text in which `*` stands for any text, and nothing else for anything but itself.

use serde::Deserialize;
use std::fmt;

/// A pattern.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Pattern(String);

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// Whether it is `text`.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.matches(text, true)
    }

    /// Whether it is somewhere in `text`.
    pub(crate) fn is_in(&self, text: &str) -> bool {
        self.matches(text, false)
    }

    /// Each part is looked for behind the one before: the earliest place leaves the most behind it.
    fn matches(&self, text: &str, is_whole: bool) -> bool {
        let parts: Vec<&str> = self.0.split('*').collect();
        let (Some((first, rest)), is_plain) = (parts.split_first(), parts.len() == 1) else { return false };
        let behind_first = match is_whole {
            true => text.strip_prefix(first),
            false => text.split_once(first).map(|(_, behind)| behind),
        };
        let Some(mut behind) = behind_first else { return false };
        if is_plain {
            return !is_whole || behind.is_empty();
        }
        let Some((last, middle)) = rest.split_last() else { return false };
        for part in middle {
            let Some((_, more)) = behind.split_once(part) else { return false };
            behind = more;
        }
        if is_whole { behind.ends_with(last) } else { behind.contains(last) }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_nothing_else_does() {
        for (pattern, text, is, is_in) in [
            ("", "", true, true),
            ("", "a", false, true),
            ("*", "", true, true),
            ("a", "a", true, true),
            ("a", "ba", false, true),
            ("/etc/*", "/etc/passwd", true, true),
            ("/etc/*", "x/etc/", false, true),
            ("*wd", "/etc/passwd", true, true),
            ("a*a", "a", false, false),
            ("a*b*c", "a-b-b-c", true, true),
            ("a*b*c", "a-c-b", false, false),
            ("[ cut here ]", "--[ cut here ]--", false, true),
            ("a.c", "abc", false, false),
            ("?", "a", false, false),
        ] {
            assert_eq!(Pattern::new(pattern).is(text), is, "{pattern} {text}");
            assert_eq!(Pattern::new(pattern).is_in(text), is_in, "{pattern} {text}");
        }
    }
}
