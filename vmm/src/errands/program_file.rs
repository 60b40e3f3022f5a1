//! The file of a program in the guest, opened and read by its own kernel.

use super::caller::{Caller, Failed};
use super::functions::error;
use probe_engine::addr::Gva;
use probe_engine::linux::partial_file::PartialFile;
use probe_engine::linux::program_file::{FoundPlace, Looked, identity, look};
use probe_engine::linux::program_place::{KnownFile, ProgramPlace};
use probe_engine::linux::uprobes::UprobeCalls;
use probe_engine::paging::PageFault;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long reading a file may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Memory of the guest's for as long as steps are carried out: a `struct path`, then a name, then how far a file is read, and what is
/// read.
pub(super) struct Buffer(pub(super) Gva);

impl Buffer {
    const PATH: u64 = 0;
    const NAME: u64 = 64;
    /// The longest path with its NUL (PATH_MAX).
    pub(super) const LONGEST: usize = 4096;
    const POSITION: u64 = Self::NAME + Self::LONGEST as u64;
    const BYTES: u64 = 8192;
    /// Bytes that are read at a time.
    const CHUNK: u64 = 64 << 10;
    pub(super) const SIZE: u64 = Self::BYTES + Self::CHUNK;

    pub(super) fn path(&self) -> Gva {
        self.0.add(Self::PATH)
    }

    /// Puts a `struct path` there.
    pub(super) fn put_path(&self, caller: &Caller, path: [u64; 2]) -> Result<(), PageFault> {
        let bytes: Vec<u8> = path.iter().flat_map(|word| word.to_le_bytes()).collect();
        caller.memory().write(self.path(), &bytes)
    }

    pub(super) fn name(&self) -> Gva {
        self.0.add(Self::NAME)
    }

    fn position(&self) -> Gva {
        self.0.add(Self::POSITION)
    }

    fn bytes(&self) -> Gva {
        self.0.add(Self::BYTES)
    }
}

/// Where a place is.
pub(super) enum Places {
    /// So many bytes from the file's start.
    One(u64),
    /// It stands for these.
    Several(FoundPlaces),
}

/// The places that one stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundPlaces {
    pub(crate) all: Vec<FoundPlace>,
    /// The file in which they were found.
    pub(crate) file: KnownFile,
}

/// A program whose file is open.
pub(super) struct Program {
    /// `struct path`
    pub(super) path: [u64; 2],
    /// The inode of which processes have the pages.
    pub(super) inode: u64,
    /// `struct file`
    pub(super) file: u64,
    known: PartialFile,
}

impl Program {
    /// Opens the file at `path`, which lies in `buffer` and is held.
    pub(super) fn open(
        caller: &Caller,
        calls: &UprobeCalls,
        buffer: &Buffer,
        path: [u64; 2],
    ) -> Result<Self, Failed> {
        /// include/uapi/linux/stat.h
        const TYPE: u64 = 0o170_000;
        const REGULAR: u64 = 0o100_000;
        /// `O_RDONLY | O_LARGEFILE`
        const FLAGS: u64 = 0o100_000;
        let memory = caller.memory();
        let word = |at: u64| memory.read_u64(Gva(at));
        let dentry = path.get((calls.path_dentry / 8) as usize).copied().unwrap_or(0);
        let real = Self::real(caller, calls, dentry)?;
        let inode = word(real.wrapping_add(calls.dentry_inode))?;
        let mode = word(inode.wrapping_add(calls.inode_mode))?;
        if mode & TYPE != REGULAR {
            return Err(Failed::Refused("it is no regular file".to_owned()));
        }
        let size = word(inode.wrapping_add(calls.inode_size))?;
        let known =
            PartialFile::new(size).ok_or_else(|| Failed::Refused("its file is too large".to_owned()))?;
        let cred = calls.cred.add(caller.slide).0;
        let file = caller.call(calls.dentry_open, &[buffer.path().0, FLAGS, cred])?;
        match error(file) {
            Some(error) => Err(Failed::Refused(format!("the guest does not open its file: {error}"))),
            None => Ok(Self { path, inode, file, known }),
        }
    }

    /// The `struct dentry` of which processes have the pages: behind an overlay it is another one (include/linux/dcache.h, `d_real`).
    fn real(caller: &Caller, calls: &UprobeCalls, dentry: u64) -> Result<u64, Failed> {
        let memory = caller.memory();
        let word = |at: u64| memory.read_u64(Gva(at));
        let operations = word(dentry.wrapping_add(calls.dentry_operations))?;
        let real = match operations {
            0 => 0,
            operations => word(operations.wrapping_add(calls.real))?,
        };
        if real == 0 {
            return Ok(dentry);
        }
        // The second argument is 0 whatever it is: no inode, or D_REAL_DATA.
        let found = caller.call(Gva(real.wrapping_sub(caller.slide)), &[dentry, 0])?;
        match Gva(found).is_kernels() && error(found).is_none() {
            true => Ok(found),
            false => Err(Failed::Refused("the guest does not find its file behind an overlay".to_owned())),
        }
    }

    /// Where the place is in the file, in bytes, or those are that it stands for.
    pub(super) fn find(
        &mut self,
        caller: &Caller,
        calls: &UprobeCalls,
        buffer: &Buffer,
        place: &ProgramPlace,
    ) -> Result<Places, Failed> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            match look(&self.known, &place.at, place.known.as_ref())
                .map_err(|error| Failed::Refused(error.to_string()))?
            {
                Looked::Found(places) if place.at.is_several() => {
                    return Ok(Places::Several(FoundPlaces { all: places, file: identity(&self.known) }));
                }
                Looked::Found(places) => {
                    let place = places.first().ok_or_else(|| Failed::Refused("there is none".to_owned()))?;
                    return Ok(Places::One(place.offset));
                }
                Looked::Needs(part) => self.read(caller, calls, buffer, part)?,
            }
        }
        Err(Failed::Refused("it takes too long to read its file".to_owned()))
    }

    /// Reads a part of the file. What is not there any more is zeros.
    fn read(
        &mut self,
        caller: &Caller,
        calls: &UprobeCalls,
        buffer: &Buffer,
        part: Range<u64>,
    ) -> Result<(), Failed> {
        let mut at = part.start;
        let deadline = Instant::now() + PATIENCE;
        while at < part.end && Instant::now() < deadline {
            let count = (part.end - at).min(Buffer::CHUNK);
            caller.memory().write(buffer.position(), &at.to_le_bytes())?;
            let args = [self.file, buffer.bytes().0, count, buffer.position().0];
            let read = caller.call(calls.kernel_read, &args)?;
            if let Some(error) = error(read) {
                return Err(Failed::Refused(format!("the guest does not read its file: {error}")));
            }
            let mut bytes = vec![0; count as usize];
            let (there, _) = bytes.split_at_mut(read.min(count) as usize);
            caller.memory().read(buffer.bytes(), there)?;
            self.known.put(at, &bytes);
            at += count;
        }
        Ok(())
    }
}
