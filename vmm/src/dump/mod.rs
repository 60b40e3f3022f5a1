//! The memory of a guest that runs under another monitor, or ran: a file, or what another process has. It is only read. Guests of ours are [written](CoreHead) to such files.

mod core;
mod error;
mod process;
mod written;

pub use error::DumpError;
pub use process::layouts;
pub use written::{CoreHead, NamedRegs, Notes};

use probe_engine::addr::Gpa;
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::scan::processors::ProcessorState;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// By which a file begins that is read.
const ELF: &[u8] = b"\x7fELF";
/// The same of LiME's format, whose header is before each range.
const LIME: &[u8] = b"EMiL";
/// Most ranges of one file.
const MOST_RANGES: usize = 1 << 14;
/// No guest has memory at addresses from here on.
const MOST_MEMORY: Gpa = Gpa(1 << 46);

/// Files that are refused, by how they begin, and what to do.
const REFUSED: [(&[u8], &str); 6] = [
    (
        b"KDUMP   ",
        "it is compressed (kdump): write it uncompressed, as QEMU's dump-guest-memory does without -z, -l and -s, or makedumpfile -E",
    ),
    (b"DISKDUMP", "it is compressed (diskdump): write it uncompressed, as makedumpfile -E does"),
    (
        b"makedumpfile",
        "it is compressed (kdump, flattened): write it uncompressed, as QEMU's dump-guest-memory does without -z, -l and -s",
    ),
    (
        b"QEVM",
        "it is a state of QEMU's devices and memory (savevm, migrate): write the memory by dump-guest-memory",
    ),
    (
        b"LibvirtQemudSave",
        "it is a state that libvirt has saved: write the memory by virsh dump --memory-only",
    ),
    (b"PAGEDU64", "it is a dump of Windows"),
];

/// Memory of a guest.
#[derive(Debug)]
pub struct Dump {
    file: File,
    /// Rising.
    parts: Vec<Part>,
    processors: Vec<ProcessorState>,
}

/// A range of it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    memory: Range<Gpa>,
    /// Where it begins in the file.
    offset: u64,
}

impl Dump {
    /// The memory in a file: an ELF core, LiME's format, or the bytes from physical address 0 on.
    ///
    /// # Errors
    /// [`DumpError`], a sentence's end.
    pub fn open(path: &Path) -> Result<Self, DumpError> {
        let mut file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(DumpError::NoFile);
        }
        let mut start = [0; 16];
        let read = file.read(&mut start)?;
        let start = start.get(..read).unwrap_or_default();
        if let Some((_, why)) = REFUSED.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(DumpError::Format(why));
        }
        let mut processors = Vec::new();
        let parts = if start.starts_with(ELF) {
            let core = core::read(&file)?;
            processors = core.processors;
            core.parts
        } else if start.starts_with(LIME) {
            lime(&file)?
        } else {
            vec![Part { memory: Gpa(0)..Gpa(file.metadata()?.len()), offset: 0 }]
        };
        Ok(Self { processors, ..Self::new(file, parts)? })
    }

    fn new(file: File, mut parts: Vec<Part>) -> Result<Self, DumpError> {
        parts.retain(|part| part.memory.start < part.memory.end);
        parts.sort_by_key(|part| (part.memory.start, part.memory.end));
        parts.dedup_by(|next, part| next.memory == part.memory);
        let last = parts.last().ok_or(DumpError::Empty)?;
        let overlap =
            parts.iter().zip(parts.iter().skip(1)).any(|(part, next)| next.memory.start < part.memory.end);
        if overlap || last.memory.end > MOST_MEMORY {
            return Err(DumpError::Ranges);
        }
        Ok(Self { file, parts, processors: Vec::new() })
    }

    /// Where there is memory.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<Gpa>> {
        self.parts.iter().map(|part| part.memory.clone()).collect()
    }

    /// What the guest's processors were set to, by their numbers, where the memory came with that.
    #[must_use]
    pub fn processors(&self) -> &[ProcessorState] {
        &self.processors
    }

    /// The first words in memory that begin with those `wanted`: up to the end of the line or the string, and so many bytes at `most`.
    #[must_use]
    pub fn words(&self, wanted: &[u8], most: usize) -> Option<Vec<u8>> {
        const PIECE: usize = 1 << 20;
        let mut piece = vec![0; PIECE + most];
        for part in &self.parts {
            let mut at = part.memory.start;
            while at < part.memory.end {
                let length = (part.memory.end.0 - at.0).min((PIECE + most) as u64) as usize;
                let bytes = piece.get_mut(..length)?;
                if self.read(at, bytes).is_ok()
                    && let Some(found) = find(bytes, wanted)
                {
                    let rest = bytes.get(found..)?;
                    let end = rest.iter().take(most).position(|byte| matches!(byte, 0 | b'\n'));
                    return rest.get(..end.unwrap_or(most.min(rest.len()))).map(<[u8]>::to_vec);
                }
                at = at.add(PIECE as u64);
            }
        }
        None
    }
}

/// Where `wanted` begins in `bytes`.
fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let places = bytes.iter().enumerate().filter(|(_, byte)| **byte == first);
    places.map(|(at, _)| at).find(|at| bytes.get(*at..).is_some_and(|rest| rest.starts_with(wanted)))
}

/// The ranges of a file in LiME's format: `{u32 magic, u32 version, u64 start, u64 last, u64 reserved}` before the bytes of each
/// (LiME, `lime.h`).
fn lime(file: &File) -> Result<Vec<Part>, DumpError> {
    const HEADER: usize = 32;
    let end = file.metadata()?.len();
    let (mut at, mut parts) = (0, Vec::new());
    while at < end {
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, at)?;
        let (words, _) = header.as_chunks::<8>();
        let &[magic, start, last, _] = words else { return Err(DumpError::Damaged) };
        let [start, last] = [start, last].map(u64::from_le_bytes);
        let behind = last.checked_add(1);
        let length = behind.and_then(|behind| behind.checked_sub(start));
        let offset = at + HEADER as u64;
        let (Some(length), true) = (length, magic.starts_with(LIME)) else { return Err(DumpError::Damaged) };
        if parts.len() == MOST_RANGES || length > end - offset {
            return Err(DumpError::Damaged);
        }
        parts.push(Part { memory: Gpa(start)..Gpa(start.saturating_add(length)), offset });
        at = offset + length;
    }
    Ok(parts)
}

impl PhysMemory for Dump {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        let behind = self.parts.partition_point(|part| part.memory.start <= at);
        let earlier = self.parts.get(..behind).unwrap_or_default();
        let end = Gpa(at.0.checked_add(buf.len() as u64).ok_or(NoMemory(at))?);
        let part = earlier.last().filter(|part| end <= part.memory.end).ok_or(NoMemory(at))?;
        let offset = part.offset + (at.0 - part.memory.start.0);
        self.file.read_exact_at(buf, offset).map_err(|_| NoMemory(at))
    }

    /// Nothing is written.
    fn write(&self, at: Gpa, _: &[u8]) -> Result<(), NoMemory> {
        Err(NoMemory(at))
    }

    /// Nothing is written.
    fn compare_exchange(&self, at: Gpa, _: u64, _: u64) -> Result<bool, NoMemory> {
        Err(NoMemory(at))
    }
}

#[cfg(test)]
mod tests;
