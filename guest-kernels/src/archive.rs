//! The archive format of an initramfs: cpio `newc`, compressed by gzip.
//!
//! The kernel's description is `Documentation/driver-api/early-userspace/buffer-format.rst`. The same contents give
//! the same bytes: entries are sorted, and times, owners and inode numbers fixed.

use std::collections::BTreeMap;
use std::io::{self, Write};

use cpio::newc::{self, ModeFileType};
use flate2::{Compression, write::GzEncoder};

/// Contents of an archive, by path without a leading slash.
#[derive(Debug, Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
enum Entry {
    Directory,
    File { mode: u32, bytes: Vec<u8> },
    Link { target: String },
    CharDevice { major: u32, minor: u32 },
}

impl Archive {
    /// An archive without entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory, readable by all; directories above an entry are added by themselves.
    #[must_use]
    pub fn directory(self, path: &str) -> Self {
        self.entry(path, Entry::Directory)
    }

    /// Adds a file with permission bits.
    #[must_use]
    pub fn file(self, path: &str, mode: u32, bytes: Vec<u8>) -> Self {
        self.entry(path, Entry::File { mode, bytes })
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn link(self, path: &str, target: &str) -> Self {
        self.entry(path, Entry::Link { target: target.to_owned() })
    }

    /// Adds a character device, for its owner only.
    #[must_use]
    pub fn char_device(self, path: &str, major: u32, minor: u32) -> Self {
        self.entry(path, Entry::CharDevice { major, minor })
    }

    fn entry(mut self, path: &str, entry: Entry) -> Self {
        let path = path.trim_start_matches('/');
        for (slash, _) in path.match_indices('/') {
            if let Some(parent) = path.get(..slash) {
                self.entries.entry(parent.to_owned()).or_insert(Entry::Directory);
            }
        }
        self.entries.insert(path.to_owned(), entry);
        self
    }

    /// The archive, compressed: what a kernel takes as its initrd.
    ///
    /// # Errors
    /// When a file is too large for the format (4 GiB).
    pub fn to_gzip(&self) -> io::Result<Vec<u8>> {
        self.write(GzEncoder::new(Vec::new(), Compression::default()))?.finish()
    }

    /// The archive as it is, for a guest that unpacks it on an emulated processor.
    ///
    /// # Errors
    /// When a file is too large for the format (4 GiB).
    pub fn to_bytes(&self) -> io::Result<Vec<u8>> {
        self.write(Vec::new())
    }

    fn write<W: Write>(&self, mut out: W) -> io::Result<W> {
        // Paths sort so that a directory comes before what is in it, which the kernel asks for.
        for (inode, (path, entry)) in (1_u32..).zip(&self.entries) {
            entry.write(path, inode, &mut out)?;
        }
        newc::trailer(&mut out)?;
        Ok(out)
    }
}

impl Entry {
    fn write(&self, path: &str, inode: u32, out: &mut impl Write) -> io::Result<()> {
        let (kind, mode, bytes) = match self {
            Self::Directory => (ModeFileType::Directory, 0o755, &[][..]),
            Self::File { mode, bytes } => (ModeFileType::Regular, *mode, bytes.as_slice()),
            Self::Link { target } => (ModeFileType::Symlink, 0o777, target.as_bytes()),
            Self::CharDevice { .. } => (ModeFileType::Char, 0o600, &[][..]),
        };
        let mut header = newc::Builder::new(path).ino(inode).mode(mode).set_mode_file_type(kind);
        if let Self::CharDevice { major, minor } = *self {
            header = header.rdev_major(major).rdev_minor(minor);
        }
        let size = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        let mut writer = header.write(out, size);
        writer.write_all(bytes)?;
        writer.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    /// Path, mode and contents of each entry, in order.
    fn unpack(image: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut input = GzDecoder::new(image);
        let mut entries = Vec::new();
        loop {
            let mut reader = newc::Reader::new(input).unwrap();
            if reader.entry().is_trailer() {
                return entries;
            }
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            entries.push((reader.entry().name().to_owned(), reader.entry().mode(), bytes));
            input = reader.finish().unwrap();
        }
    }

    #[test]
    fn directories_come_before_what_is_in_them() {
        let image = Archive::new()
            .link("/bin/sh", "busybox")
            .file("bin/busybox", 0o755, b"program".to_vec())
            .char_device("dev/console", 5, 1)
            .directory("a")
            .to_gzip()
            .unwrap();
        let expected = [
            ("a", 0o040755, ""),
            ("bin", 0o040755, ""),
            ("bin/busybox", 0o100755, "program"),
            ("bin/sh", 0o120777, "busybox"),
            ("dev", 0o040755, ""),
            ("dev/console", 0o020600, ""),
        ]
        .map(|(path, mode, bytes)| (path.to_owned(), mode, bytes.as_bytes().to_vec()));
        assert_eq!(unpack(&image), expected);
    }

    #[test]
    fn the_order_of_adding_does_not_show() {
        let (b, a) = (|archive: Archive| archive.directory("b"), |archive: Archive| archive.directory("a"));
        assert_eq!(a(b(Archive::new())).to_gzip().unwrap(), b(a(Archive::new())).to_gzip().unwrap());
    }
}
