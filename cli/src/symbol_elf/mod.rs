//! A kernel's symbols as an ELF file that debuggers read: no code, and one segment, with which all of it moves. How the
//! stack lies at each instruction is in there too, and of which build the kernel is: debuggers that have its debugging information
//! somewhere find that by themselves.

mod call_frames;
mod pushes;
mod spans;

use object::elf;
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader, Sym, Writer};
use object::{Endianness, write::Error};
use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::orc::{OrcError, OrcTable};
use probe_engine::linux::symbols::{Symbol, SymbolTable};

/// Why there is no such file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SymbolElfError {
    #[error(transparent)]
    Orc(OrcError),
    #[error("what is known of its stacks takes more room than such a file has")]
    CallFrames(#[source] gimli::write::Error),
    #[error("there are more symbols than such a file has room for")]
    Symbols(#[source] Error),
}

/// The file of a kernel. One that was built with another unwinder has frame pointers, which debuggers follow without being told.
///
/// # Errors
/// When its ORC table is not understood, or something is larger than such a file can hold.
pub(crate) fn of(kernel: &Kernel) -> Result<Vec<u8>, SymbolElfError> {
    let image = kernel.image();
    let call_frames = match OrcTable::parse(image) {
        Ok(orc) => call_frames::debug_frame(&orc, kernel.symbols(), |range| image.bytes(range))
            .map_err(SymbolElfError::CallFrames)?,
        Err(OrcError::Missing) => Vec::new(),
        Err(error) => return Err(SymbolElfError::Orc(error)),
    };
    let build_id = image.build_id().map(note).unwrap_or_default();
    written(kernel.symbols(), image.text_start(), &call_frames, &build_id).map_err(SymbolElfError::Symbols)
}

/// The note with a build id: `Elf64_Nhdr` (u32 namesz, u32 descsz, u32 type), the name, the id.
fn note(build_id: &[u8]) -> Vec<u8> {
    let length = u32::try_from(build_id.len()).unwrap_or_default();
    let head = [elf::ELF_NOTE_GNU.len() as u32 + 1, length, elf::NT_GNU_BUILD_ID];
    let head = head.into_iter().flat_map(u32::to_le_bytes);
    head.chain(*b"GNU\0").chain(build_id.iter().copied()).collect()
}

/// The file, for a kernel whose text begins at `text`.
fn written(symbols: &SymbolTable, text: Gva, call_frames: &[u8], build_id: &[u8]) -> Result<Vec<u8>, Error> {
    let is_of_image = |symbol: &Symbol<'_>| symbol.is_placed() && symbol.at >= text;
    let of_image: Vec<_> =
        symbols.iter().filter(|symbol| is_of_image(symbol) && !symbol.is_padding()).collect();
    let end = of_image.last().map_or(text, |symbol| symbol.at);
    let size = end.0 - text.0 + 1;
    let mut bytes = Vec::new();
    let mut writer = Writer::new(Endianness::Little, true, &mut bytes);
    writer.reserve_file_header();
    writer.reserve_program_headers(1);
    writer.reserve_null_section_index();
    let name = writer.add_section_name(b".text");
    let image = writer.reserve_section_index();
    let parts = [
        (&b".debug_frame"[..], elf::SHT_PROGBITS, call_frames, 8),
        (&b".note.gnu.build-id"[..], elf::SHT_NOTE, build_id, 4),
    ];
    let parts: Vec<_> = parts
        .into_iter()
        .filter(|(_, _, bytes, _)| !bytes.is_empty())
        .map(|(name, kind, bytes, align)| {
            let name = writer.add_section_name(name);
            let _ = writer.reserve_section_index();
            (name, kind, bytes, align, writer.reserve(bytes.len(), align))
        })
        .collect();
    writer.reserve_symtab_section_index();
    writer.reserve_strtab_section_index();
    writer.reserve_shstrtab_section_index();
    writer.reserve_null_symbol_index();
    let mut entries = Vec::with_capacity(of_image.len());
    // A file has its local symbols first.
    let is_local =
        |symbol: &&Symbol<'_>| symbol.kind.is_ascii_lowercase() && !matches!(symbol.kind, 'w' | 'v');
    let (local, global): (Vec<&Symbol<'_>>, Vec<&Symbol<'_>>) = of_image.iter().partition(is_local);
    let locals = u32::try_from(local.len() + 1).unwrap_or(u32::MAX);
    for (symbol, binding) in local
        .iter()
        .map(|symbol| (symbol, elf::STB_LOCAL))
        .chain(global.iter().map(|symbol| (symbol, elf::STB_GLOBAL)))
    {
        let name = writer.add_string(symbol.name.as_bytes());
        writer.reserve_symbol_index(Some(image));
        let kind = if symbol.is_text() { elf::STT_FUNC } else { elf::STT_OBJECT };
        entries.push(Sym {
            name: Some(name),
            section: Some(image),
            st_info: (binding << 4) | kind,
            st_other: elf::STV_DEFAULT,
            st_shndx: 0,
            st_value: symbol.at.0,
            st_size: symbols.end_of(symbol.at).map_or(0, |end| end.0.wrapping_sub(symbol.at.0)),
        });
    }
    writer.reserve_symtab();
    writer.reserve_strtab();
    writer.reserve_shstrtab();
    writer.reserve_section_headers();
    writer.write_file_header(&FileHeader {
        os_abi: elf::ELFOSABI_NONE,
        abi_version: 0,
        e_type: elf::ET_EXEC,
        e_machine: elf::EM_X86_64,
        e_entry: text.0,
        e_flags: 0,
    })?;
    writer.write_align_program_headers();
    writer.write_program_header(&ProgramHeader {
        p_type: elf::PT_LOAD,
        p_flags: elf::PF_R | elf::PF_W | elf::PF_X,
        p_offset: 0,
        p_vaddr: text.0,
        p_paddr: text.0,
        p_filesz: 0,
        p_memsz: size,
        p_align: 0x1000,
    });
    for (_, _, bytes, _, at) in &parts {
        writer.pad_until(*at);
        writer.write(bytes);
    }
    writer.write_null_symbol();
    entries.iter().for_each(|entry| writer.write_symbol(entry));
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    writer.write_section_header(&SectionHeader {
        name: Some(name),
        sh_type: elf::SHT_NOBITS,
        sh_flags: (elf::SHF_ALLOC | elf::SHF_EXECINSTR | elf::SHF_WRITE).into(),
        sh_addr: text.0,
        sh_offset: 0,
        sh_size: size,
        sh_link: 0,
        sh_info: 0,
        sh_addralign: 4096,
        sh_entsize: 0,
    });
    for (name, kind, bytes, align, at) in &parts {
        writer.write_section_header(&SectionHeader {
            name: Some(*name),
            sh_type: *kind,
            sh_flags: 0,
            sh_addr: 0,
            sh_offset: *at as u64,
            sh_size: bytes.len() as u64,
            sh_link: 0,
            sh_info: 0,
            sh_addralign: *align as u64,
            sh_entsize: 0,
        });
    }
    writer.write_symtab_section_header(locals);
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object::read::elf::ElfFile64;
    use object::{Object as _, ObjectSymbol as _};
    use probe_engine::linux::symbols::SymbolTableBuilder;

    #[test]
    fn a_debugger_finds_the_symbols_that_the_kernel_has() {
        let text = Gva(0xffff_ffff_8100_0000);
        let mut all = SymbolTableBuilder::default();
        for (at, kind, name) in [
            (Gva(0x1000), b'A', "per_cpu_one"),
            (text, b'T', "_text"),
            (text.add(0x10), b't', "vfs_read"),
            (text.add(0x40), b'T', "__pfx_next"),
            (text.add(0x50), b'T', "next"),
            (text.add(0x1000), b'D', "jiffies"),
        ] {
            all.push(at, kind, name).unwrap();
        }
        let bytes = written(&all.finish(), text, &[], &[]).unwrap();
        let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
        let mut names: Vec<_> =
            file.symbols().map(|symbol| (symbol.address(), symbol.name().unwrap())).collect();
        names.sort_unstable();
        let expected = [(0, "_text"), (0x10, "vfs_read"), (0x50, "next"), (0x1000, "jiffies")];
        assert_eq!(names, expected.map(|(offset, name)| (text.0 + offset, name)));
        let read = file.symbols().find(|symbol| symbol.name() == Ok("vfs_read")).unwrap();
        assert!(read.is_local() && read.size() == 0x30 && read.kind() == object::SymbolKind::Text);
    }
}
