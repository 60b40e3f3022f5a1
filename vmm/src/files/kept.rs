//! A folder that gets files which a guest has left: whatever the guest calls them, they are regular files below that folder, which
//! nobody runs.

use super::Folder;
use super::confine::{Confined, LandlockError, confine};
use super::root::Root;
use crate::dropped::{FileKind, LONGEST_PATH, LeftFile, Part, Sent, names};
use probe_engine::guest_text::Escaped;
use rustix::fs::{AtFlags, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Makes the files. One whose path cannot be made here is made all the same, in the folder itself, by its number.
pub struct KeptFolder {
    root: Root,
    /// How many files have been told of, of any kind.
    number: u64,
    /// The one that is being written.
    open: Option<Open>,
    /// How many have been made as a whole.
    made: u64,
    /// How many folders have been made.
    folders: usize,
    elsewhere: Told,
    lost: Told,
}

/// A file that is being written.
struct Open {
    /// Its path in the guest, as it may be seen.
    path: String,
    folder: OwnedFd,
    name: String,
    file: File,
}

/// Files that are not where their paths say: the first of them, and how many more there are.
#[derive(Debug, Default)]
pub struct Told {
    /// The first of them.
    pub first: Vec<KeepError>,
    /// How many more there are.
    pub more: u64,
}

/// A file was not made at its path.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// It is not kept.
    #[error("{path} is not kept")]
    Lost {
        /// Its path in the guest.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// It is kept by its number.
    #[error("{path} is kept as {name}")]
    Elsewhere {
        /// Its path in the guest.
        path: String,
        /// Its name in the folder.
        name: String,
        /// Why it is not at its path.
        source: io::Error,
    },
}

/// So many of each kind are told.
const MOST_TOLD: usize = 10;
/// So many folders are made.
const MOST_FOLDERS: usize = 20_000;
/// The longest path that is made, in bytes: programs of this machine still open it, with the folder's own before it.
const LONGEST: usize = LONGEST_PATH / 2;
/// Folders are their owner's, and so are files, which nobody may run.
const OF_A_FOLDER: Mode = Mode::RWXU;
const OF_A_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

impl KeptFolder {
    /// Opens the folder: what takes its place later gets no file.
    ///
    /// # Errors
    /// When there is no such folder, or a link in its place.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let root = Root::open(&Folder { path: folder.to_owned(), writable: true })?;
        let (elsewhere, lost) = (Told::default(), Told::default());
        Ok(Self { root, number: 0, open: None, made: 0, folders: 0, elsewhere, lost })
    }

    /// From now on this process, with the threads that it starts, reaches [nothing but the folder](confine).
    ///
    /// # Errors
    /// [`LandlockError`].
    pub fn confine(&self) -> Result<Confined, LandlockError> {
        confine(std::slice::from_ref(&self.root))
    }

    /// Takes the next part of what the guest sends. A file that cannot be made is [told](Self::lost), and the others are made.
    pub fn take(&mut self, part: &Part<'_>) {
        match part {
            Part::Begin(file) => {
                self.number += 1;
                if file.kind == FileKind::Regular {
                    self.begin(file);
                }
            }
            Part::Bytes(bytes) => {
                let written = self.open.as_mut().map_or(Ok(()), |open| open.file.write_all(bytes));
                if let Err(source) = written
                    && let Some(Open { path, .. }) = self.remove()
                {
                    self.lost.add(KeepError::Lost { path, source });
                }
            }
            Part::Sent(Sent::Whole) => self.made += u64::from(self.open.take().is_some()),
            Part::Sent(_) => drop(self.remove()),
            Part::End { .. } => {}
        }
    }

    /// No more parts come: a file that is not whole is not kept. Says how many are.
    pub fn finish(&mut self) -> u64 {
        drop(self.remove());
        self.made
    }

    /// Which files were made elsewhere, and why.
    #[must_use]
    pub fn elsewhere(&self) -> &Told {
        &self.elsewhere
    }

    /// Which files were not made, and why.
    #[must_use]
    pub fn lost(&self) -> &Told {
        &self.lost
    }

    /// Makes the file empty, at its path or by its number.
    fn begin(&mut self, file: &LeftFile) {
        let path = shown(&file.path);
        let source = match self.create(&path, &file.path) {
            Ok(open) => return self.open = Some(open),
            Err(source) => source,
        };
        let name = by_number(self.number);
        match self.create_in(&path, &[], name.clone()) {
            Ok(open) => {
                self.open = Some(open);
                self.elsewhere.add(KeepError::Elsewhere { path, name, source });
            }
            Err(source) => self.lost.add(KeepError::Lost { path, source }),
        }
    }

    fn create(&mut self, shown_path: &str, path: &[u8]) -> io::Result<Open> {
        if shown_path.len() > LONGEST {
            return Err(Errno::NAMETOOLONG.into());
        }
        let names = names(path).ok_or(Errno::INVAL)?;
        let mut names: Vec<String> = names.into_iter().map(shown).collect();
        let name = names.pop().ok_or(Errno::INVAL)?;
        self.create_in(shown_path, &names, name)
    }

    /// Makes an empty file of this name where nothing is, with the folders above. No link is followed, and none is ever made.
    fn create_in(&mut self, path: &str, above: &[String], name: String) -> io::Result<Open> {
        let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut folder = openat(&self.root.open, ".", how, Mode::empty())?;
        for name in above {
            folder = match openat(&folder, name, how, Mode::empty()) {
                Err(Errno::NOENT) if self.folders == MOST_FOLDERS => {
                    return Err(io::Error::other(format!("{MOST_FOLDERS} folders have been made")));
                }
                Err(Errno::NOENT) => {
                    mkdirat(&folder, name, OF_A_FOLDER)?;
                    self.folders += 1;
                    openat(&folder, name, how, Mode::empty())?
                }
                opened => opened?,
            };
        }
        let how = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&folder, &name, how, OF_A_FILE)?.into();
        Ok(Open { path: path.to_owned(), folder, name, file })
    }

    /// Removes the file that is being written.
    fn remove(&mut self) -> Option<Open> {
        let open = self.open.take()?;
        // What cannot be removed is there in part.
        let _ = unlinkat(&open.folder, &open.name, AtFlags::empty());
        Some(open)
    }
}

impl Told {
    fn add(&mut self, error: KeepError) {
        if self.first.len() < MOST_TOLD {
            self.first.push(error);
        } else {
            self.more += 1;
        }
    }
}

/// The name of a file whose path cannot be made: the path is taken, or too long, or there are too many folders. The guest chooses
/// paths, and none of a guest's is shown like this name.
fn by_number(number: u64) -> String {
    format!("\\file-{number}")
}

/// A name or a path as a person may see it. A file's name here is that, so that none acts on a terminal on which it is listed.
fn shown(path: &[u8]) -> String {
    Escaped(path).to_string()
}

#[cfg(test)]
mod tests;
