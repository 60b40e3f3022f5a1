use super::*;
use proptest::prelude::*;

const BASE: Gva = Gva(0xffff_ffff_8100_0000);

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// `vfs_read` with `access_ok` inlined into `check` inlined into it.
fn small() -> LineTable {
    let files = names(&["", "fs/read_write.c", "include/linux/uaccess.h"]);
    let mut table = LineTableBuilder::new(BASE, &files, &names(&["", "check", "access_ok"]));
    table.call(0, 0, 0, 0);
    table.call(0, 1, 1, 460);
    table.call(1, 2, 1, 30);
    table.push(0x10, 1, 450, 0);
    table.push(0x14, 1, 450, 0);
    table.push(0x20, 2, 9, 2);
    table.push(0x28, 1, 0, 1);
    table.push(0x30, 0, 0, 0);
    table.finish()
}

fn shown(table: &LineTable, at: u64) -> Vec<String> {
    let shown = |line: &SourceLine<'_>| format!("{line} {}", line.inlined.unwrap_or("-"));
    table.at(BASE.add(at)).iter().map(shown).collect()
}

#[test]
fn an_address_has_its_line_and_those_that_it_was_called_from() {
    let table = small();
    for (at, expected) in [
        (0xf, &[][..]),
        (0x10, &["fs/read_write.c:450 -"]),
        (0x1f, &["fs/read_write.c:450 -"]),
        (0x20, &["include/linux/uaccess.h:9 access_ok", "fs/read_write.c:30 check", "fs/read_write.c:460 -"]),
        (0x28, &["fs/read_write.c:? check", "fs/read_write.c:460 -"]),
        (0x30, &[]),
        (0x4000, &[]),
        (u64::MAX, &[]),
    ] {
        assert_eq!(shown(&table, at), expected, "{at:#x}");
    }
}

#[test]
fn a_table_arrives_as_it_was_sent() {
    let sent = postcard::to_stdvec(&small()).unwrap();
    let table: LineTable = postcard::from_bytes(&sent).unwrap();
    assert_eq!(shown(&table, 0x20), shown(&small(), 0x20));
    assert!(postcard::from_bytes::<LineTable>(&sent[..sent.len() - 1]).is_err());
    assert_eq!(format!("{:?}", small()), format!("LineTable {{ bytes: {}, .. }}", small().bytes()));
}

#[test]
fn a_damaged_table_comes_to_an_end() {
    let mut table = small();
    table.calls = Words::default();
    for [caller, function] in [[0, 0], [2, 1], [1, 2]] {
        table.calls.push([caller, function, 7, 7]);
    }
    // The second call says that it is inside the third, which is inside it.
    assert_eq!(shown(&table, 0x20), ["include/linux/uaccess.h:9 access_ok", ":7 check"]);
    table.rows = Bytes::from(vec![0xff; 20]);
    assert_eq!(shown(&table, 0x20), [""; 0]);
}

proptest! {
    #[test]
    fn every_row_is_found(steps in proptest::collection::vec((1u32..300, 1u32..5, any::<u32>(), 0u32..3), 1..300)) {
        let files = names(&["", "a", "b", "c", "d"]);
        let mut table = LineTableBuilder::new(BASE, &files, &names(&["", "f", "g"]));
        table.call(0, 0, 0, 0);
        table.call(0, 1, 1, 1);
        table.call(1, 2, 2, 2);
        let mut at = 0;
        let mut rows = Vec::new();
        for (step, file, line, call) in steps {
            at += step;
            table.push(at, file, line, call);
            rows.push((at, step, file, line, call));
        }
        let table = table.finish();
        for (index, (at, _, file, line, call)) in rows.iter().enumerate() {
            let end = rows.get(index + 1).map_or(at + 1000, |next| next.0);
            for at in [*at, end - 1] {
                let found = table.at(BASE.add(at.into()));
                prop_assert_eq!(found.len(), *call as usize + 1);
                prop_assert_eq!((found[0].file, found[0].line), (files[*file as usize].as_str(), *line));
            }
        }
    }
}
