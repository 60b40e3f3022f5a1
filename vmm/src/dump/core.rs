//! The memory in an ELF core: as QEMU's `dump-guest-memory` writes it, `virsh dump --memory-only`, `makedumpfile -E`, or a kernel that has
//! crashed (`/proc/vmcore`).

use super::{DumpError, MOST_RANGES, Part};
use object::elf::{EM_X86_64, ET_CORE, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};
use probe_engine::addr::Gpa;
use std::fs::File;

pub(super) fn parts(file: &File) -> Result<Vec<Part>, DumpError> {
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
    let mut parts = Vec::new();
    for segment in segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD) {
        let (start, offset) = (segment.p_paddr(endian), segment.p_offset(endian));
        // What the file does not have any more was cut off.
        let size = segment.p_filesz(endian).min(length.saturating_sub(offset));
        if let Some(end) = start.checked_add(size) {
            parts.push(Part { memory: Gpa(start)..Gpa(end), offset });
        }
    }
    Ok(parts)
}
