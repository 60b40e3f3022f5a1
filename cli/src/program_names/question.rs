//! What is asked, and what is answered: a line of JSON each.

use serde::{Deserialize, Serialize};

/// No line is longer, in bytes.
pub(super) const LONGEST: u64 = 64 << 10;

/// A file's path in the guest, its length in bytes, and when it was changed last, in nanoseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct FileIdentity {
    pub(super) path: String,
    pub(super) length: u64,
    pub(super) modified: i64,
}

/// Which function of a file has what is so many bytes from its start?
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Question {
    pub(super) file: FileIdentity,
    pub(super) offset: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The file is not known, or is another one.
    NoFile,
    /// This part of the file has it.
    Part(NamedPart),
}

/// A function of a file, or what is between two.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct NamedPart {
    /// The function, as the file names it; `None` where there is none.
    pub(super) function: Option<String>,
    /// Where in the file it begins.
    pub(super) start: u64,
    /// How long it is, in bytes.
    pub(super) size: u64,
}
