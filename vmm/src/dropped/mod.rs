//! Files that a command has left in its guest's throw-away root, on their way out of the guest.
//!
//! When the command has ended, the guest's init sends what the command has made or changed as one stream ([`stream`]). Whoever has taken
//! over the guest sends what he likes: a [`StreamReader`] lets through what has the form of such a stream and its bounds, and ends at the
//! first byte that has not. Files are made of that by [`KeptFolder`](crate::files::KeptFolder) alone.

mod stream;

#[cfg(test)]
pub(crate) use stream::testing;
pub(crate) use stream::write;
pub use stream::{Part, StreamError, StreamReader};

use std::fmt;

/// So many files are told of.
pub const MOST_FILES: usize = 10_000;
/// A file that is larger is told of and not sent, in bytes.
pub const MOST_OF_A_FILE: u64 = 256 << 20;
/// So much is sent in all, in bytes.
pub const MOST_IN_ALL: u64 = 1 << 30;
/// So much is told of paths and of links' targets in all, in bytes.
pub const MOST_OF_NAMES: usize = 16 << 20;
/// The longest path, and the longest target of a link, in bytes (`PATH_MAX`, include/uapi/linux/limits.h).
pub const LONGEST_PATH: usize = 4096;
/// The longest name of a file, in bytes (`NAME_MAX`, same file).
pub const LONGEST_NAME: usize = 255;
/// So many names a path has at most.
pub const DEEPEST: usize = 64;

/// A file that the command has left.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftFile {
    /// Where, below the guest's root. Of a stream that was read, each name is one of a file in a folder.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: FileKind,
    /// Whether nothing was there in the root as it was, by the guest's word.
    pub is_new: bool,
    /// Its permission bits in the guest, with those of set-id programs.
    pub mode: u32,
    /// How long it is in the guest, in bytes. A sparse file takes less there.
    pub size: u64,
    /// When it was changed last, by the guest's word: nanoseconds since 1970 (UTC).
    pub modified_ns: u64,
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FileKind {
    /// A file with contents, which are sent.
    Regular = 1,
    /// A symbolic link, whose target is sent.
    Link,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A device node.
    Device,
    /// A file of the root as it was, which was removed.
    Removed,
}

/// What came of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Sent {
    /// All that it has was sent.
    Whole = 1,
    /// It is larger than [`MOST_OF_A_FILE`].
    TooLarge,
    /// With it there would be more than [`MOST_IN_ALL`].
    NoRoom,
    /// It could not be read in the guest.
    Unread,
}

impl FileKind {
    const ALL: [Self; 6] = [Self::Regular, Self::Link, Self::Fifo, Self::Socket, Self::Device, Self::Removed];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// How many bytes such a file sends at most.
    fn most(self) -> u64 {
        match self {
            Self::Regular => MOST_OF_A_FILE,
            Self::Link => LONGEST_PATH as u64,
            Self::Fifo | Self::Socket | Self::Device | Self::Removed => 0,
        }
    }
}

impl Sent {
    const ALL: [Self; 4] = [Self::Whole, Self::TooLarge, Self::NoRoom, Self::Unread];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|sent| *sent as u8 == number)
    }
}

/// As words, behind a file that was not kept.
impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("sent as a whole"),
            Self::TooLarge => write!(f, "larger than {} MiB", MOST_OF_A_FILE >> 20),
            Self::NoRoom => write!(f, "more than {} MiB in all", MOST_IN_ALL >> 20),
            Self::Unread => f.write_str("the guest could not read it"),
        }
    }
}

/// The names of a path below a folder; none where the path leads elsewhere, or is longer than any that is sent.
#[must_use]
pub fn names(path: &[u8]) -> Option<Vec<&[u8]>> {
    let is_name = |name: &&[u8]| {
        !matches!(*name, b"" | b"." | b"..") && name.len() <= LONGEST_NAME && !name.contains(&0)
    };
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').take(DEEPEST + 1).collect();
    let fits = path.len() <= LONGEST_PATH && names.len() <= DEEPEST;
    (fits && names.iter().all(is_name)).then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_stay_below_have_names() {
        let long = [&b"a/".repeat(DEEPEST - 1)[..], &[b'n'; LONGEST_NAME]].concat();
        for (path, number) in
            [(&b"etc/motd"[..], 2), (b"...", 1), (b"a b/\xff\n\x1b[2J", 2), (&long, DEEPEST)]
        {
            assert_eq!(names(path).map(|names| names.len()), Some(number), "{}", path.escape_ascii());
        }
        let deep = [&long[..], b"/x"].concat();
        let wide = [b'n'; LONGEST_NAME + 1];
        for path in [
            &b""[..],
            b"/",
            b"/etc/shadow",
            b"..",
            b"../x",
            b"a/../../x",
            b"a/..",
            b".",
            b"./a",
            b"a//b",
            b"a/",
            b"a\0b",
            &deep,
            &wide,
            &b"a/".repeat(LONGEST_PATH),
        ] {
            assert_eq!(names(path), None, "{}", path.escape_ascii());
        }
    }
}
