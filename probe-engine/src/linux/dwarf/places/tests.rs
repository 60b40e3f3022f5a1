use super::*;
use crate::linux::dwarf::inlined::{Inlined, InlinedCall};
use crate::linux::symbols::SymbolTableBuilder;

const BASE: Gva = Gva(0xffff_ffff_8100_0000);

/// `open` at 0x10 and `close` at 0x80, both of fs/open.c, each with a copy of `check`, of which one line is in `open` itself
/// as well; and a file of the same name.
fn small() -> (SourceMap, SymbolTable) {
    let row = |at, file, line| Row { at, file, line, is_stmt: true };
    let rows = vec![
        row(0x10, 1, 100),
        row(0x18, 1, 101),
        row(0x20, 1, 101),
        row(0x20, 1, 30),
        Row { is_stmt: false, ..row(0x24, 1, 31) },
        row(0x28, 1, 31),
        row(0x30, 2, 7),
        row(0x38, 1, 102),
        row(0x40, 0, 0),
        row(0x80, 1, 200),
        row(0x88, 1, 30),
        row(0x90, 1, 201),
        row(0xa0, 3, 30),
        row(0xb0, 0, 0),
    ];
    let call = |function, line| InlinedCall { caller: NO_CALL, function, file: 1, line };
    let mut inlined = Inlined::new();
    inlined.calls.extend([call(1, 101), call(1, 200)]);
    inlined.names.push("check".to_owned());
    let files = ["", "fs/open.c", "include/check.h", "tools/open.c"].map(str::to_owned).to_vec();
    let calls = vec![(0x20, 1), (0x38, 0), (0x88, 2), (0x90, 0)];
    let mut symbols = SymbolTableBuilder::default();
    for (at, name) in [(0, "_text"), (0x10, "open"), (0x80, "close"), (0xa0, "tool"), (0xb0, "_etext")] {
        symbols.push(BASE.add(at), b'T', name).unwrap();
    }
    (SourceMap { base: BASE, files, root: None, rows, inlined, calls }, symbols.finish())
}

#[test]
fn a_line_has_a_place_in_each_function_and_each_copy() {
    let (map, symbols) = small();
    let open = BASE.add(0x10)..BASE.add(0x80);
    let places = |file, line, within: Option<&Range<Gva>>| -> Vec<_> {
        let places = map.places(file, line, within, &symbols);
        places
            .into_iter()
            .map(|place| (place.at.offset_from(BASE).unwrap(), place.inlined.unwrap_or_default()))
            .collect()
    };
    let check = || "check".to_owned();
    assert_eq!(places("fs/open.c", 100, None), [(0x10, String::new())]);
    assert_eq!(places("fs/open.c", 101, None), [(0x18, String::new())], "the call is the caller's line");
    assert_eq!(places("fs/open.c", 30, None), [(0x20, check()), (0x88, check())]);
    assert_eq!(places("fs/open.c", 30, Some(&open)), [(0x20, check())]);
    assert_eq!(places("fs/open.c", 31, None), [(0x28, check())], "where a statement begins");
    assert_eq!(places("include/check.h", 7, None), [(0x30, check())]);
    assert_eq!(places("tools/open.c", 30, None), [(0xa0, String::new())]);
    assert_eq!(places("fs/open.c", 99, None), []);
    let lines = |within| map.lines_with_code("fs/open.c", within).into_iter().collect::<Vec<_>>();
    assert_eq!(lines(Some(&open)), [30, 31, 100, 101, 102]);
    assert_eq!(lines(None), [30, 31, 100, 101, 102, 200, 201]);
}

#[test]
fn a_file_may_be_named_by_the_end_of_its_path() {
    let (map, _) = small();
    assert_eq!(map.files_called("open.c"), ["fs/open.c", "tools/open.c"]);
    assert_eq!(map.files_called("fs/open.c"), ["fs/open.c"]);
    assert_eq!(map.files_called("./check.h"), ["include/check.h"]);
    assert_eq!(map.files_called("pen.c"), [""; 0]);
    assert_eq!(map.file_of(BASE.add(0x10)), Some("fs/open.c"));
    assert_eq!(map.file_of(BASE.add(0x30)), Some("fs/open.c"), "what is inlined is of another file");
    assert_eq!(map.file_of(BASE.add(0x40)), None);
    assert_eq!(map.file_of(BASE), None);
}
