//! What is done with input that may be corrupt: as much as the product does with it, and all that it can ask of the
//! result. Nothing here may panic, take long, or take much memory.
//!
//! The fuzz targets call these functions, and so do the tests of the engine (`probe-engine/tests/corruption.rs`), with
//! the seeds in `fuzz/seeds` and with damaged ones. Each returns whether it came to what the input is about: a seed of
//! which it did not would show nothing.

use probe_engine::addr::{Gpa, Gva};
use probe_engine::guard::kprobes::KprobeTable;
use probe_engine::guard::module::SealedModule;
use probe_engine::lang;
use probe_engine::lang::ast::Statement;
use probe_engine::linux::btf::{Btf, Kind, c};
use probe_engine::linux::dwarf::{self, DebugFile, SourceMap};
use probe_engine::linux::kallsyms;
use probe_engine::linux::modules::{ModuleLayout, modules as list};
use probe_engine::linux::orc::{OrcLayout, OrcTable};
use probe_engine::linux::printk::{PrintkCaller, PrintkLayout, PrintkReader, PrintkRecord};
use probe_engine::linux::relocations;
use probe_engine::linux::splat::{Splat, SplatParser};
use probe_engine::linux::symbols::SymbolTable;
use probe_engine::linux::vmlinux::Vmlinux;
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::paging::AddressSpace;
use probe_engine::probe::resolve::LoadedModule;
use probe_engine::virt_memory::VirtMemory;

/// A kernel's type information, and behind it a module's: the length of the first comes before both, as u32.
pub fn btf(input: &[u8]) -> bool {
    let Some((len, sections)) = input.split_first_chunk() else { return false };
    let len = usize::try_from(u32::from_le_bytes(*len)).unwrap_or(usize::MAX);
    let (kernel, module) = sections.split_at_checked(len).unwrap_or((sections, &[]));
    let Ok(kernel) = Btf::parse(kernel) else { return false };
    look_at(&kernel);
    let split = Btf::split(&kernel, module);
    if let Ok(module) = &split {
        look_at(module);
    }
    module.is_empty() || split.is_ok()
}

fn look_at(btf: &Btf<'_>) {
    /// Types of a kernel are many; a hundred of them show what there is to show.
    const MOST: usize = 100;
    for ty in btf.types().take(MOST) {
        let _ = (btf.size(ty.id), btf.plain(ty.id), btf.array(ty.id), btf.pointee(ty.id));
        let _ = (btf.member_of(ty.id, "next"), btf.named(ty.name()).take(MOST).count());
        let _ = (c::definition(btf, ty), c::title(btf, ty), c::declaration(btf, ty.id, "name"));
        if let Kind::Section(section) = ty.kind {
            let _ = section.variables().count();
        }
        if let Some(function) = btf.function(ty.name()) {
            let _ = c::prototype(btf, function);
        }
    }
    for path in ["state", "parts[4].size", "grid[1]", "low", "[", "parts[4294967295].base"] {
        let _ = btf.member("module", path).map(|member| (member.offset(), btf.size(member.ty)));
    }
    let _ = (btf.enum_value("kind", "INIT"), btf.nearest("modul", 3));
}

/// A kernel's ELF image with its kallsyms.
pub fn kallsyms(input: &[u8]) -> bool {
    let Ok(image) = Vmlinux::parse(input.to_vec()) else { return false };
    let symbols = kallsyms::decode(&image);
    if let Ok(symbols) = &symbols {
        look_up(symbols, image.text_start());
    }
    let _ = relocations::first_pointer(&image);
    let _ = OrcTable::parse(&image);
    symbols.is_ok()
}

fn look_up(symbols: &SymbolTable, at: Gva) {
    let _ = (symbols.function_at(at), symbols.address_of("_text"), symbols.lookup("_text").count());
    let _ = (symbols.nearest_of_all("vfs_raed", 2), symbols.text().count(), symbols.iter().count());
}

/// An ELF file with debugging information about code from 0xffffffff81000000 on: lines, types, and variables.
pub fn dwarf(input: &[u8]) -> bool {
    const TEXT: Gva = Gva(0xffff_ffff_8100_0000);
    let Ok(file) = DebugFile::read(input) else { return false };
    let places = || (0..0x80).step_by(8).map(|offset| TEXT.add(offset));
    let mut is_read = false;
    if let Ok(map) = SourceMap::read(&file, TEXT) {
        let table = map.line_table();
        is_read |= places().any(|at| !table.at(at).is_empty() && map.file_of(at).is_some());
    }
    if let Ok(section) = dwarf::btf(&file)
        && let Ok(btf) = Btf::parse(&section)
    {
        look_at(&btf);
    }
    for at in places() {
        let Ok(scope) = file.variables_at(at) else { continue };
        let Ok(btf) = Btf::parse(&scope.types) else { continue };
        for variable in &scope.variables {
            is_read |= variable.place.is_ok();
            let _ = variable.ty.map(|ty| (btf.size(ty), btf.member_of(ty, "next")));
            let _ = variable.place.map_err(|why| why.to_string());
        }
    }
    is_read
}

/// An ORC table: its layout, an address as u64, and for each row 4 bytes of one part and 6 of the other.
pub fn orc(input: &[u8]) -> bool {
    // As it is sent from one process to another.
    let is_sent = serde_json::from_slice::<OrcTable>(input).is_ok();
    let Some(([layout, at @ ..], parts)) = input.split_first_chunk::<9>() else { return is_sent };
    let layout = match layout % 3 {
        0 => OrcLayout::UntilSixTwo,
        1 => OrcLayout::SinceSixFour,
        _ => OrcLayout::Renumbered,
    };
    let (ips, rows) = parts.split_at(parts.len() / 10 * 4);
    let Ok(table) = OrcTable::from_parts(layout, ips, Gva(u64::from_le_bytes(*at)), rows) else {
        return is_sent;
    };
    for (at, _) in table.rows() {
        let _ = (table.find(at), table.find(at.offset(-1)), table.find(at.add(1)));
    }
    let sent = serde_json::to_vec(&table).unwrap_or_default();
    assert_eq!(serde_json::from_slice::<OrcTable>(&sent).ok(), Some(table), "it arrives as it was sent");
    true
}

/// A guest's memory with a list of modules: the layout of `struct module`, and then pieces of memory, each with an
/// offset as u16 and a length as u8 before it.
pub fn modules(input: &[u8]) -> bool {
    /// Every module is read in the same way.
    const MOST: usize = 4;
    let Some((which, pieces)) = input.split_first() else { return false };
    let layouts = serde_json::from_str::<Vec<ModuleLayout>>(include_str!("module_layouts.json"));
    let layouts = layouts.unwrap_or_default();
    let Some(layout) = layouts.get(usize::from(which & 1)) else { return false };
    let ram = Ram::of(pieces);
    let memory = VirtMemory::new(&ram, AddressSpace::new(0, 0));
    let mut is_read = false;
    for module in list(layout, &memory, layout.head).unwrap_or_default().iter().take(MOST) {
        let _ = module.orc(layout, OrcLayout::SinceSixFour, &memory);
        if let Some(btf) = &layout.btf {
            let _ = module.btf_bytes(btf, &memory, btf.head);
        }
        let Ok(loaded) = LoadedModule::read(module, layout, &memory) else { continue };
        is_read = true;
        if let Ok(symbols) = module.symbols(layout, &memory) {
            let kprobes = KprobeTable { lists: layout.head, node: 0, at: 8, opcode: 16, behind: Some(17) };
            let _ = SealedModule::read(module, layout, &memory, &symbols, (Some(&kprobes), 0));
        }
        for (symbol, offset) in
            [("first", 0), ("first", 1), ("second", 4), ("nobody", 0), ("start", u64::MAX)]
        {
            let _ = loaded.place(&memory, symbol, offset);
        }
    }
    is_read
}

/// A guest's memory with the log of its kernel: pieces of memory as those of [`modules`].
pub fn printk(input: &[u8]) -> bool {
    let Ok(layout) = serde_json::from_str::<PrintkLayout>(include_str!("printk_layout.json")) else {
        return false;
    };
    let ram = Ram::of(input);
    let memory = VirtMemory::new(&ram, AddressSpace::new(0, 0));
    let (mut reader, mut parser) = (PrintkReader::default(), SplatParser::default());
    let records = reader.read(&layout, &memory, true);
    records.iter().flat_map(|record| parser.record(record)).for_each(look_at_splat);
    parser.finish().into_iter().for_each(look_at_splat);
    !records.is_empty()
}

/// Lines of the log, each behind a byte that says who writes it.
pub fn splat(input: &[u8]) -> bool {
    let mut parser = SplatParser::default();
    let mut is_read = false;
    for (n, line) in input.split(|byte| *byte == b'\n').enumerate() {
        let (who, text) = line.split_first().unwrap_or((&b' ', &[]));
        let caller = if who.is_ascii_digit() {
            PrintkCaller::Cpu((*who).into())
        } else {
            PrintkCaller::Task((*who).into())
        };
        let record =
            PrintkRecord { sequence: n as u64, nanos: n as u64, facility: 0, caller, text: text.to_vec() };
        for whole in parser.record(&record) {
            is_read = true;
            look_at_splat(whole);
        }
    }
    for whole in parser.pause().into_iter().chain(parser.finish()) {
        is_read = true;
        look_at_splat(whole);
    }
    is_read
}

fn look_at_splat(splat: Splat) {
    let fingerprint = splat.fingerprint();
    assert!(fingerprint.starts_with(splat.kind.name()) && splat.own_frames().count() <= splat.frames.len());
}

/// RAM with page tables of its own, which map [`Ram::LEN`] bytes where the kernel maps its modules.
struct Ram(Vec<u8>);

impl Ram {
    const TABLES: usize = 0x4000;
    const LEN: usize = 0x1_0000;

    fn of(mut pieces: &[u8]) -> Self {
        let mut ram = Self(vec![0; Self::TABLES + Self::LEN]);
        // The top entries lead to 0xffff_ffff_c000_0000.
        for (at, entry) in [(511 * 8, 0x1003_u64), (0x1000 + 511 * 8, 0x2003), (0x2000, 0x3003)] {
            ram.put(at, &entry.to_le_bytes());
        }
        for page in 0..Self::LEN / 0x1000 {
            let entry = (Self::TABLES + page * 0x1000) as u64 | 3;
            ram.put(0x3000 + page * 8, &entry.to_le_bytes());
        }
        while let Some(([low, high, len], rest)) = pieces.split_first_chunk() {
            let (piece, rest) = rest.split_at_checked(usize::from(*len)).unwrap_or((rest, &[]));
            ram.put(Self::TABLES + usize::from(u16::from_le_bytes([*low, *high])), piece);
            pieces = rest;
        }
        ram
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0.iter_mut().skip(at).zip(bytes).for_each(|(byte, new)| *byte = *new);
    }
}

impl PhysMemory for Ram {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        let start = usize::try_from(at.0).map_err(|_| NoMemory(at))?;
        let bytes = self.0.get(start..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(NoMemory(at))?);
        Ok(())
    }

    fn write(&self, at: Gpa, _: &[u8]) -> Result<(), NoMemory> {
        Err(NoMemory(at))
    }

    fn compare_exchange(&self, at: Gpa, _: u64, _: u64) -> Result<bool, NoMemory> {
        Err(NoMemory(at))
    }
}

/// Lines of probe definitions, each of them also as a filter.
pub fn definition(input: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(input) else { return false };
    let mut is_understood = false;
    for (_, line) in lang::lines(text) {
        if let Err(error) = lang::parse_filter(&line) {
            is_in(&line, &error);
        }
        match lang::parse(&line) {
            Err(error) => is_in(&line, &error),
            Ok(statement) => {
                is_understood = true;
                let plain = statement.to_string();
                let again = lang::parse(&plain).map(|again| again.to_string());
                assert_eq!(again.as_ref(), Ok(&plain), "it reads back as the same");
                if let Statement::Define(definition) = statement {
                    let _ = lang::check_fields(&definition, &["count"], &["file"])
                        .map_err(|error| is_in(&line, &error));
                }
            }
        }
    }
    is_understood
}

/// A mistake is shown in its line.
fn is_in(line: &str, error: &lang::Error) {
    assert!(line.get(error.span.clone()).is_some(), "{error} at {:?}", error.span);
    let _ = (error.to_string(), error.hint());
}
