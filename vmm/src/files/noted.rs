//! What a guest has looked at and what it has opened of a folder, noted as it does, for who keeps these files.
//!
//! A note is a letter, what belongs to it, and a zero byte. The server knows a file by a number, which its lookup gives it and
//! which later requests carry.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// A server begins: numbers mean other files from now on.
const BEGIN: u8 = b'b';
/// The file of this number was found at this path.
const FOUND: u8 = b'f';
/// The file of this number was opened.
const OPENED: u8 = b'o';
/// There were more notes than are kept.
const FULL: u8 = b'x';
/// So many notes are kept: a guest may look at no end of files.
const MOST: usize = 1 << 19;
/// The number of the folder itself.
const ROOT: u64 = 1;

/// Notes them.
pub(super) struct Noted(Mutex<Notes>);

struct Notes {
    to: File,
    paths: HashMap<u64, Vec<u8>>,
    opened: BTreeSet<u64>,
    count: usize,
}

impl Noted {
    /// # Errors
    /// When nothing can be written to `to`.
    pub(super) fn begin(to: File) -> io::Result<Self> {
        let paths = HashMap::from([(ROOT, Vec::new())]);
        let mut notes = Notes { to, paths, opened: BTreeSet::new(), count: 0 };
        notes.write(&[BEGIN, 0])?;
        Ok(Self(Mutex::new(notes)))
    }

    /// The file of this number was found by this name in a folder. What is noted twice is the same.
    pub(super) fn found(&self, parent: u64, name: &[u8], file: u64) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(folder) = notes.paths.get(&parent) else { return };
        let path = if folder.is_empty() { name.to_vec() } else { [folder, &b"/"[..], name].concat() };
        if file == 0 || matches!(name, b"." | b"..") || notes.paths.get(&file) == Some(&path) {
            return;
        }
        let note = [&[FOUND], file.to_string().as_bytes(), b" ", &path, &[0]].concat();
        if notes.note(&note) {
            notes.paths.insert(file, path);
        }
    }

    /// The file of this number was opened.
    pub(super) fn opened(&self, file: u64) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let note = [&[OPENED], file.to_string().as_bytes(), &[0]].concat();
        if !notes.opened.contains(&file) && notes.note(&note) {
            notes.opened.insert(file);
        }
    }
}

impl Notes {
    /// Whether there was room for it.
    fn note(&mut self, note: &[u8]) -> bool {
        self.count += 1;
        let is_kept = self.count <= MOST;
        // Who reads the notes finds that they end.
        let _ = match self.count {
            ..=MOST => self.write(note),
            count if count == MOST + 1 => self.write(&[FULL, 0]),
            _ => Ok(()),
        };
        is_kept
    }

    fn write(&mut self, note: &[u8]) -> io::Result<()> {
        self.to.write_all(note)
    }
}

/// What a guest has looked at of a folder.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct SeenFiles {
    /// Each path below the folder, and whether the guest has opened what is there.
    pub paths: BTreeMap<PathBuf, bool>,
    /// Whether there were more of them than are kept.
    pub is_cut: bool,
}

impl SeenFiles {
    /// Reads notes. What makes no sense is passed over.
    #[must_use]
    pub fn read(notes: &[u8]) -> Self {
        let mut seen = Self::default();
        // A file may have several paths.
        let mut files = BTreeMap::<u64, (Vec<PathBuf>, bool)>::new();
        for note in notes.split(|byte| *byte == 0) {
            match note.split_first() {
                Some((&BEGIN, [])) => seen.take(&mut files),
                Some((&FULL, [])) => seen.is_cut = true,
                Some((&FOUND, rest)) => {
                    let Some(space) = rest.iter().position(|byte| *byte == b' ') else { continue };
                    let (number, path) = (rest.get(..space), rest.get(space + 1..));
                    let (Some(number), Some(path)) = (number.and_then(number_of), path) else { continue };
                    files.entry(number).or_default().0.push(OsString::from_vec(path.to_vec()).into());
                }
                Some((&OPENED, rest)) => {
                    if let Some(number) = number_of(rest) {
                        files.entry(number).or_default().1 = true;
                    }
                }
                _ => {}
            }
        }
        seen.take(&mut files);
        seen
    }

    fn take(&mut self, files: &mut BTreeMap<u64, (Vec<PathBuf>, bool)>) {
        for (paths, is_opened) in std::mem::take(files).into_values() {
            for path in paths {
                *self.paths.entry(path).or_default() |= is_opened;
            }
        }
    }
}

fn number_of(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _};

    fn read(mut file: File) -> SeenFiles {
        let mut notes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut notes).unwrap();
        SeenFiles::read(&notes)
    }

    fn paths(expected: &[(&str, bool)]) -> BTreeMap<PathBuf, bool> {
        expected.iter().map(|(path, is_opened)| (path.into(), *is_opened)).collect()
    }

    #[test]
    fn what_was_found_and_opened_is_read_again() {
        let file = tempfile::tempfile().unwrap();
        let noted = Noted::begin(file.try_clone().unwrap()).unwrap();
        noted.found(ROOT, b"etc", 2);
        noted.found(2, b"passwd", 3);
        noted.found(2, b"passwd", 3);
        noted.found(2, b"group", 4);
        noted.found(2, b".", 5);
        noted.found(9, b"nowhere", 6);
        noted.opened(3);
        // Another name of the same file.
        noted.found(ROOT, b"link \xff", 3);
        // Of another server.
        let noted = Noted::begin(file.try_clone().unwrap()).unwrap();
        noted.found(ROOT, b"home", 3);
        let mut expected =
            paths(&[("etc", false), ("etc/passwd", true), ("etc/group", false), ("home", false)]);
        expected.insert(OsString::from_vec(b"link \xff".to_vec()).into(), true);
        assert_eq!(read(file), SeenFiles { paths: expected, is_cut: false });
    }

    #[test]
    fn notes_end_where_a_guest_looks_at_no_end_of_files() {
        let file = tempfile::tempfile().unwrap();
        let noted = Noted::begin(file.try_clone().unwrap()).unwrap();
        noted.found(ROOT, b"first", 2);
        noted.0.lock().unwrap().count = MOST;
        noted.found(ROOT, b"a", 3);
        noted.found(ROOT, b"b", 4);
        noted.opened(2);
        assert_eq!(read(file), SeenFiles { paths: paths(&[("first", false)]), is_cut: true });
    }

    #[test]
    fn what_is_no_note_is_passed_over() {
        for notes in [&b""[..], b"f", b"f1", b"fx y\0", b"o\0o1\0", b"zz\0b1\0", b"f-1 a\0"] {
            assert_eq!(SeenFiles::read(notes).paths, BTreeMap::new());
        }
    }
}
