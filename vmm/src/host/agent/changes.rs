//! What a command has made or changed in its guest's root, sent when the command has ended.

use super::super::protocol::{FromAgent, Outbox, ProtocolError};
use super::job::CHUNK;
use super::port::AgentPort;
use crate::dropped::{
    DEEPEST, FileKind, LeftFile, MOST_FILES, MOST_IN_ALL, MOST_OF_A_FILE, MOST_OF_NAMES, Part, Sent, names,
    write,
};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fgetxattr, fstat, open, openat, readlinkat, statat,
};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::CStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};

/// So many names are looked at: a command may make no end of folders.
const MOST_LOOKED_AT: usize = 1 << 20;
/// So much of a file is read at a time, in bytes.
const PIECE: usize = 16 << 10;
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Folders in memory that have what is changed, and nothing else.
#[derive(Default)]
pub(crate) struct Changes(Vec<Layer>);

struct Layer {
    /// Where the folder is in the root.
    at: &'static str,
    folder: OwnedFd,
    device: u64,
    /// What lies below, where it is a layer of an overlay.
    lower: Option<OwnedFd>,
}

/// What is sent one after the other, of all layers: a file of which there is something to lose comes before what costs its maker nothing,
/// so that the latter does not use up what may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Files in which each byte takes memory of the guest.
    Full,
    /// Files with holes.
    Sparse,
    /// Empty files, links, and what else has no contents.
    Names,
    /// What is gone.
    Removed,
}

impl Round {
    const ALL: [Self; 4] = [Self::Full, Self::Sparse, Self::Names, Self::Removed];

    fn of(kind: FileKind, metadata: &Stat) -> Self {
        /// `st_blocks` counts these (stat(2)).
        const BLOCK: i64 = 512;
        match kind {
            FileKind::Removed => Self::Removed,
            FileKind::Regular if metadata.st_size == 0 => Self::Names,
            FileKind::Regular if metadata.st_blocks.saturating_mul(BLOCK) < metadata.st_size => Self::Sparse,
            FileKind::Regular => Self::Full,
            FileKind::Link | FileKind::Fifo | FileKind::Socket | FileKind::Device => Self::Names,
        }
    }
}

impl Changes {
    /// What is changed at `at` of the root lies in `folder`.
    pub(crate) fn add(&mut self, at: &'static str, folder: &str) -> io::Result<()> {
        self.add_layer(at, folder, None)
    }

    /// What is changed of the root, which is what lies in `lower`, lies in the layer `upper` of an overlay.
    pub(crate) fn add_overlay(&mut self, upper: &str, lower: &str) -> io::Result<()> {
        self.add_layer("", upper, Some(open(lower, FOLDER, Mode::empty())?))
    }

    fn add_layer(&mut self, at: &'static str, folder: &str, lower: Option<OwnedFd>) -> io::Result<()> {
        let folder = open(folder, FOLDER, Mode::empty())?;
        let device = fstat(&folder)?.st_dev;
        self.0.push(Layer { at, folder, device, lower });
        Ok(())
    }

    /// Sends all of it as the output of this number. What is being changed meanwhile may be sent in part.
    pub(super) fn send(&self, outbox: &Outbox<AgentPort>, output: usize) -> Result<(), ProtocolError> {
        let number = u32::try_from(output).map_err(io::Error::other)?;
        let out = BufWriter::with_capacity(CHUNK, Output { outbox, number });
        let mut sender = Sender::to(out);
        sender.all(self)?;
        Ok(sender.out.flush()?)
    }
}

/// Ends what the command has left running, so that its files stay as they are. It is asked for by process 1, for which that is everybody
/// else (kill(2)): nobody hides, and nobody who comes to be meanwhile is left.
pub(super) fn end_others() {
    if std::process::id() == 1 {
        // There may be nobody.
        let _ = kill_process_group(Pid::INIT, Signal::KILL);
    }
}

impl Layer {
    /// Whether the folder was made where something else had been of the root as it was. Of that nothing else tells: an overlay marks the
    /// new folder as one below which it does not look (Documentation/filesystems/overlayfs.rst, "whiteouts and opaque directories").
    fn hides(&self, folder: &OwnedFd, path: &[u8]) -> bool {
        let mut value = [0];
        let is_opaque = fgetxattr(folder, "trusted.overlay.opaque", &mut value).is_ok() && value == *b"y";
        // So are folders marked where nothing had been.
        is_opaque && self.has_replaced(path)
    }

    /// Whether something was at `path` of the root as it was.
    fn has_replaced(&self, path: &[u8]) -> bool {
        self.lower.as_ref().is_some_and(|lower| statat(lower, path, AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }
}

fn size(metadata: &Stat) -> u64 {
    u64::try_from(metadata.st_size).unwrap_or(0)
}

/// The output, in messages that are one write each.
struct Output<'a> {
    outbox: &'a Outbox<AgentPort>,
    number: u32,
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = bytes.get(..CHUNK).unwrap_or(bytes);
        let message = FromAgent::Output(self.number, bytes).encode();
        message.and_then(|message| self.outbox.send(&message)).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct Sender<W> {
    out: W,
    round: Round,
    /// How many names this round has looked at.
    looked_at: usize,
    files: usize,
    bytes: u64,
    /// How many bytes paths and targets of links have.
    named: usize,
    /// Whether something is not told.
    has_more: bool,
}

impl<W: Write> Sender<W> {
    fn to(out: W) -> Self {
        Self { out, round: Round::Full, looked_at: 0, files: 0, bytes: 0, named: 0, has_more: false }
    }

    fn all(&mut self, changes: &Changes) -> io::Result<()> {
        for round in Round::ALL {
            self.round = round;
            self.looked_at = 0;
            changes.0.iter().try_for_each(|layer| self.layer(layer))?;
        }
        write(&mut self.out, &Part::End { has_more: self.has_more })
    }

    fn layer(&mut self, layer: &Layer) -> io::Result<()> {
        let root = openat(&layer.folder, ".", FOLDER, Mode::empty()).and_then(Dir::new)?;
        let mut open = vec![(root, layer.at.as_bytes().to_vec())];
        while let Some((folder, above)) = open.last_mut() {
            let Some(Ok(entry)) = folder.read() else {
                open.pop();
                continue;
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.looked_at += 1;
            if self.looked_at > MOST_LOOKED_AT {
                self.has_more = true;
                return Ok(());
            }
            let folder = folder.fd()?;
            let Ok(metadata) = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            // What is mounted there was no part of the root.
            if metadata.st_dev != layer.device {
                continue;
            }
            let path = match above.is_empty() {
                true => name.to_bytes().to_vec(),
                false => [above, &b"/"[..], name.to_bytes()].concat(),
            };
            if FileType::from_raw_mode(metadata.st_mode) != FileType::Directory {
                self.file(layer, (folder, name), path, &metadata)?;
                continue;
            }
            let Ok(below) = openat(folder, name, FOLDER, Mode::empty()) else {
                self.has_more = true;
                continue;
            };
            let is_removed = self.round == Round::Removed && layer.hides(&below, &path);
            if is_removed && self.begin(path.clone(), (FileKind::Removed, false), &metadata, 0)? {
                write(&mut self.out, &Part::Sent(Sent::Whole))?;
            }
            match Dir::new(below) {
                Ok(below) if open.len() < DEEPEST => open.push((below, path)),
                _ => self.has_more = true,
            }
        }
        Ok(())
    }

    fn file(
        &mut self,
        layer: &Layer,
        (folder, name): (BorrowedFd<'_>, &CStr),
        path: Vec<u8>,
        metadata: &Stat,
    ) -> io::Result<()> {
        let kind = match FileType::from_raw_mode(metadata.st_mode) {
            FileType::RegularFile => FileKind::Regular,
            FileType::Symlink => FileKind::Link,
            FileType::Fifo => FileKind::Fifo,
            FileType::Socket => FileKind::Socket,
            // So an overlay notes that a file is gone (Documentation/filesystems/overlayfs.rst).
            FileType::CharacterDevice if metadata.st_rdev == 0 => FileKind::Removed,
            _ => FileKind::Device,
        };
        if Round::of(kind, metadata) != self.round {
            return Ok(());
        }
        let target = (kind == FileKind::Link).then(|| readlinkat(folder, name, Vec::new()));
        let length = target.iter().flatten().map(|target| target.count_bytes()).sum();
        let is_new = !layer.has_replaced(&path);
        if !self.begin(path, (kind, is_new), metadata, length)? {
            return Ok(());
        }
        let sent = match target {
            None if kind == FileKind::Regular => self.contents(folder, name, size(metadata))?,
            None => Sent::Whole,
            Some(Ok(target)) => {
                write(&mut self.out, &Part::Bytes(target.to_bytes()))?;
                Sent::Whole
            }
            Some(Err(_)) => Sent::Unread,
        };
        write(&mut self.out, &Part::Sent(sent))
    }

    /// Says that a file comes, with a target of so many bytes if the file is a link. Not where there is no room for another one.
    fn begin(
        &mut self,
        path: Vec<u8>,
        (kind, is_new): (FileKind, bool),
        metadata: &Stat,
        target: usize,
    ) -> io::Result<bool> {
        let named = self.named + path.len() + target;
        if self.files == MOST_FILES || named > MOST_OF_NAMES || names(&path).is_none() {
            self.has_more = true;
            return Ok(false);
        }
        self.files += 1;
        self.named = named;
        let seconds = u64::try_from(metadata.st_mtime).unwrap_or(0);
        let modified_ns = seconds.saturating_mul(1_000_000_000).saturating_add(metadata.st_mtime_nsec);
        let (size, mode) = (size(metadata), metadata.st_mode & 0o7777);
        write(&mut self.out, &Part::Begin(&LeftFile { path, kind, is_new, mode, size, modified_ns }))?;
        Ok(true)
    }

    fn contents(&mut self, folder: BorrowedFd<'_>, name: &CStr, size: u64) -> io::Result<Sent> {
        if size > MOST_OF_A_FILE {
            return Ok(Sent::TooLarge);
        }
        if self.bytes.saturating_add(size) > MOST_IN_ALL {
            return Ok(Sent::NoRoom);
        }
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(folder, name, how, Mode::empty()) else { return Ok(Sent::Unread) };
        let is_regular =
            fstat(&file).is_ok_and(|now| FileType::from_raw_mode(now.st_mode) == FileType::RegularFile);
        if !is_regular {
            return Ok(Sent::Unread);
        }
        let mut file = File::from(file).take(size);
        let mut piece = vec![0; PIECE];
        loop {
            match file.read(&mut piece) {
                Ok(0) => return Ok(Sent::Whole),
                Ok(length) => {
                    self.bytes += length as u64;
                    write(&mut self.out, &Part::Bytes(piece.get(..length).unwrap_or_default()))?;
                }
                Err(_) => return Ok(Sent::Unread),
            }
        }
    }
}

#[cfg(test)]
mod tests;
