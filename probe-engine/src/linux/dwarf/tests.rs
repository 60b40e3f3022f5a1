//! Debugging information of a small kernel, as a compiler would write it.

use gimli::write::{Address, AttributeValue, DwarfUnit, LineProgram, LineString, UnitEntryId};
use gimli::{Encoding, Format, LineEncoding, constants as dw};
use proptest::prelude::*;

use super::testing::{damage, written};
use super::*;
use crate::addr::Gva;
use crate::linux::btf::{Btf, c};
use crate::linux::kernel::Kernel;
use crate::linux::symbol_file::SymbolFile;
use crate::linux::testing::{self, Extra, Part, elf_with};
use crate::linux::vmlinux::Vmlinux;
use crate::probe::resolve::{resolve, resolve_in_source};
use crate::probe::spec::ProbeSpec;

const TEXT: u64 = 0xffff_ffff_8100_0000;

/// `open` in fs/open.c at `TEXT`, into which `check` of include/check.h is inlined, with the types that it takes.
fn sections() -> Vec<Extra> {
    let encoding = Encoding { format: Format::Dwarf32, version: 5, address_size: 8 };
    let mut dwarf = DwarfUnit::new(encoding);
    let text = |text: &str| LineString::String(text.as_bytes().to_vec());
    let mut program = LineProgram::new(
        encoding,
        LineEncoding::default(),
        text("/build"),
        None,
        text("../src/fs/open.c"),
        None,
    );
    let (build, include) = (program.default_directory(), program.add_directory(text("../src/include")));
    let open = program.add_file(text("../src/fs/open.c"), build, None);
    let header = program.add_file(text("check.h"), include, None);
    let main = program.add_file(text("/src/init/main.c"), build, None);
    program.begin_sequence(Some(Address::Constant(TEXT)));
    for (offset, file, line) in
        [(0, open, 100), (4, open, 101), (8, header, 7), (12, open, 102), (14, main, 1)]
    {
        let row = program.row();
        (row.address_offset, row.file, row.line) = (offset, file, line);
        program.generate_row();
    }
    program.end_sequence(16);
    dwarf.unit.line_program = program;

    let root = dwarf.unit.root();
    let mut entry = |parent: UnitEntryId, tag, attributes: Vec<(gimli::DwAt, AttributeValue)>| {
        let id = dwarf.unit.add(parent, tag);
        for (name, value) in attributes {
            dwarf.unit.get_mut(id).set(name, value);
        }
        id
    };
    let name = |name: &str| (dw::DW_AT_name, AttributeValue::String(name.as_bytes().to_vec()));
    let size = |size: u8| (dw::DW_AT_byte_size, AttributeValue::Data1(size));
    let ty = |ty| (dw::DW_AT_type, AttributeValue::UnitRef(ty));
    let at = |at: u8| (dw::DW_AT_data_member_location, AttributeValue::Data1(at));
    let encoded = |encoding| (dw::DW_AT_encoding, AttributeValue::Encoding(encoding));
    let line = |line: u8| (dw::DW_AT_decl_line, AttributeValue::Data1(line));

    let int = entry(root, dw::DW_TAG_base_type, vec![name("int"), size(4), encoded(dw::DW_ATE_signed)]);
    let file = entry(root, dw::DW_TAG_structure_type, vec![name("file"), size(32), line(3)]);
    let pointer = entry(root, dw::DW_TAG_pointer_type, vec![size(8), ty(file)]);
    entry(file, dw::DW_TAG_member, vec![name("next"), ty(pointer), at(0)]);
    let bits = |bits: u8, at: u8| {
        [(dw::DW_AT_bit_size, bits), (dw::DW_AT_data_bit_offset, at)]
            .map(|(n, v)| (n, AttributeValue::Data1(v)))
    };
    entry(file, dw::DW_TAG_member, [vec![name("mode"), ty(int)], bits(3, 64).to_vec()].concat());
    let row = entry(root, dw::DW_TAG_array_type, vec![ty(int)]);
    for last in [1, 2] {
        entry(row, dw::DW_TAG_subrange_type, vec![(dw::DW_AT_upper_bound, AttributeValue::Data1(last))]);
    }
    entry(file, dw::DW_TAG_member, vec![name("rows"), ty(row), at(12)]);
    let whence = entry(root, dw::DW_TAG_enumeration_type, vec![name("whence"), size(4)]);
    for (enumerator, value) in [("SET", 0), ("BACK", -1)] {
        let value = (dw::DW_AT_const_value, AttributeValue::Sdata(value));
        entry(whence, dw::DW_TAG_enumerator, vec![name(enumerator), value]);
    }
    let declared = (dw::DW_AT_declaration, AttributeValue::Flag(true));
    let known = entry(root, dw::DW_TAG_structure_type, vec![name("file"), declared.clone()]);
    let known = entry(root, dw::DW_TAG_pointer_type, vec![size(8), ty(known)]);
    let secret = entry(root, dw::DW_TAG_structure_type, vec![name("secret"), declared]);
    let secret = entry(root, dw::DW_TAG_pointer_type, vec![size(8), ty(secret)]);

    let check =
        entry(root, dw::DW_TAG_subprogram, vec![name("check"), (dw::DW_AT_inline, AttributeValue::Data1(1))]);
    let low = |at: u64| (dw::DW_AT_low_pc, AttributeValue::Address(Address::Constant(at)));
    let high = |len: u8| (dw::DW_AT_high_pc, AttributeValue::Data1(len));
    let function = entry(root, dw::DW_TAG_subprogram, vec![name("open"), ty(int), low(TEXT), high(16)]);
    for (parameter, kind) in [("file", known), ("secret", secret), ("whence", whence)] {
        entry(function, dw::DW_TAG_formal_parameter, vec![name(parameter), ty(kind)]);
    }
    let call = vec![
        (dw::DW_AT_abstract_origin, AttributeValue::UnitRef(check)),
        low(TEXT + 8),
        high(4),
        (dw::DW_AT_call_file, AttributeValue::FileIndex(Some(open))),
        (dw::DW_AT_call_line, AttributeValue::Data1(101)),
    ];
    entry(function, dw::DW_TAG_inlined_subroutine, call);
    dwarf.unit.get_mut(root).set(dw::DW_AT_comp_dir, AttributeValue::String(b"/build".to_vec()));

    written(&mut dwarf)
}

fn vmlinux(sections: &[Extra]) -> Vec<u8> {
    elf_with(&[Part::text(".text", TEXT, vec![0x90; 64])], sections)
}

/// The kernel, and the source of it.
fn kernel() -> (Kernel, SourceMap) {
    let file = vmlinux(&sections());
    let map = format!("{TEXT:x} T open\n{:x} T _etext\n", TEXT + 16);
    let symbols = SymbolFile::parse(map.into_bytes()).unwrap();
    let source = SourceMap::read(&DebugFile::read(&file).unwrap(), Gva(TEXT)).unwrap();
    (Kernel::read(&file, Some(&symbols)).unwrap(), source)
}

#[test]
fn an_instruction_has_the_lines_of_all_functions_around() {
    let (_, source) = kernel();
    let table = source.line_table();
    let lines = |at| -> Vec<String> {
        let lines = table.at(Gva(TEXT + at));
        lines.iter().map(|line| format!("{line} {}", line.inlined.unwrap_or("-"))).collect()
    };
    assert_eq!(lines(0), ["fs/open.c:100 -"]);
    assert_eq!(lines(9), ["include/check.h:7 check", "fs/open.c:101 -"]);
    assert_eq!(lines(12), ["fs/open.c:102 -"]);
    assert_eq!(lines(16), [""; 0]);
    assert_eq!(source.root(), Some("/src/"));
}

#[test]
fn a_line_becomes_a_place() {
    let (kernel, source) = kernel();
    let names = |written: &str| {
        let spec: ProbeSpec = written.parse().unwrap();
        match resolve_in_source(&spec, &kernel, &source) {
            Ok(resolved) => {
                resolved.places.iter().map(|place| place.name()).collect::<Vec<_>>().join(" and ")
            }
            Err(error) => error.to_string(),
        }
    };
    assert_eq!(names("open:100"), "open");
    assert_eq!(names("open:102"), "open+0xc (fs/open.c:102)");
    assert_eq!(names("check.h:7"), "open+0x8 (include/check.h:7, check inlined)");
    assert_eq!(names("open"), "open");
    assert_eq!(
        names("open:5"),
        "`open:5` is a line of fs/open.c, counted from the start of the file, of which `open` has no code; the nearest \
         line with code is 100"
    );
    assert_eq!(
        names("open.c:900"),
        "the kernel has no code of line 900 of fs/open.c; the nearest line with code is 102"
    );
    assert_eq!(names("close.c:1"), "the kernel has no code of a file `close.c`");
    assert!(names("clos:1").contains("the kernel has no function `clos`"));
    let spec: ProbeSpec = "open:102".parse().unwrap();
    assert_eq!(
        resolve(&spec, &kernel).unwrap_err().to_string(),
        "`open:102` is a line of the source, which takes debugging information"
    );
}

#[test]
fn a_kernel_without_types_has_those_of_its_debugging_information() {
    let (mut kernel, _) = kernel();
    assert!(kernel.btf().is_err());
    let beside = Vmlinux::parse(vmlinux(&sections())).unwrap();
    kernel.take_types(Some(&beside)).unwrap();
    let btf = kernel.btf().unwrap();
    let shown = |name| btf.named(name).map(|ty| c::definition(&btf, ty)).collect::<Vec<_>>().join("\n");
    let file = shown("file");
    assert!(file.contains("struct file *next;") && file.contains("int mode : 3;"), "{file}");
    assert!(file.contains("int rows[2][3];") && file.contains("size: 32"), "{file}");
    assert!(shown("whence").contains("BACK = -1"), "{}", shown("whence"));
    let function = btf.function("open").unwrap();
    assert_eq!(
        c::prototype(&btf, function),
        "int open(struct file *file, struct secret *secret, enum whence whence)"
    );
    assert!(btf.function("check").is_none(), "it has no code of its own");
    // What one unit has only declared is what another has described.
    assert!(btf.member("file", "next").is_some() && btf.named("file").count() == 1);
    let (_, first) = function.prototype.parameters().next().unwrap();
    assert!(btf.pointee(first).and_then(|to| btf.size(to)) == Some(32));
}

#[test]
fn seeds_of_the_fuzz_target() {
    testing::seed("seeds/dwarf/lines", &vmlinux(&sections()));
}

proptest! {
    #[test]
    fn no_corruption_panics(
        section in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        bytes in proptest::collection::vec(any::<u8>(), 1..8),
    ) {
        let mut sections = sections();
        damage(&mut sections, section, at, &bytes);
        let file = vmlinux(&sections);
        if let Ok(debug) = DebugFile::read(&file) {
            if let Ok(map) = SourceMap::read(&debug, Gva(TEXT)) {
                let table = map.line_table();
                (0..20).for_each(|offset| drop(table.at(Gva(TEXT + offset))));
            }
            if let Ok(section) = btf(&debug) {
                let btf = Btf::parse(&section).unwrap();
                btf.types().for_each(|ty| drop(c::definition(&btf, ty)));
            }
        }
    }
}
