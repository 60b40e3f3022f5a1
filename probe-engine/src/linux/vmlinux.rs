//! The kernel's own ELF file, as unpacked from a boot image.
//!
//! It is an ordinary static ELF-64 file (arch/x86/kernel/vmlinux.lds.S) without a symbol table. Its program headers
//! give each part a virtual and a physical link-time address, and its entry point is a physical address.

use std::fmt;
use std::ops::Range;

use object::Endianness;
use object::elf::{
    ELFDATA2LSB, EM_X86_64, FileHeader64, NT_GNU_BUILD_ID, PF_X, PT_LOAD, SHF_ALLOC, SHF_EXECINSTR,
    SHF_WRITE, SectionHeader64,
};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};

use super::read::u32_at;
use crate::addr::{Gpa, Gva};

/// Sections of code that the kernel frees once it has booted (`__init_begin` to `__init_end`). `.exit.text` is
/// among them: what is built in never exits.
const INIT_TEXT: [&str; 4] = [".init.text", ".exit.text", ".altinstr_replacement", ".altinstr_aux"];
/// Most sections that are kept; Debian's kernels have 45.
const MOST_SECTIONS: usize = 512;
/// Most segments that are loaded; kernels have 5. Every look-up of an address goes through them.
const MOST_SEGMENTS: usize = 64;
/// Longest section name that is kept, in bytes.
const LONGEST_NAME: usize = 64;

/// A file that is not a kernel image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum VmlinuxError {
    /// The ELF structures do not hold.
    #[error("not a kernel image: {0}")]
    Elf(#[from] object::read::Error),
    /// An ELF file for something else.
    #[error("not a kernel image: an ELF file, but not for x86-64")]
    OtherMachine,
    /// A part lies outside the file or the address space.
    #[error("damaged kernel image: the part for {0} is not inside the file")]
    Outside(Gva),
    /// Far more sections than any kernel has.
    #[error("damaged kernel image: it has more than {MOST_SECTIONS} sections")]
    ManySections,
    /// Far more segments than any kernel has.
    #[error("damaged kernel image: it has more than {MOST_SEGMENTS} segments")]
    ManySegments,
    /// Nothing to run.
    #[error("not a kernel image: it has no .text section in an executable segment")]
    NoText,
}

/// A part of the image that is loaded (PT_LOAD).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadSegment {
    /// Link-time virtual addresses, memory that is zero at first included.
    pub range: Range<Gva>,
    /// Link-time physical address of its start.
    pub phys: Gpa,
    /// Whether it may be executed.
    pub executable: bool,
    file: Range<usize>,
}

impl LoadSegment {
    /// Link-time physical address of its end, memory that is zero at first included.
    #[must_use]
    pub fn phys_end(&self) -> Gpa {
        Gpa(self.phys.0.saturating_add(self.range.end.0.saturating_sub(self.range.start.0)))
    }
}

/// A section that occupies memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section<'a> {
    /// Its name, the leading dot included.
    pub name: &'a str,
    /// Link-time virtual addresses.
    pub range: Range<Gva>,
    /// Whether it holds code, and nothing else.
    pub executable: bool,
    /// Its contents; empty for sections that are zero at first, such as `.bss`.
    pub bytes: &'a [u8],
}

#[derive(Debug, Clone)]
struct SectionEntry {
    name: String,
    range: Range<Gva>,
    executable: bool,
    file: Range<usize>,
}

/// A kernel image and what its headers say.
#[derive(Clone)]
pub struct Vmlinux {
    file: Vec<u8>,
    entry: Gpa,
    text_start: Gva,
    segments: Vec<LoadSegment>,
    sections: Vec<SectionEntry>,
    /// Where the ELF structures end in the file.
    end: usize,
}

impl fmt::Debug for Vmlinux {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Vmlinux");
        debug.field("text_start", &self.text_start).field("segments", &self.segments).finish_non_exhaustive()
    }
}

impl Vmlinux {
    /// Reads the headers of an unpacked kernel and keeps its bytes.
    ///
    /// # Errors
    /// [`VmlinuxError`] when the file is no x86-64 kernel, or its headers point out of it.
    pub fn parse(file: Vec<u8>) -> Result<Self, VmlinuxError> {
        let data = file.as_slice();
        let header = FileHeader64::<Endianness>::parse(data)?;
        if header.e_ident().data != ELFDATA2LSB {
            return Err(VmlinuxError::OtherMachine);
        }
        let endian = header.endian()?;
        if header.e_machine(endian) != EM_X86_64 {
            return Err(VmlinuxError::OtherMachine);
        }
        let mut end = header.e_ehsize(endian).into();
        let mut segments = Vec::new();
        for segment in header.program_headers(endian, data)? {
            if segment.p_type(endian) != PT_LOAD {
                continue;
            }
            if segments.len() == MOST_SEGMENTS {
                return Err(VmlinuxError::ManySegments);
            }
            let start = Gva(segment.p_vaddr(endian));
            let file = file_range(data, start, Some(segment.file_range(endian)))?;
            end = file.end.max(end);
            segments.push(LoadSegment {
                range: memory_range(start, segment.p_memsz(endian))?,
                phys: Gpa(segment.p_paddr(endian)),
                executable: segment.p_flags(endian) & PF_X != 0,
                file,
            });
        }
        let table = header.sections(endian, data)?;
        let headers = header
            .e_shoff(endian)
            .saturating_add((table.len() * size_of::<SectionHeader64<Endianness>>()) as u64);
        // The table was read, so that its end is inside the file.
        end = end.max(headers as usize);
        let mut sections = Vec::new();
        for section in table.iter() {
            if let Some((offset, len)) = section.file_range(endian) {
                end = file_range(data, Gva(section.sh_addr(endian)), Some((offset, len)))?.end.max(end);
            }
            let flags = section.sh_flags(endian);
            let name = table.section_name(endian, section)?;
            let Ok(name) = str::from_utf8(name) else { continue };
            if flags & u64::from(SHF_ALLOC) == 0 || name.len() > LONGEST_NAME {
                continue;
            }
            if sections.len() == MOST_SECTIONS {
                return Err(VmlinuxError::ManySections);
            }
            let start = Gva(section.sh_addr(endian));
            sections.push(SectionEntry {
                name: name.to_owned(),
                range: memory_range(start, section.sh_size(endian))?,
                // The template of kexec's relocation code makes all of 7.2's .data executable by name; no CPU runs it there.
                executable: flags & u64::from(SHF_EXECINSTR | SHF_WRITE) == u64::from(SHF_EXECINSTR),
                file: file_range(data, start, section.file_range(endian))?,
            });
        }
        let has_text = sections.iter().any(|section| section.name == ".text" && section.executable);
        let text_start =
            segments.iter().find(|segment| segment.executable).map(|segment| segment.range.start);
        let (true, Some(text_start)) = (has_text, text_start) else { return Err(VmlinuxError::NoText) };
        let entry = Gpa(header.e_entry(endian));
        Ok(Self { entry, text_start, segments, sections, end, file })
    }

    /// The whole file.
    #[must_use]
    pub fn file(&self) -> &[u8] {
        &self.file
    }

    /// The whole file, which is all that is left of it.
    #[must_use]
    pub fn into_file(self) -> Vec<u8> {
        self.file
    }

    /// What follows the ELF file in the same bytes: relocations, in a kernel that can be moved.
    #[must_use]
    pub fn trailer(&self) -> &[u8] {
        self.file.get(self.end..).unwrap_or_default()
    }

    /// The link-time physical address at which the kernel is entered.
    #[must_use]
    pub fn entry(&self) -> Gpa {
        self.entry
    }

    /// The link-time address of `_text`, where the first executable segment begins.
    #[must_use]
    pub fn text_start(&self) -> Gva {
        self.text_start
    }

    /// The loaded parts, in the file's order.
    #[must_use]
    pub fn segments(&self) -> &[LoadSegment] {
        &self.segments
    }

    /// A segment's bytes in the file; memory behind them is zero.
    #[must_use]
    pub fn segment_bytes(&self, segment: &LoadSegment) -> &[u8] {
        self.file.get(segment.file.clone()).unwrap_or_default()
    }

    /// The bytes that are loaded at the link-time physical address `at`; `None` where the file has none for them all.
    pub(super) fn loaded_mut<const LEN: usize>(&mut self, at: Gpa) -> Option<&mut [u8; LEN]> {
        let Self { file, segments, .. } = self;
        segments
            .iter()
            .find_map(|segment| {
                let offset = usize::try_from(at.0.checked_sub(segment.phys.0)?).ok()?;
                let start =
                    segment.file.start.checked_add(offset).filter(|start| *start < segment.file.end)?;
                Some(start..start.checked_add(LEN).filter(|end| *end <= segment.file.end)?)
            })
            .and_then(|range| file.get_mut(range)?.first_chunk_mut())
    }

    /// The sections that occupy memory, in the file's order.
    pub fn sections(&self) -> impl Iterator<Item = Section<'_>> {
        self.sections.iter().map(|entry| Section {
            name: &entry.name,
            range: entry.range.clone(),
            executable: entry.executable,
            bytes: self.file.get(entry.file.clone()).unwrap_or_default(),
        })
    }

    /// The section of that name, the first if there are several.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<Section<'_>> {
        self.sections().find(|section| section.name == name)
    }

    /// `len` bytes at a link-time address; `None` where the file has no such bytes.
    #[must_use]
    pub fn bytes_at(&self, at: Gva, len: usize) -> Option<&[u8]> {
        self.bytes_from(at)?.get(..len)
    }

    /// All bytes of a range of link-time addresses; `None` where the file has not all of them.
    #[must_use]
    pub fn bytes(&self, range: &Range<Gva>) -> Option<&[u8]> {
        self.bytes_at(range.start, usize::try_from(range.end.offset_from(range.start)?).ok()?)
    }

    /// The bytes from a link-time address to the end of its segment; `None` where the file has none.
    #[must_use]
    pub fn bytes_from(&self, at: Gva) -> Option<&[u8]> {
        self.segments.iter().find_map(|segment| {
            let offset = usize::try_from(at.offset_from(segment.range.start)?).ok()?;
            self.segment_bytes(segment).get(offset..).filter(|bytes| !bytes.is_empty())
        })
    }

    /// What the linker has computed of the whole kernel to tell it from all others (CONFIG_BUILD_SALT, `--build-id`): the
    /// note `GNU` of type NT_GNU_BUILD_ID in `.notes`.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        // Elf64_Nhdr {u32 namesz, u32 descsz, u32 type}, name and contents behind it, each filled up to 4 bytes.
        let mut rest =
            self.file.get(self.sections.iter().find(|section| section.name == ".notes")?.file.clone())?;
        loop {
            let [name_len, len, kind] = [0, 4, 8].map(|at| u32_at(rest, at));
            let (name_len, len) = (name_len? as usize, len? as usize);
            let name = rest.get(12..)?.get(..name_len)?;
            let start = 12 + name_len.next_multiple_of(4);
            let contents = rest.get(start..)?.get(..len)?;
            if kind == Some(NT_GNU_BUILD_ID) && name == b"GNU\0" && !contents.is_empty() {
                return Some(contents);
            }
            rest = rest.get(start + len.next_multiple_of(4)..)?;
        }
    }

    /// Whether code lies at a link-time address, init code included.
    #[must_use]
    pub fn is_text(&self, at: Gva) -> bool {
        self.sections.iter().any(|section| section.executable && at.is_in(&section.range))
    }

    /// Whether code lies at a link-time address that is freed after boot.
    #[must_use]
    pub fn is_init_text(&self, at: Gva) -> bool {
        let init = |section: &&SectionEntry| INIT_TEXT.contains(&section.name.as_str());
        self.sections.iter().filter(init).any(|section| section.executable && at.is_in(&section.range))
    }
}

fn memory_range(start: Gva, len: u64) -> Result<Range<Gva>, VmlinuxError> {
    start.0.checked_add(len).map(|end| start..Gva(end)).ok_or(VmlinuxError::Outside(start))
}

/// Offset and length in the file, checked against it.
fn file_range(file: &[u8], start: Gva, range: Option<(u64, u64)>) -> Result<Range<usize>, VmlinuxError> {
    let Some((offset, len)) = range else { return Ok(0..0) };
    let end = offset.checked_add(len).filter(|end| *end <= file.len() as u64);
    let end = end.ok_or(VmlinuxError::Outside(start))?;
    Ok(offset as usize..end as usize)
}

#[cfg(test)]
mod tests;
