//! What is known of a guest's files, as they pass by on their way to a folder.

use crate::record::{DroppedEnd, DroppedLine};
use crate::wall_clock;
use sha2::{Digest, Sha256};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vmm::dropped::{FileKind, LeftFile, Part, StreamReader};

/// Hands on what is written to it, and knows which files that are.
#[derive(Clone)]
pub(crate) struct DroppedFiles(Arc<Mutex<Passing>>);

struct Passing {
    to: Box<dyn Write + Send>,
    reader: StreamReader,
    listed: Listed,
}

#[derive(Default)]
struct Listed {
    /// How many there are, with the one that is open.
    number: u64,
    open: Option<Open>,
    lines: Vec<DroppedLine>,
    has_more: bool,
    /// Why the rest is not known.
    failure: Option<String>,
}

/// A file of which not all has come.
struct Open {
    file: LeftFile,
    /// When it began to come, in nanoseconds since 1970.
    wall_ns: u64,
    size: u64,
    digest: Sha256,
    /// Where a link leads.
    target: Vec<u8>,
}

impl DroppedFiles {
    /// All goes on to `to`.
    pub(crate) fn going_to(to: impl Write + Send + 'static) -> Self {
        let (to, reader, listed) = (Box::new(to), StreamReader::default(), Listed::default());
        Self(Arc::new(Mutex::new(Passing { to, reader, listed })))
    }

    /// Takes those of a guest that was started at `started`, in nanoseconds since 1970: a line for each, in order of their paths, and one
    /// for all.
    pub(crate) fn take_lines(&self, started: u64) -> (Vec<DroppedLine>, DroppedEnd) {
        let mut passing = self.lock();
        let Listed { lines, has_more, failure, .. } = std::mem::take(&mut passing.listed);
        let mut lines: Vec<_> = lines.into_iter().map(|line| line.since(started)).collect();
        lines.sort_by(|one, other| one.path().cmp(other.path()));
        let cut = "the guest has ended, or was ended, before it had sent all";
        let failure = failure.or((!passing.reader.is_whole()).then(|| cut.to_owned()));
        let end = DroppedEnd::of(&lines, has_more, failure);
        (lines, end)
    }

    fn lock(&self) -> MutexGuard<'_, Passing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for DroppedFiles {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut passing = self.lock();
        let Passing { to, reader, listed } = &mut *passing;
        let read = reader.read(bytes, |part| {
            listed.take(&part);
            Ok(())
        });
        if let Err(error) = read {
            listed.failure = Some(error.to_string());
        }
        to.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lock().to.flush()
    }
}

impl Listed {
    fn take(&mut self, part: &Part<'_>) {
        match part {
            Part::Begin(file) => {
                self.number += 1;
                self.open = Some(Open {
                    file: (*file).clone(),
                    wall_ns: wall_clock::now_outside(),
                    size: 0,
                    digest: Sha256::new(),
                    target: Vec::new(),
                });
            }
            Part::Bytes(bytes) => {
                let Some(open) = &mut self.open else { return };
                open.size += bytes.len() as u64;
                match open.file.kind {
                    FileKind::Link => open.target.extend_from_slice(bytes),
                    _ => open.digest.update(bytes),
                }
            }
            Part::Sent(sent) => {
                let Some(Open { file, wall_ns, size, digest, target }) = self.open.take() else { return };
                let digest = digest.finalize();
                self.lines.push(DroppedLine::of(&file, self.number, *sent, wall_ns, size, &digest, &target));
            }
            Part::End { has_more } => self.has_more = *has_more,
        }
    }
}
