//! A kernel's symbols as an ELF file that debuggers read: no code, and one segment, with which all of it moves. How the
//! stack lies at each instruction is in there too, and of which build the kernel is: debuggers that have its debugging information
//! somewhere find that by themselves.

mod call_frames;
mod pushes;
mod spans;

use crate::say::say;
use object::elf;
use object::write::StringId;
use object::write::elf::{FileHeader, ProgramHeader, SectionHeader, Sym, Writer};
use object::{Endianness, write::Error};
use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::orc::{OrcError, OrcTable};
use probe_engine::linux::symbols::{Symbol, SymbolTable};
use std::ops::Range;

/// The file of a kernel. One that was built with another unwinder than ORC has frame pointers, which debuggers follow without being
/// told. What cannot be said of its stacks is left out, and that is said.
///
/// # Errors
/// When there are more symbols than such a file can hold.
pub(crate) fn of(kernel: &Kernel) -> Result<Vec<u8>, Error> {
    let image = kernel.image();
    let call_frames =
        match OrcTable::parse(image) {
            Ok(orc) => call_frames::debug_frame(&orc, kernel.symbols(), |range| image.bytes(range)).map_err(
                |error| format!("the kernel's ORC table cannot be put so that debuggers read it: {error}"),
            ),
            Err(OrcError::Missing) => Ok(Vec::new()),
            Err(error) => Err(error.to_string()),
        };
    let call_frames = call_frames.unwrap_or_else(|why| {
        say(format_args!("debuggers will not find callers by this file: {why}"));
        Vec::new()
    });
    let build_id = image.build_id().map(note).unwrap_or_default();
    let code: Vec<_> =
        image.sections().filter(|section| section.executable).map(|section| section.range).collect();
    written(kernel.symbols(), image.text_start(), &code, &call_frames, &build_id)
}

/// A part of the kernel, as a section of the file: a debugger takes what lies in code for a function.
struct Part {
    range: Range<Gva>,
    is_code: bool,
}

impl Part {
    /// All parts from `text` to `end`, where `code` is what holds code.
    fn all(text: Gva, end: Gva, code: &[Range<Gva>]) -> Vec<Self> {
        let mut code: Vec<_> = code.iter().filter(|range| range.start >= text && !range.is_empty()).collect();
        code.sort_by_key(|range| range.start);
        let (mut parts, mut at) = (Vec::new(), text);
        for range in code {
            let range = range.start.max(at)..range.end.min(end);
            if range.is_empty() {
                continue;
            }
            parts.push(Self { range: at..range.start, is_code: false });
            at = range.end;
            parts.push(Self { range, is_code: true });
        }
        parts.push(Self { range: at..end, is_code: false });
        parts.retain(|part| !part.range.is_empty());
        parts
    }

    fn name(&self) -> &'static [u8] {
        if self.is_code { b".text" } else { b".data" }
    }

    fn header(&self, name: StringId) -> SectionHeader {
        let kind = if self.is_code { elf::SHF_EXECINSTR } else { elf::SHF_WRITE };
        SectionHeader {
            name: Some(name),
            sh_type: elf::SHT_NOBITS,
            sh_flags: (elf::SHF_ALLOC | kind).into(),
            sh_addr: self.range.start.0,
            sh_offset: 0,
            sh_size: self.range.end.0.wrapping_sub(self.range.start.0),
            sh_link: 0,
            sh_info: 0,
            sh_addralign: 1,
            sh_entsize: 0,
        }
    }
}

/// The note with a build id: `Elf64_Nhdr` (u32 namesz, u32 descsz, u32 type), the name, the id.
fn note(build_id: &[u8]) -> Vec<u8> {
    let length = u32::try_from(build_id.len()).unwrap_or_default();
    let head = [elf::ELF_NOTE_GNU.len() as u32 + 1, length, elf::NT_GNU_BUILD_ID];
    let head = head.into_iter().flat_map(u32::to_le_bytes);
    head.chain(*b"GNU\0").chain(build_id.iter().copied()).collect()
}

/// The file, for a kernel whose text begins at `text`, and which has `code` there and elsewhere.
fn written(
    symbols: &SymbolTable,
    text: Gva,
    code: &[Range<Gva>],
    call_frames: &[u8],
    build_id: &[u8],
) -> Result<Vec<u8>, Error> {
    let is_of_image = |symbol: &Symbol<'_>| symbol.is_placed() && symbol.at >= text;
    let of_image: Vec<_> =
        symbols.iter().filter(|symbol| is_of_image(symbol) && !symbol.is_padding()).collect();
    let end = of_image.last().map_or(text, |symbol| symbol.at).add(1);
    let mut bytes = Vec::new();
    let mut writer = Writer::new(Endianness::Little, true, &mut bytes);
    writer.reserve_file_header();
    writer.reserve_program_headers(1);
    writer.reserve_null_section_index();
    let parts = Part::all(text, end, code);
    let parts: Vec<_> = parts
        .iter()
        .map(|part| (part, writer.add_section_name(part.name()), writer.reserve_section_index()))
        .collect();
    let section_of =
        |at: Gva| parts.iter().find(|(part, ..)| at.is_in(&part.range)).map(|(.., index)| *index);
    let contents = [
        (&b".debug_frame"[..], elf::SHT_PROGBITS, call_frames, 8),
        (&b".note.gnu.build-id"[..], elf::SHT_NOTE, build_id, 4),
    ];
    let contents: Vec<_> = contents
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
        let section = section_of(symbol.at);
        writer.reserve_symbol_index(section);
        let kind = if symbol.is_text() { elf::STT_FUNC } else { elf::STT_OBJECT };
        entries.push(Sym {
            name: Some(name),
            section,
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
        p_memsz: end.0.wrapping_sub(text.0),
        p_align: 0x1000,
    });
    for (_, _, bytes, _, at) in &contents {
        writer.pad_until(*at);
        writer.write(bytes);
    }
    writer.write_null_symbol();
    entries.iter().for_each(|entry| writer.write_symbol(entry));
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    parts.iter().for_each(|(part, name, _)| writer.write_section_header(&part.header(*name)));
    for (name, kind, bytes, align, at) in &contents {
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
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
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
        let code = text..text.add(0x800);
        let bytes = written(&all.finish(), text, &[code], &[], &[]).unwrap();
        let file = ElfFile64::<Endianness>::parse(&*bytes).unwrap();
        let mut names: Vec<_> =
            file.symbols().map(|symbol| (symbol.address(), symbol.name().unwrap())).collect();
        names.sort_unstable();
        let expected = [(0, "_text"), (0x10, "vfs_read"), (0x50, "next"), (0x1000, "jiffies")];
        assert_eq!(names, expected.map(|(offset, name)| (text.0 + offset, name)));
        let read = file.symbols().find(|symbol| symbol.name() == Ok("vfs_read")).unwrap();
        let section = |name: &str| {
            let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name)).unwrap();
            file.section_by_index(symbol.section_index().unwrap()).unwrap().name().unwrap().to_owned()
        };
        assert_eq!(["next", "jiffies"].map(section), [".text", ".data"]);
        assert!(read.is_local() && read.size() == 0x30 && read.kind() == object::SymbolKind::Text);
    }
}
