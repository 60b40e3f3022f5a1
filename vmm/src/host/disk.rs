//! The disk that carries the input files: a sparse file in memory, read-only inside.
//!
//! A disk is there at once at its full size, so that a host restored from a snapshot, which asked for that size
//! when it booted, needs not be told; and it carries megabytes many times faster than the control port.

use super::command::FileContent;
use super::protocol::DiskFile;
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// The disk's size in bytes. It costs nothing: only what is written takes memory.
const CAPACITY: u64 = 64 << 30;
/// The kernel inside reads the beginning when it looks for partitions, and keeps what it has read in the snapshot;
/// no file begins before this offset, in bytes.
const FIRST: u64 = 1 << 20;
/// Each file begins at a multiple of this many bytes.
const ALIGNMENT: u64 = 4096;

/// Why an input file cannot be handed in.
#[derive(Debug, Error)]
pub enum DiskError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The files are longer than the disk.
    #[error("the input files are longer than {} GiB in all", CAPACITY >> 30)]
    Full,
}

/// A disk and what is on it.
pub(super) struct Disk {
    image: File,
    end: u64,
}

impl Disk {
    /// An empty one.
    pub(super) fn new() -> io::Result<Self> {
        let image = File::from(memfd_create("vmm-files", MemfdFlags::CLOEXEC)?);
        image.set_len(CAPACITY)?;
        Ok(Self { image, end: FIRST })
    }

    /// The file that holds it.
    pub(super) fn image(&self) -> &File {
        &self.image
    }

    /// Copies `input` to the end.
    pub(super) fn add(&mut self, input: &FileContent<'_>) -> Result<DiskFile, DiskError> {
        match input {
            FileContent::File(path) => self.add_file(path),
            FileContent::Bytes(bytes) => {
                let (offset, length) = (self.end, bytes.len() as u64);
                if length >= CAPACITY - offset {
                    return Err(DiskError::Full);
                }
                let written = self.image.write_all_at(bytes, offset);
                written.map_err(|source| DiskError::Read { path: "bytes".into(), source })?;
                self.end += length.next_multiple_of(ALIGNMENT);
                Ok(DiskFile { name: "bytes".to_owned(), mode: 0o400, offset, length })
            }
        }
    }

    /// Copies the file at `path`, which may be a pipe, to the end.
    fn add_file(&mut self, path: &Path) -> Result<DiskFile, DiskError> {
        let unreadable = |source| DiskError::Read { path: path.into(), source };
        let file = File::open(path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode() & 0o777;
        let (offset, room) = (self.end, CAPACITY - self.end);
        self.image.seek(SeekFrom::Start(offset)).map_err(unreadable)?;
        let length = io::copy(&mut file.take(room), &mut self.image).map_err(unreadable)?;
        if length == room {
            return Err(DiskError::Full);
        }
        self.end += length.next_multiple_of(ALIGNMENT);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(DiskFile { name, mode, offset, length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_lie_one_after_the_other() {
        let path = std::env::temp_dir().join(format!("vmm-disk-{}", std::process::id()));
        std::fs::write(&path, b"contents").unwrap();
        let mut disk = Disk::new().unwrap();
        let first = disk.add(&FileContent::File(path.clone())).unwrap();
        let second = disk.add(&FileContent::Bytes(b"contents")).unwrap();
        let missing = disk.add(&FileContent::File("/nonexistent".into())).unwrap_err();
        std::fs::remove_file(&path).unwrap();

        assert_eq!((first.offset, first.length), (FIRST, 8));
        assert_eq!((second.offset, second.length), (FIRST + ALIGNMENT, 8));
        assert_eq!(missing.to_string(), "cannot read /nonexistent");
        let mut bytes = [0; 8];
        disk.image().read_exact_at(&mut bytes, second.offset).unwrap();
        assert_eq!(&bytes, b"contents");
    }
}
