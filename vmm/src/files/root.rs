//! A folder that is open: what takes its place later is not served.

use super::Folder;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;

/// A folder, and the descriptor by which it is reached.
pub(super) struct Root {
    pub(super) open: OwnedFd,
    pub(super) folder: Folder,
}

impl Root {
    /// # Errors
    /// When there is no such folder, or a link in its place.
    pub(super) fn open(folder: &Folder) -> io::Result<Self> {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = rustix::fs::open(&folder.path, how, Mode::empty())?;
        Ok(Self { open, folder: folder.clone() })
    }
}
