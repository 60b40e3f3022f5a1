use super::super::super::ast::Statement;
use super::super::super::parse;
use super::super::{CompileContext, FilePlace, capture};
use crate::addr::Gva;
use crate::linux::dwarf::DebugFile;
use crate::linux::dwarf::testing::{CLOSE, OPEN, sections, vmlinux};
use crate::linux::kernel::Kernel;
use crate::linux::symbol_file::SymbolFile;

/// What `fetch` reads at `at` in a kernel that has types for parameters, or why it does not.
fn read(at: Gva, fetch: &str) -> String {
    let file = vmlinux(&sections());
    let map = format!("{OPEN} T open\n{CLOSE} T close\n{} T _etext\n", CLOSE.add(0x20)).replace("0x", "");
    let symbols = SymbolFile::parse(map.into_bytes()).unwrap();
    let mut kernel = Kernel::read(&file, Some(&symbols)).unwrap();
    kernel.take_types(None).unwrap();
    let btf = kernel.btf().unwrap();
    let debug = DebugFile::read(&file).unwrap();
    let variables = || debug.variables_at(at).map(Some).map_err(|error| error.to_string());
    let function = (at == OPEN).then_some("open");
    let place = function.map_or_else(|| at.to_string(), str::to_owned);
    let text = format!("p {place} {fetch}");
    let Statement::Define(definition) = parse(&text).unwrap() else { panic!("{text}") };
    let site = CompileContext {
        function,
        signature: None,
        skipped: 0,
        in_file: FilePlace::Kernel,
        event: None,
        kernel: &kernel,
        btf: Some(&btf),
        own: Some(&btf),
        variables: &variables,
    };
    match capture(&definition, &site, Vec::new()) {
        Ok(capture) => {
            let shown =
                |field: &crate::capture::Field| format!("{} = {}", field.type_name(), field.source(false));
            capture.fields.iter().map(shown).collect::<Vec<_>>().join(", ")
        }
        Err(error) => format!("`{}`: {error}", text.get(error.span.clone()).unwrap()),
    }
}

#[test]
fn variables_and_their_members_become_registers_and_offsets() {
    let cases = [
        (0, "file->mode", "s32 = +0(%di)"),
        (0, "count", "s32 = %ax"),
        (8, "file", "x64 = %bx"),
        (8, "file->next->next->mode", "s32 = +0(+8(+8(%bx)))"),
        (8, "+8(file):u32", "u32 = +8(%bx)"),
        (8, "(file)(file->next)->mode", "s32 = +0(+8(%bx))"),
        (8, "copy.mode copy.next->mode copy:x64", "s32 = +24(%sp), s32 = +0(+32(%sp)), x64 = +24(%sp)"),
        (8, "three minus:s64", "s32 = \\0x3, s64 = \\0xfffffffffffffffe"),
        (0x18, "limit count inner", "s32 = %si, u64 = +8(%sp), s32 = %r8"),
        (0x18, "pair:x64", "x64 = %dx"),
        (0x20, "late:u8", "u8 = %r12"),
        (0x48, "below", "s32 = -8(%bp)"),
    ];
    for (offset, fetch, expected) in cases {
        assert_eq!(read(OPEN.add(offset), fetch), expected, "{fetch} at {offset:#x}");
    }
}

#[test]
fn what_has_no_place_is_refused_by_its_name() {
    let cases = [
        (8, "gone", "`gone`: `gone` has no value here: the compiler has optimized it out"),
        (8, "late", "`late`: `late` has no value here: the compiler has optimized it out"),
        (
            0x20,
            "file->mode",
            "`file`: `file` is not kept any more here: only its value at the function's entry could be found out",
        ),
        (8, "half", "`half`: `half` is kept in pieces here"),
        (8, "sum", "`sum`: `sum` is not kept here: it would have to be computed from other values"),
        (8, "fixed", "`fixed`: `fixed` lies at a fixed address, and not in a register or on the stack"),
        (8, "vector", "`vector`: `vector` is in a register here that probes do not see"),
        (
            8,
            "beyond",
            "`beyond`: `beyond` lies here where a pointer leads, and in no register and no slot of the stack",
        ),
        (8, "copy", "`copy`: `copy` is a structure or an array, and no single value"),
        (8, "copy->mode", "`mode`: what is before the `->` is a structure"),
        (8, "copy.mod", "`mod`: there is no member `mod`"),
        (8, "file.mode", "`mode`: what is before the `.` is a pointer"),
        (8, "pair.mode", "`pair`: `pair` is a structure in a register, and its members are not taken apart"),
        (8, "limit", "`limit`: no variable `limit` is in scope here"),
        (0x20, "inner", "`inner`: no variable `inner` is in scope here"),
        (
            0x48,
            "slot",
            "`slot`: `slot` lies in the stack frame, and where that begins here is not said by the debugging information \
             (.debug_frame)",
        ),
        (0, "counts", "`counts`: there is no variable `counts`"),
    ];
    for (offset, fetch, expected) in cases {
        assert_eq!(read(OPEN.add(offset), fetch), expected, "{fetch} at {offset:#x}");
    }
}
