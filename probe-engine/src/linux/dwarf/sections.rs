//! The sections with debugging information, unpacked where they are compressed (CONFIG_DEBUG_INFO_COMPRESSED_*).

use std::borrow::Cow;
use std::cell::OnceCell;
use std::fmt;
use std::io::Read;

use gimli::{DebugInfoOffset, Dwarf, EndianSlice, LittleEndian, SectionId};
use object::Endianness;
use object::elf::{ELFCOMPRESS_ZLIB, ELFCOMPRESS_ZSTD, FileHeader64, SHF_COMPRESSED};
use object::read::elf::{FileHeader, SectionHeader};

use super::{DwarfError, Slice};
use crate::linux::read::{u32_at, u64_at};

/// Which unit has which code: the first address, the first one behind it, and where the unit is; by address.
pub(super) type UnitCode = Vec<(u64, u64, DebugInfoOffset)>;

/// Most bytes that a section may have when it is unpacked; the largest of Debian's kernels has 250 MB.
const MOST_UNPACKED: u64 = 4 << 30;
/// `struct elf64_chdr {u32 type, u32 reserved, u64 size, u64 align}`
const CHDR_LEN: usize = 24;

/// An ELF file with debugging information.
pub struct DebugFile<'a> {
    sections: Vec<(SectionId, Cow<'a, [u8]>)>,
    /// `.eh_frame`, and where that was linked to.
    pub(super) eh_frame: (&'a [u8], u64),
    /// Which unit has which code, once that was asked for.
    pub(super) units: OnceCell<UnitCode>,
}

impl fmt::Debug for DebugFile<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DebugFile").field("sections", &self.sections.len()).finish_non_exhaustive()
    }
}

impl<'a> DebugFile<'a> {
    /// Finds the sections of an ELF `file`.
    ///
    /// # Errors
    /// [`DwarfError::Missing`] where there are none, the others for a damaged file.
    pub fn read(file: &'a [u8]) -> Result<Self, DwarfError> {
        let header = FileHeader64::<Endianness>::parse(file)?;
        let endian = header.endian()?;
        let table = header.sections(endian, file)?;
        let find = |id: SectionId| -> Result<Cow<'a, [u8]>, DwarfError> {
            let found = table.iter().find(|section| {
                table.section_name(endian, section).is_ok_and(|name| name == id.name().as_bytes())
            });
            let Some(section) = found else { return Ok(Cow::Borrowed(&[])) };
            let bytes = section.data(endian, file)?;
            match section.sh_flags(endian) & u64::from(SHF_COMPRESSED) {
                0 => Ok(Cow::Borrowed(bytes)),
                _ => unpack(bytes).map(Cow::Owned).ok_or(DwarfError::Packed(id.name())),
            }
        };
        let mut sections = Vec::new();
        for id in WANTED {
            sections.push((id, find(id)?));
        }
        let found = Self { sections, eh_frame: eh_frame(file)?, units: OnceCell::new() };
        if found.section(SectionId::DebugInfo).is_empty() { Err(DwarfError::Missing) } else { Ok(found) }
    }

    /// The same, where frames are those of the program itself, whose ELF file is `program`.
    ///
    /// # Errors
    /// [`DwarfError`] for a damaged file.
    pub fn with_frames_of(mut self, program: &'a [u8]) -> Result<Self, DwarfError> {
        self.eh_frame = eh_frame(program)?;
        Ok(self)
    }

    /// A section's bytes; none where it is not there.
    pub(super) fn section(&self, id: SectionId) -> Slice<'_> {
        let found = self.sections.iter().find(|(own, _)| *own == id);
        EndianSlice::new(found.map_or(&[], |(_, bytes)| bytes), LittleEndian)
    }

    /// All sections as `gimli` takes them.
    pub(super) fn dwarf(&self) -> Result<Dwarf<Slice<'_>>, DwarfError> {
        Dwarf::load(|id| Ok(self.section(id)))
    }
}

/// `.eh_frame` of an ELF file, and where that was linked to; nothing where the file has no bytes of it.
fn eh_frame(file: &[u8]) -> Result<(&[u8], u64), DwarfError> {
    let header = FileHeader64::<Endianness>::parse(file)?;
    let endian = header.endian()?;
    let table = header.sections(endian, file)?;
    let name = SectionId::EhFrame.name().as_bytes();
    let found = table.section_by_name(endian, name).map(|(_, section)| section);
    Ok(match found {
        Some(section) => (section.data(endian, file)?, section.sh_addr(endian)),
        None => (&[], 0),
    })
}

/// The sections that are looked at. Their names follow those of DWARF 2 to 5.
const WANTED: [SectionId; 12] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugFrame,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugLoc,
    SectionId::DebugLocLists,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// What a compressed section holds; `None` where it does not hold what its header says.
fn unpack(bytes: &[u8]) -> Option<Vec<u8>> {
    let size = u64_at(bytes, 8).filter(|size| *size <= MOST_UNPACKED)?;
    let packed = bytes.get(CHDR_LEN..)?;
    let mut unpacked = Vec::new();
    match u32_at(bytes, 0)? {
        ELFCOMPRESS_ZLIB => {
            flate2::read::ZlibDecoder::new(packed).take(size + 1).read_to_end(&mut unpacked).ok()?
        }
        ELFCOMPRESS_ZSTD => {
            let decoder = ruzstd::decoding::StreamingDecoder::new(packed).ok()?;
            decoder.take(size + 1).read_to_end(&mut unpacked).ok()?
        }
        _ => return None,
    };
    (unpacked.len() as u64 == size).then_some(unpacked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::{Part, elf, elf_with};
    use std::io::Write;

    const TEXT: u64 = 0xffff_ffff_8100_0000;

    #[test]
    fn a_file_without_debugging_information_says_so() {
        let file = elf(&[Part::text(".text", TEXT, vec![0x90])]);
        assert!(matches!(DebugFile::read(&file), Err(DwarfError::Missing)));
        assert!(matches!(DebugFile::read(b"text"), Err(DwarfError::Elf(_))));
    }

    #[test]
    fn sections_are_unpacked() {
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(b"what it says").unwrap();
        let chdr = |kind: u32, size: u64, packed: &[u8]| {
            let mut bytes = [kind.to_le_bytes(), [0; 4]].concat();
            bytes.extend(size.to_le_bytes());
            bytes.extend(1u64.to_le_bytes());
            bytes.extend(packed);
            bytes
        };
        let packed = packed.finish().unwrap();
        assert_eq!(unpack(&chdr(1, 12, &packed)).as_deref(), Some(&b"what it says"[..]));
        for damaged in [chdr(1, 11, &packed), chdr(1, 13, &packed), chdr(3, 12, &packed), chdr(1, 12, &[1])] {
            assert_eq!(unpack(&damaged), None);
        }
        assert_eq!(unpack(&chdr(1, u64::MAX, &packed)), None);
        assert_eq!(unpack(&[]), None);
        let file = elf_with(
            &[Part::text(".text", TEXT, vec![0x90])],
            &[(".debug_info", 1, 0, 0, b"info".to_vec()), (".debug_str", 1, 0, 0, b"text".to_vec())],
        );
        let file = DebugFile::read(&file).unwrap();
        assert_eq!(file.section(SectionId::DebugStr).slice(), b"text");
        assert_eq!(file.section(SectionId::DebugLine).slice(), b"");
    }
}
