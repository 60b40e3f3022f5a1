//! The ELF symbol table (`.symtab`) of a kernel that has one: a `vmlinux` straight from its build.

use object::Endianness;
use object::elf::{
    FileHeader64, SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE, SHN_ABS, SHN_LORESERVE, SHN_UNDEF, SHT_NOBITS,
    SHT_SYMTAB, STB_LOCAL, STB_WEAK, STT_FILE, STT_SECTION,
};
use object::read::elf::{FileHeader, SectionHeader, Sym};

use super::symbols::{SymbolTable, SymbolTableBuilder, TableFull};
use super::vmlinux::Vmlinux;
use crate::addr::Gva;

/// No symbols in an ELF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SymtabError {
    /// The file is stripped, as every packaged kernel is.
    #[error("the kernel image has no ELF symbol table")]
    Stripped,
    /// The table does not hold.
    #[error("the kernel image's ELF symbol table is damaged")]
    Damaged(#[from] object::read::Error),
    /// More or longer symbols than a kernel has.
    #[error("the kernel image's ELF symbol table is damaged")]
    Full(#[from] TableFull),
}

/// Reads the symbols of an unstripped kernel.
///
/// # Errors
/// [`SymtabError::Stripped`] when there are none, the others for a damaged file.
pub fn read(image: &Vmlinux) -> Result<SymbolTable, SymtabError> {
    let data = image.file();
    let header = FileHeader64::<Endianness>::parse(data)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, data)?;
    let symbols = sections.symbols(endian, data, SHT_SYMTAB)?;
    let mut builder = SymbolTableBuilder::default();
    for symbol in symbols.iter() {
        let index = symbol.st_shndx(endian);
        if index == SHN_UNDEF || matches!(symbol.st_type(), STT_FILE | STT_SECTION) {
            continue;
        }
        let Ok(name) = str::from_utf8(symbols.symbol_name(endian, symbol)?) else { continue };
        if name.is_empty() || name.starts_with(".L") {
            continue;
        }
        let kind = if index == SHN_ABS {
            b'a'
        } else if symbol.st_bind() == STB_WEAK {
            b'w'
        } else if index >= SHN_LORESERVE {
            continue;
        } else {
            let section = sections.section(object::SectionIndex(index.into()))?;
            let has = |flag: u32| section.sh_flags(endian) & u64::from(flag) != 0;
            match section.sh_type(endian) {
                _ if !has(SHF_ALLOC) => continue,
                _ if has(SHF_EXECINSTR) => b't',
                SHT_NOBITS => b'b',
                _ if has(SHF_WRITE) => b'd',
                _ => b'r',
            }
        };
        let kind = if symbol.st_bind() == STB_LOCAL { kind } else { kind.to_ascii_uppercase() };
        builder.push(Gva(symbol.st_value(endian)), kind, name)?;
    }
    let table = builder.finish();
    if table.is_empty() { Err(SymtabError::Stripped) } else { Ok(table) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::{Part, elf, elf_with};

    const TEXT: u64 = 0xffff_ffff_8100_0000;

    fn symbol(name: u32, info: u8, section: u16, at: u64) -> Vec<u8> {
        let mut bytes = name.to_le_bytes().to_vec();
        bytes.extend([info, 0]);
        bytes.extend(section.to_le_bytes());
        bytes.extend(at.to_le_bytes());
        bytes.extend([0; 8]);
        bytes
    }

    #[test]
    fn kinds_follow_the_sections() {
        let parts =
            [Part::text(".text", TEXT, vec![0x90; 32]), Part::data(".rodata", TEXT + 0x1000, vec![0; 8])];
        let names = b"\0_text\0local\0table\0weak\0outside\0".to_vec();
        let symbols = [
            symbol(0, 0, 0, 0),
            symbol(1, 0x12, 1, TEXT),
            symbol(7, 0x02, 1, TEXT + 16),
            symbol(13, 0x11, 2, TEXT + 0x1000),
            symbol(19, 0x22, 1, TEXT + 24),
            symbol(24, 0x10, 0, 0),
        ];
        let extra = [(".symtab", SHT_SYMTAB, 4, 24, symbols.concat()), (".strtab", 3, 0, 0, names)];
        let image = Vmlinux::parse(elf_with(&parts, &extra)).unwrap();
        let table = read(&image).unwrap();
        let seen: Vec<_> =
            table.iter().map(|symbol| (symbol.at.0 - TEXT, symbol.kind, symbol.name)).collect();
        assert_eq!(seen, [(0, 'T', "_text"), (16, 't', "local"), (24, 'W', "weak"), (0x1000, 'R', "table")]);
    }

    #[test]
    fn a_stripped_image_says_so() {
        let image = Vmlinux::parse(elf(&[Part::text(".text", TEXT, vec![0x90])])).unwrap();
        assert_eq!(read(&image).unwrap_err(), SymtabError::Stripped);
    }
}
