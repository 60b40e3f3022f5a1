//! The memory in an ELF core: as QEMU's `dump-guest-memory` writes it, `virsh dump --memory-only`, `makedumpfile -E`, or a kernel that has
//! crashed (`/proc/vmcore`).

use super::{DumpError, MOST_RANGES, Part};
use object::elf::{EM_X86_64, ET_CORE, FileHeader64, PT_LOAD, PT_NOTE};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};
use probe_engine::addr::Gpa;
use probe_engine::scan::processors::ProcessorState;
use std::fs::File;

/// Most processors of a guest.
const MOST_PROCESSORS: usize = 4096;
/// All notes of a file together, in bytes.
const MOST_NOTES: u64 = 16 << 20;
/// Whose notes say what processors are set to.
const QEMU: &[u8] = b"QEMU";

/// What an ELF core has.
pub(super) struct Core {
    pub(super) parts: Vec<Part>,
    pub(super) processors: Vec<ProcessorState>,
}

pub(super) fn read(file: &File) -> Result<Core, DumpError> {
    let length = file.metadata()?.len();
    let cache = ReadCache::new(file);
    let header = FileHeader64::<Endianness>::parse(&cache).map_err(|_| DumpError::Damaged)?;
    let endian = header.endian().map_err(|_| DumpError::Damaged)?;
    if header.e_machine(endian) != EM_X86_64 {
        return Err(DumpError::Format("it is of another processor"));
    }
    if header.e_type(endian) != ET_CORE {
        return Err(DumpError::Format("it is an ELF file, but no core"));
    }
    // More are said elsewhere (PN_XNUM).
    if usize::from(header.e_phnum(endian)) > MOST_RANGES {
        return Err(DumpError::Ranges);
    }
    let segments = header.program_headers(endian, &cache).map_err(|_| DumpError::Damaged)?;
    let (mut parts, mut processors) = (Vec::new(), Vec::new());
    let mut noted: u64 = 0;
    for segment in segments.iter().filter(|segment| segment.p_type(endian) == PT_NOTE) {
        noted = noted.saturating_add(segment.p_filesz(endian));
        if noted > MOST_NOTES {
            break;
        }
        let mut notes = segment.notes(endian, &cache).ok().flatten();
        while let Some(note) = notes.as_mut().and_then(|notes| notes.next().ok().flatten()) {
            if note.name() == QEMU && processors.len() < MOST_PROCESSORS {
                processors.extend(processor(note.desc()));
            }
        }
    }
    for segment in segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
        let (start, offset) = (segment.p_paddr(endian), segment.p_offset(endian));
        let size = segment.p_filesz(endian);
        // What is not in the file any more would be taken for what the guest does not have.
        match offset.checked_add(size) {
            Some(whole) if whole > length => return Err(DumpError::Cut { length, whole }),
            whole => whole.ok_or(DumpError::Damaged)?,
        };
        if let Some(end) = start.checked_add(size) {
            parts.push(Part { memory: Gpa(start)..Gpa(end), offset });
        }
    }
    Ok(Core { parts, processors })
}

/// A processor by QEMU's note of it (`QEMUCPUState` of target/i386/arch_dump.c, version 1).
fn processor(note: &[u8]) -> Option<ProcessorState> {
    const RIP: usize = 0x88;
    /// `{u32 selector, u32 limit, u32 flags, u32 pad, u64 base}` of IDTR.
    const INTERRUPTS: usize = 0x170;
    /// CR0 to CR4.
    const CONTROL: usize = 0x188;
    let dword = |at: usize| Some(u32::from_le_bytes(note.get(at..at + 4)?.try_into().ok()?));
    let word = |at: usize| Some(u64::from_le_bytes(note.get(at..at + 8)?.try_into().ok()?));
    if dword(0)? != 1 {
        return None;
    }
    Some(ProcessorState {
        rip: word(RIP)?,
        cr0: word(CONTROL)?,
        cr4: word(CONTROL + 4 * 8)?,
        interrupts: (word(INTERRUPTS + 16)?, dword(INTERRUPTS + 4)?),
        calls: None,
    })
}
