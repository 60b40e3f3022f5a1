use super::*;
use crate::guard::module::SealedModule;
use crate::guard::sealed::{Site, SiteKind};
use crate::linux::btf::Btf;
use crate::linux::left_alone::Why;
use crate::linux::orc::{OrcLayout, OrcRow};
use crate::linux::testing::{self, BtfBuilder, Ram};
use crate::probe::place::Behind;
use crate::probe::place::SiteInfo;
use crate::probe::resolve::LoadedModule;
use proptest::prelude::*;

const HEAD: u64 = 0;
const MODULE: u64 = 0x1000;
const TEXT: u64 = 0x4000;
/// Data that nobody writes, and that nobody writes once its init has run.
const CONSTANTS: u64 = 0x5000;
const ONCE: u64 = 0x6000;
const INIT: u64 = 0x8000;
const KALLSYMS: u64 = 0xa000;
const SYMTAB: u64 = 0xb000;
const STRTAB: u64 = 0xc000;
const TYPETAB: u64 = 0xd000;
const TABLES: u64 = 0xe000;
/// `btf_modules`, a `struct btf_module` of another module, one of this, and its `struct btf`.
const BTF: u64 = 0xf000;

fn at(offset: u64) -> Gva {
    Ram::BASE.add(offset)
}

/// `struct module` as kernels before 6.4 have it, or as those since, and what belongs to it.
fn section(has_mem: bool) -> Vec<u8> {
    let mut btf = BtfBuilder::default();
    let int = btf.int("unsigned int", 4);
    let byte = btf.int("char", 1);
    let pointer = btf.pointer(0);
    let string = btf.pointer(byte);
    let list = btf.structure("list_head", 16, &[("next", pointer, 0), ("prev", pointer, 8)]);
    let symbol = btf.structure("elf64_sym", 24, &[("st_name", int, 0)]);
    let symbols = btf.pointer(symbol);
    let kallsyms = btf.structure(
        "mod_kallsyms",
        32,
        &[("symtab", symbols, 0), ("num_symtab", int, 8), ("strtab", string, 16), ("typetab", string, 24)],
    );
    let kallsyms = btf.pointer(kallsyms);
    let mut entry = |name, size| {
        let entry = btf.structure(name, size, &[("first", int, 0)]);
        btf.pointer(entry)
    };
    let (fixup, label) = (entry("exception_table_entry", 12), entry("jump_entry", 16));
    let (call, bug) = (entry("static_call_site", 8), entry("bug_entry", 12));
    let word = btf.int("long unsigned int", 8);
    let function = btf.pointer(word);
    let name = btf.array(byte, 56);
    let row = btf.structure("orc_entry", 6, &[]);
    let (ip, row) = (btf.pointer(int), btf.pointer(row));
    let orc = [("num_orcs", int, 0), ("orc_unwind_ip", ip, 8), ("orc_unwind", row, 16)];
    let arch = btf.structure("mod_arch_specific", 24, &orc);
    let mut members = vec![
        ("state", int, 0),
        ("list", list, 8),
        ("name", name, 24),
        ("kallsyms", kallsyms, 80),
        ("num_exentries", int, 88),
        ("extable", fixup, 96),
        ("jump_entries", label, 104),
        ("num_jump_entries", int, 112),
        ("num_static_call_sites", int, 116),
        ("static_call_sites", call, 120),
        ("num_bugs", int, 128),
        ("bug_table", bug, 136),
        ("kprobe_blacklist", function, 144),
        ("num_kprobe_blacklist", int, 152),
        ("noinstr_text_start", pointer, 160),
        ("noinstr_text_size", int, 168),
        ("kprobes_text_start", pointer, 176),
        ("kprobes_text_size", int, 184),
        ("num_ftrace_callsites", int, 188),
        ("ftrace_callsites", function, 192),
        ("arch", arch, 720),
    ];
    if has_mem {
        let mem = btf.structure("module_memory", 72, &[("base", pointer, 0), ("size", int, 8)]);
        let mem = btf.array(mem, 7);
        members.push(("mem", mem, 200));
        let values = [("MOD_TEXT", 0), ("MOD_RODATA", 2), ("MOD_RO_AFTER_INIT", 3), ("MOD_INIT_TEXT", 4)];
        let values = values.map(|(name, value)| [btf.name(name), value]);
        btf.add("mod_mem_type", 6, 4, false, 4, values.as_flattened());
    } else {
        let sizes = [("text_size", int, 12), ("ro_size", int, 16), ("ro_after_init_size", int, 20)];
        let area = [&[("base", pointer, 0), ("size", int, 8)][..], &sizes].concat();
        let area = btf.structure("module_layout", 80, &area);
        members.extend([("core_layout", area, 200), ("init_layout", area, 280)]);
    }
    btf.structure("module", 1024, &members);
    let types = btf.structure("btf", 64, &[("data", pointer, 0), ("data_size", int, 48)]);
    let types = btf.pointer(types);
    btf.structure("btf_module", 48, &[("list", list, 8), ("module", pointer, 24), ("btf", types, 32)]);
    btf.finish()
}

fn layout(has_mem: bool) -> ModuleLayout {
    let mut symbols = SymbolTableBuilder::default();
    symbols.push(at(HEAD), b'D', "modules").unwrap();
    symbols.push(at(BTF), b'd', "btf_modules").unwrap();
    let section = section(has_mem);
    ModuleLayout::find(&symbols.finish(), &Btf::parse(&section).unwrap()).unwrap()
}

#[test]
fn a_tracepoint_is_found_by_its_name() {
    const POINTERS: u64 = 0x1_8000;
    let ram = Ram::new();
    let tracepoints = CountedArray { start: 400, count: 408, entry: 4 };
    let layout = ModuleLayout { tracepoints: Some(tracepoints), ..layout(true) };
    ram.put(at(MODULE + 400), &at(POINTERS).0.to_le_bytes());
    for (number, name) in (0..).zip(["first\0", "second\0"]) {
        let (pointer, tracepoint) = (POINTERS + 4 * number, POINTERS - 0x200 + 0x80 * number);
        ram.put(at(pointer), &(tracepoint.wrapping_sub(pointer) as u32).to_le_bytes());
        ram.put(at(tracepoint), &at(tracepoint + 0x40).0.to_le_bytes());
        ram.put(at(tracepoint + 0x40), name.as_bytes());
    }
    let module = Module {
        at: at(MODULE),
        name: "module".to_owned(),
        state: ModuleState::Coming,
        text: at(TEXT)..at(TEXT),
        init_text: at(INIT)..at(INIT),
    };
    let found = |count: u32, name| {
        ram.put(at(MODULE + 408), &count.to_le_bytes());
        module.tracepoint(&layout, &ram.memory(), name)
    };
    assert_eq!(found(2, "first"), Ok(Some(at(POINTERS - 0x200))));
    assert_eq!(found(2, "second"), Ok(Some(at(POINTERS - 0x180))));
    assert_eq!(
        [found(2, "secon"), found(2, "seconds"), found(1, "second"), found(0, "first")],
        [Ok(None); 4]
    );
    assert_eq!(found(u32::MAX, "first"), Err(ModuleError::Large(at(MODULE))));
    let without = ModuleLayout { tracepoints: None, ..layout };
    assert_eq!(module.tracepoint(&without, &ram.memory(), "first"), Ok(None));
}

/// A module with text at 0x4000 and init text at 0x8000, a page each, and one site of each kind.
fn ram(has_mem: bool) -> Ram {
    let ram = Ram::new();
    let put_u64 = |place: u64, value: u64| ram.put(at(place), &value.to_le_bytes());
    let put_u32 = |place: u64, value: u64| ram.put(at(place), &(value as u32).to_le_bytes());
    let list = MODULE + 8;
    put_u64(HEAD, at(list).0);
    put_u64(list, at(HEAD).0);
    put_u32(MODULE, 1);
    ram.put(at(MODULE + 24), b"fake_module");
    let (size, init) = if has_mem { (208, 200 + 4 * 72) } else { (212, 280) };
    put_u64(MODULE + 200, at(TEXT).0);
    put_u32(MODULE + size, 0x1000);
    put_u64(MODULE + init, at(INIT).0);
    put_u32(MODULE + init + (size - 200), 0x1000);
    if has_mem {
        for (kind, start) in [(2, CONSTANTS), (3, ONCE)] {
            put_u64(MODULE + 200 + kind * 72, at(start).0);
            put_u32(MODULE + 208 + kind * 72, 0x1000);
        }
    } else {
        put_u32(MODULE + 216, CONSTANTS + 0x1000 - TEXT);
        put_u32(MODULE + 220, ONCE + 0x1000 - TEXT);
    }

    put_u64(MODULE + 80, at(KALLSYMS).0);
    for (place, value) in [(0, SYMTAB), (16, STRTAB), (24, TYPETAB)] {
        put_u64(KALLSYMS + place, at(value).0);
    }
    let symbols = [
        ("", b'?', 0, 0, 0),
        ("", b't', 1, TEXT, 0),
        ("__pfx_first", b't', 1, TEXT, 16),
        ("first", b't', 1, TEXT + 0x10, 0x20),
        ("second", b't', 1, TEXT + 0x40, 0),
        ("alias", b't', 1, TEXT + 0x40, 0),
        ("twice", b't', 1, TEXT + 0x80, 8),
        ("twice", b't', 1, TEXT + 0x90, 8),
        ("nokprobe", b't', 1, TEXT + 0x100, 0x10),
        ("__SCT__call", b't', 1, TEXT + 0x200, 8),
        ("last", b't', 1, TEXT + 0x300, 0x10_0000),
        ("start", b't', 2, INIT, 0x10),
        ("data", b'd', 3, TEXT + 0x500, 8),
        ("printk", b'U', 0, 0, 0),
        ("elsewhere", b't', 1, TEXT - 1, 8),
    ];
    let mut names = vec![0];
    for (index, (name, kind, part, value, size)) in (0..).zip(symbols) {
        let place = SYMTAB + index * 24;
        put_u32(place, names.len() as u64);
        names.extend(name.bytes().chain([0]));
        ram.put(at(place + 6), &u16::to_le_bytes(part));
        put_u64(place + 8, at(value).0);
        put_u64(place + 16, size);
        ram.put(at(TYPETAB + index), &[kind]);
    }
    ram.put(at(STRTAB), &names);
    put_u32(KALLSYMS + 8, symbols.len() as u64);

    for (site, code) in [
        (TEXT + 0x44, &[0xe9, 0, 0, 0, 0][..]),
        (TEXT + 0x4a, &[0x66, 0x90]),
        (TEXT + 0x50, &[0xe8, 0, 0, 0, 0]),
        (TEXT + 0x56, &[0x0f, 0x0b]),
        (TEXT + 0x60, &[0xcc, 0, 0, 0, 0]),
        (INIT + 4, &[0x0f, 0x0b]),
    ] {
        ram.put(at(site), code);
    }
    let tables: [(u64, u64, u64, &[u64]); 4] = [
        (96, 88, 12, &[TEXT + 0x48, TEXT + 0x42]),
        (104, 112, 16, &[TEXT + 0x44, TEXT + 0x4a, TEXT + 0x60, 0]),
        (120, 116, 8, &[TEXT + 0x50]),
        (136, 128, 12, &[TEXT + 0x56, INIT + 4]),
    ];
    for (table, (start, count, entry, sites)) in (0..).zip(tables) {
        put_u64(MODULE + start, at(TABLES + table * 0x100).0);
        put_u32(MODULE + count, sites.len() as u64);
        for (index, site) in (0..).zip(sites) {
            let place = TABLES + table * 0x100 + index * entry;
            put_u32(place, site.wrapping_sub(place));
        }
    }
    put_u64(MODULE + 144, at(TABLES + 0x800).0);
    put_u32(MODULE + 152, 2);
    put_u64(TABLES + 0x800, at(TEXT + 0x100).0);
    put_u64(MODULE + 192, at(TABLES + 0x880).0);
    put_u32(MODULE + 188, 3);
    for (index, site) in (0..).zip([at(TEXT + 0x300), at(INIT), Gva(0)]) {
        put_u64(TABLES + 0x880 + index * 8, site.0);
    }
    let (other, own, types) = (BTF + 0x100, BTF + 0x200, BTF + 0x300);
    for (place, value) in [
        (BTF, other + 8),
        (other + 8, own + 8),
        (other + 24, MODULE + 0x800),
        (own + 8, BTF),
        (own + 24, MODULE),
        (own + 32, types),
        (types, BTF + 0x400),
    ] {
        put_u64(place, at(value).0);
    }
    put_u32(types + 48, 9);
    ram.put(at(BTF + 0x400), b"its types");
    put_u64(MODULE + 160, at(TEXT + 0x280).0);
    put_u32(MODULE + 168, 0x10);

    let ips_at = at(TABLES + 0x900);
    let rows = [(at(INIT), (0, 0, 0x100)), (at(TEXT), (8, 0, 0x205)), (at(TEXT + 0x11), (16, -16, 0x215))];
    let (ips, rows) = testing::orc(ips_at, &rows);
    put_u32(MODULE + 720, 3);
    put_u64(MODULE + 728, ips_at.0);
    put_u64(MODULE + 736, at(TABLES + 0xa00).0);
    ram.put(ips_at, &ips);
    ram.put(at(TABLES + 0xa00), &rows);
    ram
}

fn place(
    module: &Module,
    layout: &ModuleLayout,
    ram: &Ram,
    symbol: &str,
    offset: u64,
) -> Result<SiteInfo, String> {
    let memory = ram.memory();
    let loaded = LoadedModule::read(module, layout, &memory).map_err(|e| e.to_string())?;
    loaded.place(&memory, symbol, offset).map_err(|e| e.to_string())
}

#[test]
fn both_layouts_are_found() {
    let old = layout(false);
    assert_eq!(old.text, CountedArray { start: 200, count: 212, entry: 1 });
    assert_eq!(old.init_text, CountedArray { start: 280, count: 292, entry: 1 });
    let new = layout(true);
    assert_eq!(new.text, CountedArray { start: 200, count: 208, entry: 1 });
    assert_eq!(new.init_text, CountedArray { start: 488, count: 496, entry: 1 });
    let places = |layout: &ModuleLayout| {
        let ReadOnlyFields { constants, after_init } = layout.read_only.unwrap();
        [constants, after_init].map(|CountedArray { start, count, entry }| (start, count, entry))
    };
    assert_eq!(places(&old), [(200, 216, 1), (200, 220, 1)]);
    assert_eq!(places(&new), [(344, 352, 1), (416, 424, 1)]);
    for layout in [old, new] {
        assert_eq!((layout.state, layout.list, layout.name, layout.kallsyms), (0, 8, 24, 80));
        assert_eq!(layout.symtab, CountedArray { start: 0, count: 8, entry: 24 });
        assert_eq!(layout.tables.bugs, Some(CountedArray { start: 136, count: 128, entry: 12 }));
        assert_eq!(layout.tables.noinstr, Some(CountedArray { start: 160, count: 168, entry: 1 }));
    }
}

#[test]
fn a_module_is_read_from_memory() {
    for has_mem in [false, true] {
        let (ram, layout) = (ram(has_mem), layout(has_mem));
        let found = modules(&layout, &ram.memory(), layout.head).unwrap();
        let expected = Module {
            at: at(MODULE),
            name: "fake_module".to_owned(),
            state: ModuleState::Coming,
            text: at(TEXT)..at(TEXT + 0x1000),
            init_text: at(INIT)..at(INIT + 0x1000),
        };
        assert_eq!(found, [expected], "{has_mem}");
    }
}

#[test]
fn its_functions_are_found_by_name_and_by_address() {
    let (ram, layout) = (ram(true), layout(true));
    let module = Module::read(&layout, &ram.memory(), at(MODULE)).unwrap();
    let symbols = module.symbols(&layout, &ram.memory()).unwrap();
    for (name, start, end) in [
        ("__pfx_first", TEXT, TEXT + 0x10),
        ("first", TEXT + 0x10, TEXT + 0x30),
        ("second", TEXT + 0x40, TEXT + 0x80),
        ("alias", TEXT + 0x40, TEXT + 0x80),
        ("nokprobe", TEXT + 0x100, TEXT + 0x110),
        ("last", TEXT + 0x300, TEXT + 0x1000),
        ("start", INIT, INIT + 0x10),
    ] {
        let function = symbols.address_of(name).and_then(|at| symbols.function_at(at));
        assert_eq!(function.map(|function| function.range()), Some(at(start)..at(end)), "{name}");
    }
    assert_eq!(symbols.function_at(at(TEXT + 0x38)), None);
    assert_eq!(symbols.lookup("twice").count(), 2);
    for name in ["data", "printk", "elsewhere"] {
        assert_eq!(symbols.lookup(name).count(), 0, "{name}");
    }
    assert_eq!(symbols.nearest("secnod", 1), ["second"]);
    assert_eq!(symbols.nearest("firs", 3), ["first"], "padding is no function");
    assert!(symbols.text().all(|symbol| !symbol.name.is_empty()));
}

#[test]
fn text_of_a_module_is_left_alone() {
    for has_mem in [false, true] {
        let (ram, layout) = (ram(has_mem), layout(has_mem));
        let module = Module::read(&layout, &ram.memory(), at(MODULE)).unwrap();
        let symbols = module.symbols(&layout, &ram.memory()).unwrap();
        let patched = module.patched(&layout, &ram.memory(), &symbols).unwrap();
        assert_eq!(patched.missing(), []);
        for (start, end, why) in [
            (TEXT, TEXT + 0x10, Why::Padding),
            (TEXT + 0x44, TEXT + 0x49, Why::JumpLabel),
            (TEXT + 0x4a, TEXT + 0x4c, Why::JumpLabel),
            (TEXT + 0x50, TEXT + 0x55, Why::StaticCall),
            (TEXT + 0x56, TEXT + 0x58, Why::Bug),
            (TEXT + 0x60, TEXT + 0x66, Why::JumpLabel),
            (TEXT + 0x100, TEXT + 0x110, Why::Blacklisted),
            (TEXT + 0x200, TEXT + 0x205, Why::StaticCall),
            (TEXT + 0x280, TEXT + 0x290, Why::Noinstr),
            (INIT + 4, INIT + 6, Why::Bug),
        ] {
            let covers = |place: u64| patched.covers(at(place)..at(place + 1));
            assert_eq!(covers(start), Some(why), "{start:#x}");
            assert_eq!(covers(end - 1), Some(why), "{end:#x}");
            assert_eq!(covers(end), None, "after {end:#x}");
        }
        assert!(patched.has_fixup(at(TEXT + 0x42)..at(TEXT + 0x43)));
        assert!(patched.has_fixup(at(TEXT + 0x48)..at(TEXT + 0x49)));
        assert!(!patched.has_fixup(at(TEXT + 0x43)..at(TEXT + 0x48)));
    }
}

#[test]
fn what_is_sealed_of_a_module_is_its_own() {
    for has_mem in [false, true] {
        let (ram, layout) = (ram(has_mem), layout(has_mem));
        // Where the second label leads, and one in text that is freed.
        ram.put(at(TABLES + 0x114), &((TEXT + 0x70).wrapping_sub(TABLES + 0x114) as u32).to_le_bytes());
        ram.put(at(TABLES + 0x130), &(INIT + 8).wrapping_sub(TABLES + 0x130).to_le_bytes()[..4]);
        ram.put(at(TEXT + 0x304), &[0xe8]);
        let module = Module::read(&layout, &ram.memory(), at(MODULE)).unwrap();
        let sealed = |layout: &ModuleLayout| {
            let symbols = module.symbols(layout, &ram.memory()).unwrap();
            SealedModule::read(&module, layout, &ram.memory(), &symbols, (None, 0))
        };
        let SealedModule { text, init_text, pages, after_init, sites, kprobes } = sealed(&layout).unwrap();
        assert_eq!((text, init_text), (at(TEXT)..at(TEXT + 0x1000), module.init_text.clone()));
        assert_eq!((pages, after_init), (vec![at(TEXT), at(CONSTANTS)], vec![at(ONCE)]));
        assert_eq!(kprobes, []);
        let label = |entry: u64| SiteKind::JumpLabel(at(TABLES + entry));
        let expected = [
            (0x44, 5, label(0x104)),
            (0x4a, 2, SiteKind::JumpLabel(at(TEXT + 0x70))),
            (0x50, 5, SiteKind::StaticCall),
            // The guest rewrites it, and it leads far away.
            (0x60, 5, label(0x124)),
            (0x200, 5, SiteKind::StaticCall),
            (0x300, 5, SiteKind::Ftrace),
        ];
        let expected = expected.map(|(offset, length, kind)| Site { at: at(TEXT + offset), length, kind });
        assert_eq!(sites, expected);

        // An entry of its page is somebody else's.
        ram.put(at(MODULE + if has_mem { 208 } else { 212 }), &[0xff, 0x0f]);
        let module = Module::read(&layout, &ram.memory(), at(MODULE)).unwrap();
        let without = ModuleLayout { read_only: None, ..layout.clone() };
        let symbols = module.symbols(&layout, &ram.memory()).unwrap();
        let sealed = SealedModule::read(&module, &without, &ram.memory(), &symbols, (None, 0)).unwrap();
        assert_eq!((sealed.pages, sealed.after_init), (vec![], vec![]));
        ram.put(at(MODULE + 112), &[0xff; 4]);
        let sealed = SealedModule::read(&module, &layout, &ram.memory(), &symbols, (None, 0));
        assert_eq!(sealed, Err(ModuleError::Large(at(MODULE))));
    }
}

/// What the guest rewrites at this moment begins with a breakpoint.
#[test]
fn a_site_that_is_being_rewritten_is_as_long_as_before() {
    let (ram, layout) = (ram(true), layout(true));
    let module = Module::read(&layout, &ram.memory(), at(MODULE)).unwrap();
    let near = |to: u64| ram.put(at(TABLES + 0x124), &to.wrapping_sub(TABLES + 0x124).to_le_bytes()[..4]);
    let label = || module.jump_labels(&layout, &ram.memory()).unwrap()[2].0.clone();
    near(TEXT + 0x62 + 127);
    assert_eq!(label(), at(TEXT + 0x60)..at(TEXT + 0x62));
    near(TEXT + 0x62 + 128);
    assert_eq!(label(), at(TEXT + 0x60)..at(TEXT + 0x65));
    let symbols = module.symbols(&layout, &ram.memory()).unwrap();
    let call = |code: &[u8]| {
        ram.put(at(TEXT + 0x50), code);
        let calls = module.static_calls(&layout, &ram.memory(), &symbols).unwrap();
        calls[0].end.offset_from(calls[0].start).unwrap()
    };
    assert_eq!([call(&[0xcc, 0x10]), call(&[0x0f, 0x1f]), call(&[0xcc, 0x85])], [5, 5, 6]);
    assert_eq!([call(&[0x0f, 0x84]), call(&[0xe8, 0x85])], [6, 5]);
}

#[test]
fn ftraces_sites_are_those_of_its_table() {
    for has_mem in [false, true] {
        let (ram, layout) = (ram(has_mem), layout(has_mem));
        ram.put(at(TEXT + 0x300), &[0xe8, 0, 0, 0, 0, 0x53]);
        ram.put(at(TEXT + 0x310), &[0xe8, 0, 0, 0, 0, 0xc3]);
        let module = Module::read(&layout, &ram.memory(), at(MODULE)).unwrap();
        assert_eq!(module.ftrace_sites(&layout, &ram.memory()), Ok(vec![at(TEXT + 0x300), at(INIT)]));
        let info = |symbol, offset| place(&module, &layout, &ram, symbol, offset).unwrap();
        assert_eq!(info("last", 0).ftrace, Some(Behind::Free { fixup: false, settled: true }));
        assert_eq!(info("last", 5).ftrace, None);
        // The guest's ftrace is about to change it.
        ram.put(at(TEXT + 0x300), &[0xcc]);
        assert_eq!(info("last", 0).ftrace, Some(Behind::Free { fixup: false, settled: true }));
        assert_eq!(info("last", 5).ftrace, None);
    }
}

/// A probe of a call stands on the call, and not behind it.
#[test]
fn an_ordinary_call_is_none_of_ftraces_sites() {
    let (ram, layout) = (ram(true), layout(true));
    ram.put(at(TEXT + 0x10), &[0x53, 0xe8, 0, 0, 0, 0, 0xc3]);
    let module = Module::read(&layout, &ram.memory(), at(MODULE)).unwrap();
    assert_eq!(place(&module, &layout, &ram, "first", 1).unwrap().ftrace, None);
}

/// No table of a module has its lock prefixes. One that the guest has taken out for the time being is DS.
#[test]
fn lock_prefixes_of_a_module_are_left_alone() {
    let (ram, layout) = (ram(true), layout(true));
    let module = Module::read(&layout, &ram.memory(), at(MODULE)).unwrap();
    let refusal = |code: &[u8]| {
        ram.put(at(TEXT + 0x10), code);
        place(&module, &layout, &ram, "first", 0).err()
    };
    let expected = Some(Why::LockPrefix.to_string());
    assert_eq!(refusal(&[0xf0, 0xff, 0x07]), expected, "lock inc dword ptr [rdi]");
    assert_eq!(refusal(&[0x3e, 0xff, 0x07]), expected, "inc dword ptr ds:[rdi]");
    assert_eq!(refusal(&[0xff, 0x07]), None, "inc dword ptr [rdi]");
    assert_eq!(refusal(&[0x65, 0xff, 0x07]), None, "inc dword ptr gs:[rdi]");
    // What is behind one of ftrace's sites is looked at in the same way.
    ram.put(at(TEXT + 0x305), &[0xf0, 0xff, 0x07]);
    let info = place(&module, &layout, &ram, "last", 0).unwrap();
    assert_eq!(info.ftrace, Some(Behind::Guarded(Why::LockPrefix.to_string())));
}

#[test]
fn a_kernel_without_a_table_says_so() {
    let ram = ram(true);
    let layout = ModuleLayout { tables: ModuleTableFields::default(), ..layout(true) };
    let module = Module::read(&layout, &ram.memory(), at(MODULE)).unwrap();
    let symbols = module.symbols(&layout, &ram.memory()).unwrap();
    let patched = module.patched(&layout, &ram.memory(), &symbols).unwrap();
    for why in [Why::JumpLabel, Why::StaticCall, Why::Bug, Why::Blacklisted, Why::Noinstr] {
        assert!(patched.missing().contains(&why), "{why:?}");
    }
}

#[test]
fn its_types_are_those_that_the_kernel_keeps() {
    let (ram, layout) = (ram(true), layout(true));
    let layout = layout.btf.unwrap();
    assert_eq!((layout.list, layout.module, layout.btf), (8, 24, 32));
    assert_eq!(layout.data, CountedArray { start: 0, count: 48, entry: 1 });
    let module = Module::read(&self::layout(true), &ram.memory(), at(MODULE)).unwrap();
    let bytes = |module: &Module| module.btf_bytes(&layout, &ram.memory(), layout.head);
    assert_eq!(bytes(&module), Ok(Some(b"its types".to_vec())));
    assert_eq!(bytes(&Module { at: at(MODULE + 8), ..module.clone() }), Ok(None));
    ram.put(at(BTF + 0x300 + 48), &[0, 0, 0, 2]);
    assert_eq!(bytes(&module), Err(ModuleError::Large(module.at)));
    ram.put(at(BTF + 0x300 + 48), &[0, 0, 0, 1]);
    assert!(matches!(bytes(&module), Err(ModuleError::Memory(_))), "16 MiB are none");
    // The entry of the other module follows itself.
    ram.put(at(BTF + 0x108), &at(BTF + 0x108).0.to_le_bytes());
    assert_eq!(bytes(&module), Err(ModuleError::Endless));
}

#[test]
fn nonsense_is_named() {
    let layout = layout(true);
    let read = |place: u64, bytes: &[u8]| {
        let ram = ram(true);
        ram.put(at(place), bytes);
        let memory = ram.memory();
        let module = Module::read(&layout, &memory, at(MODULE))?;
        let symbols = module.symbols(&layout, &memory)?;
        module.patched(&layout, &memory, &symbols).map(|_| ())
    };
    let module = at(MODULE);
    assert_eq!(read(MODULE, &[1]), Ok(()));
    assert_eq!(read(MODULE, &[4]), Err(ModuleError::State { at: module, state: 4 }));
    assert_eq!(read(MODULE + 24, &[0]), Err(ModuleError::Name(module)));
    assert_eq!(read(MODULE + 24, &[b'a'; 65]), Err(ModuleError::Name(module)));
    assert_eq!(read(MODULE + 24, b"two words"), Err(ModuleError::Name(module)));
    assert_eq!(read(MODULE + 208, &[0xff; 4]), Err(ModuleError::Text(module)));
    assert_eq!(read(MODULE + 200, &0x1000u64.to_le_bytes()), Err(ModuleError::Text(module)));
    assert_eq!(read(KALLSYMS + 8, &[0xff; 4]), Err(ModuleError::Large(module)));
    assert_eq!(read(MODULE + 128, &[0xff; 4]), Err(ModuleError::Large(module)));
    assert!(matches!(read(MODULE + 80, &[0; 8]), Err(ModuleError::Memory(_))));
    assert!(matches!(read(KALLSYMS, &[0; 8]), Err(ModuleError::Memory(_))));
}

#[test]
fn a_list_in_a_circle_ends() {
    let (ram, layout) = (ram(true), layout(true));
    let list = at(MODULE + 8);
    ram.put(list, &list.0.to_le_bytes());
    assert_eq!(modules(&layout, &ram.memory(), layout.head), Err(ModuleError::Endless));
}

#[test]
fn a_string_at_the_end_of_memory_is_read() {
    let ram = Ram::new();
    let end = Ram::BASE.add(Ram::LEN);
    ram.put(end.offset(-5), b"abcd\0");
    assert_eq!(c_string(&ram.memory(), end.offset(-5), 64), Ok(Some(b"abcd".to_vec())));
    assert_eq!(c_string(&ram.memory(), end.offset(-5), 4), Ok(Some(b"abcd".to_vec())));
    assert_eq!(c_string(&ram.memory(), end.offset(-5), 3), Ok(None));
    ram.put(end.offset(-1), b"e");
    assert!(c_string(&ram.memory(), end.offset(-5), 64).is_err());
}

#[test]
fn the_orc_table_is_read_and_put_in_order() {
    for has_mem in [false, true] {
        let (ram, mut layout) = (ram(has_mem), layout(has_mem));
        let memory = ram.memory();
        let module = modules(&layout, &memory, layout.head).unwrap().remove(0);
        let orc = |layout: &ModuleLayout, written| module.orc(layout, written, &memory);
        let table = orc(&layout, OrcLayout::SinceSixFour).unwrap();
        let rows: Vec<u64> = table.rows().map(|(place, _)| place.0 - Ram::BASE.0).collect();
        assert_eq!(rows, [TEXT, TEXT + 0x11, INIT]);
        assert_eq!(table.find(at(INIT + 8)), Some(OrcRow::EndOfStack));
        assert!(matches!(table.find(at(TEXT)), Some(OrcRow::Frame(frame)) if frame.sp_offset == 8));

        let other = orc(&layout, OrcLayout::UntilSixTwo);
        assert_eq!(other, Err(ModuleError::Orc(OrcError::Unknown(at(INIT)))));
        ram.put(at(MODULE + 720), &u32::MAX.to_le_bytes());
        assert_eq!(orc(&layout, OrcLayout::SinceSixFour), Err(ModuleError::Large(module.at)));
        ram.put(at(MODULE + 720), &0x8000u32.to_le_bytes());
        assert!(matches!(orc(&layout, OrcLayout::SinceSixFour), Err(ModuleError::Memory(_))));
        layout.orc = None;
        assert_eq!(orc(&layout, OrcLayout::SinceSixFour), Err(ModuleError::Orc(OrcError::Missing)));
    }
}

#[test]
fn seeds_of_the_fuzz_target() {
    for (which, name) in [(false, "until_6_3"), (true, "since_6_4")] {
        let bytes = [vec![which.into()], ram(which).pieces()].concat();
        testing::seed(&format!("seeds/modules/{name}"), &bytes);
    }
    // Types that say that they are 15 MiB: no room is made for what is not there.
    let ram = ram(true);
    ram.put(at(BTF + 0x300 + 48), &(15_u32 << 20).to_le_bytes());
    testing::seed("seeds/modules/types_that_are_not_there", &[vec![1], ram.pieces()].concat());
    let layouts = [layout(false), layout(true)];
    testing::seed("src/module_layouts.json", serde_json::to_string_pretty(&layouts).unwrap().as_bytes());
}

proptest! {
    #[test]
    fn no_corruption_panics(
        has_mem in any::<bool>(),
        places in proptest::collection::vec((0..5u64, 0..0x400u64, any::<[u8; 4]>()), 1..6),
    ) {
        let (ram, layout) = (ram(has_mem), layout(has_mem));
        for (part, offset, bytes) in places {
            let base = [MODULE, KALLSYMS, SYMTAB, TABLES, BTF][part as usize];
            ram.put(at(base + offset), &bytes);
        }
        let memory = ram.memory();
        if let Ok(found) = modules(&layout, &memory, layout.head) {
            for module in found {
                let btf = layout.btf.as_ref().unwrap();
                let _ = module.btf_bytes(btf, &memory, btf.head);
                let Ok(symbols) = module.symbols(&layout, &memory) else { continue };
                prop_assert!(symbols.text().all(|symbol| module.is_text(symbol.at)));
                let _ = SealedModule::read(&module, &layout, &memory, &symbols, (None, 0));
                let _ = module.patched(&layout, &memory, &symbols).map(|patched| patched.covers(at(0)..at(0x10000)));
                let _ = module.orc(&layout, OrcLayout::SinceSixFour, &memory).map(|orc| orc.find(at(TEXT)));
            }
        }
    }
}
