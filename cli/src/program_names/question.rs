//! What is asked, and what is answered: a line of JSON each.

use serde::{Deserialize, Serialize};

/// No line is longer, in bytes.
pub(super) const LONGEST: u64 = 64 << 10;

/// Which function of a file has what is at an offset in it?
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Question<'a> {
    /// The file, by its path in the guest.
    pub(super) path: &'a str,
    /// How long it is there, in bytes.
    pub(super) length: u64,
    /// When it was changed last, in nanoseconds since 1970.
    pub(super) modified: i64,
    /// Bytes from its start.
    pub(super) offset: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The file is not known, or is another one.
    NoFile,
    /// None has.
    NoFunction,
    /// This one.
    Function(NamedFunction),
}

/// A function of a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NamedFunction {
    /// As the file names it.
    pub(super) name: String,
    /// Where in the file it begins.
    pub(super) start: u64,
    /// How long it is, in bytes.
    pub(super) size: u64,
}
