//! Shell patterns for symbol names: `*`, `?`, `[abc]`, `[a-z]`, `[!a-z]`, and `\` before a character that is meant
//! literally. The kernel's own tracing filters understand the same (lib/glob.c).

use serde::{Deserialize, Serialize};

/// A pattern that cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GlobError {
    /// `[` without `]`.
    #[error("the pattern has a '[' without a ']'")]
    OpenClass,
    /// `\` with nothing behind it.
    #[error("the pattern ends in a '\\'")]
    OpenEscape,
    /// Longer than any symbol name, which the kernel limits to 512 bytes.
    #[error("the pattern is longer than {LONGEST} bytes")]
    TooLong,
}

const LONGEST: usize = 512;

/// A piece of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GlobStep {
    /// Any number of bytes, none included.
    Star,
    /// One byte of a set.
    Class { negated: bool, ranges: Vec<(u8, u8)> },
    /// One byte, whichever.
    Any,
    /// This byte.
    Byte(u8),
}

impl GlobStep {
    fn accepts(&self, byte: u8) -> bool {
        match self {
            Self::Star => false,
            Self::Class { negated, ranges } => {
                ranges.iter().any(|(low, high)| (*low..=*high).contains(&byte)) != *negated
            }
            Self::Any => true,
            Self::Byte(own) => *own == byte,
        }
    }
}

/// A pattern made ready to be matched with many names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Glob {
    steps: Vec<GlobStep>,
}

impl Glob {
    /// Whether `text` has a character that makes it a pattern instead of a name.
    #[must_use]
    pub fn is_pattern(text: &str) -> bool {
        text.contains(['*', '?', '['])
    }

    /// Reads a pattern.
    ///
    /// # Errors
    /// [`GlobError`] for a class or an escape that does not end.
    pub fn new(pattern: &str) -> Result<Self, GlobError> {
        if pattern.len() > LONGEST {
            return Err(GlobError::TooLong);
        }
        let mut steps = Vec::new();
        let mut rest = pattern.as_bytes();
        while let [first, tail @ ..] = rest {
            rest = tail;
            steps.push(match first {
                b'*' => GlobStep::Star,
                b'?' => GlobStep::Any,
                b'\\' => {
                    let [literal, tail @ ..] = rest else { return Err(GlobError::OpenEscape) };
                    rest = tail;
                    GlobStep::Byte(*literal)
                }
                b'[' => {
                    let (class, tail) = class(rest).ok_or(GlobError::OpenClass)?;
                    rest = tail;
                    class
                }
                byte => GlobStep::Byte(*byte),
            });
        }
        // Several stars in a row mean one.
        steps.dedup_by(|next, previous| *next == GlobStep::Star && *previous == GlobStep::Star);
        Ok(Self { steps })
    }

    /// What stands before, between and behind its stars, in this order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[GlobStep]> {
        self.steps.split(|step| *step == GlobStep::Star)
    }

    /// Whether the pattern matches all of `name`.
    ///
    /// Only the last star met is ever tried again: what an earlier one could give up, the last one can take. That
    /// bounds the work by pattern length times name length, with neither recursion nor memory.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.matches_bytes(name.as_bytes())
    }

    /// As [`matches`](Self::matches), for what need not be text.
    #[must_use]
    pub fn matches_bytes(&self, name: &[u8]) -> bool {
        let (mut step, mut at) = (0, 0);
        let mut retry = None;
        while let Some(byte) = name.get(at) {
            match self.steps.get(step) {
                Some(GlobStep::Star) => {
                    step += 1;
                    retry = Some((step, at));
                }
                Some(one) if one.accepts(*byte) => {
                    step += 1;
                    at += 1;
                }
                _ => {
                    let Some((after_star, from)) = retry else { return false };
                    step = after_star;
                    at = from + 1;
                    retry = Some((after_star, at));
                }
            }
        }
        self.steps.get(step..).is_some_and(|rest| rest.iter().all(|step| *step == GlobStep::Star))
    }
}

/// The class behind a `[`, and what follows its `]`. As in a shell, a `]` that comes first belongs to the class.
fn class(after_bracket: &[u8]) -> Option<(GlobStep, &[u8])> {
    let (negated, mut rest) = match after_bracket {
        [b'!' | b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut ranges = Vec::new();
    loop {
        match rest {
            [b']', tail @ ..] if !ranges.is_empty() => {
                return Some((GlobStep::Class { negated, ranges }, tail));
            }
            [low, b'-', high, tail @ ..] if *high != b']' => {
                ranges.push((*low, *high));
                rest = tail;
            }
            [byte, tail @ ..] => {
                ranges.push((*byte, *byte));
                rest = tail;
            }
            [] => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table() {
        for (pattern, yes, no) in [
            ("", &[""][..], &["a"][..]),
            ("vfs_read", &["vfs_read"], &["vfs_reads", "vfs_rea", ""]),
            ("*", &["", "x"], &[]),
            ("vfs_*", &["vfs_", "vfs_read"], &["xvfs_read"]),
            ("*_read", &["vfs_read", "_read", "_read_read"], &["vfs_reads"]),
            ("ext4_*_inode*", &["ext4_new_inode", "ext4_a_inode_b_inode"], &["ext4_inode", "ext4_new_inod"]),
            ("a*b*c*d", &["abcd", "abbccd", "axbxcxd"], &["abdc", "abcdx"]),
            ("**a**", &["a", "bab"], &["", "b"]),
            ("?", &["a"], &["", "ab"]),
            ("do_sys_open??", &["do_sys_openat"], &["do_sys_open", "do_sys_openat2"]),
            ("x[0-9]", &["x0", "x9"], &["xa", "x", "x00"]),
            ("x[!0-9]", &["xa"], &["x5", "x"]),
            ("x[^ab]", &["xc"], &["xa"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[a-]", &["a", "-"], &["b"]),
            ("[!]]", &["a"], &["]"]),
            ("a\\*", &["a*"], &["ab"]),
        ] {
            let glob = Glob::new(pattern).unwrap();
            for name in yes {
                assert!(glob.matches(name), "{pattern} should match {name}");
            }
            for name in no {
                assert!(!glob.matches(name), "{pattern} should not match {name}");
            }
        }
        for (pattern, error) in [
            ("a[bc", GlobError::OpenClass),
            ("[", GlobError::OpenClass),
            ("[!]", GlobError::OpenClass),
            ("a\\", GlobError::OpenEscape),
        ] {
            assert_eq!(Glob::new(pattern), Err(error), "{pattern}");
        }
    }

    #[test]
    fn many_stars_do_not_hang() {
        let glob = Glob::new(&"a*".repeat(200)).unwrap();
        assert!(!glob.matches(&("a".repeat(199) + "b")));
        assert!(!Glob::new(&("*a".repeat(200) + "b")).unwrap().matches(&"a".repeat(500)));
    }
}
