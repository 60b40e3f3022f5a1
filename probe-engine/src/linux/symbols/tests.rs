use super::*;

pub(super) fn table(symbols: &[(u64, u8, &str)]) -> SymbolTable {
    let mut builder = SymbolTableBuilder::default();
    for (at, kind, name) in symbols {
        builder.push(Gva(*at), *kind, name).unwrap();
    }
    builder.finish()
}

fn small() -> SymbolTable {
    table(&[
        (0x1030, b't', "show"),
        (0x1000, b'T', "_text"),
        (0x1000, b'T', "startup_64"),
        (0x1010, b't', "__pfx_vfs_read"),
        (0x1020, b'T', "vfs_read"),
        (0x1020, b'W', "vfs_read_alias"),
        (0x1040, b't', "show"),
        (0x1050, b'D', "jiffies"),
        (0x1060, b'T', "last"),
    ])
}

#[test]
fn names_lead_to_every_address() {
    let table = small();
    let at = |name| table.lookup(name).map(|symbol| symbol.at.0).collect::<Vec<_>>();
    assert_eq!(at("show"), [0x1030, 0x1040]);
    assert_eq!(at("vfs_read"), [0x1020]);
    assert_eq!(at("vfs_rea"), [0; 0]);
    assert_eq!(at("zzz"), [0; 0]);
    assert_eq!(table.address_of("vfs_read"), Some(Gva(0x1020)));
    assert_eq!(table.address_of("show"), None);
}

#[test]
fn addresses_lead_to_the_first_alias_and_its_end() {
    let table = small();
    let place = |at| table.place(Gva(at)).to_string();
    assert_eq!(place(0x1020), "vfs_read");
    assert_eq!(place(0x102f), "vfs_read+0xf");
    assert_eq!(place(0x1010), "__pfx_vfs_read");
    assert_eq!(place(0x1008), "_text+0x8");
    assert_eq!(place(0x1055), "0x1055");
    assert_eq!(place(0xfff), "0xfff");
    assert_eq!(place(0x1060), "0x1060");
    assert_eq!(table.function_at(Gva(0x1024)).unwrap().range(), Gva(0x1020)..Gva(0x1030));
}

#[test]
fn patterns_see_text_only() {
    let table = small();
    let matching = |pattern| {
        let glob = Glob::new(pattern).unwrap();
        table.matching(&glob).map(|symbol| symbol.name.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(matching("vfs_*"), ["vfs_read", "vfs_read_alias"]);
    assert_eq!(matching("jif*"), [""; 0]);
    assert_eq!(table.nearest("vfs_raed", 1), ["vfs_read"]);
    assert_eq!(table.nearest("jifies", 1), [""; 0]);
    assert_eq!(table.nearest_of_all("jifies", 1), ["jiffies"]);
}

#[test]
fn a_table_arrives_as_it_was_sent() {
    let json = serde_json::to_value(small()).unwrap();
    let table: SymbolTable = serde_json::from_value(json.clone()).unwrap();
    assert!(table.iter().eq(small().iter()));
    assert_eq!(table.lookup("show").count(), 2);
    for (column, value) in [
        ("names", "_text".into()),
        ("names", "x".repeat(100).into()),
        ("kinds", "tTtTWtDT".into()),
        ("kinds", "tTtTWtDT\u{1000}".into()),
        ("lens", serde_json::json!([1])),
        ("steps", serde_json::json!([u64::MAX, 1, 0, 0, 0, 0, 0, 0, 0])),
    ] {
        let mut json = json.clone();
        json[column] = value;
        let error = serde_json::from_value::<SymbolTable>(json).unwrap_err();
        assert_eq!(error.to_string(), "a damaged table of symbols", "{column}");
    }
}

#[test]
fn data_has_names_where_it_lies_in_the_kernel() {
    const KERNEL: u64 = 0xffff_ffff_8100_0000;
    let table = table(&[
        (0x20, b'A', "cpu_info"),
        (0x40, b'D', "cpu_number"),
        (KERNEL, b'T', "_text"),
        (KERNEL + 0x10, b'D', "init_task"),
        (KERNEL + 0x30, b'B', "_end"),
    ]);
    let name = |at| table.symbol_at(Gva(at)).map(|found| found.symbol.name);
    assert_eq!(name(KERNEL + 0x18), Some("init_task"));
    assert_eq!(name(KERNEL + 0x8), Some("_text"));
    assert_eq!(table.symbol_at(Gva(KERNEL + 0x18)).unwrap().end, Gva(KERNEL + 0x30));
    for nothing in [0, 0x28, 0x48, KERNEL - 1, KERNEL + 0x30, u64::MAX] {
        assert_eq!(name(nothing), None, "{nothing:#x}");
    }
}

#[test]
fn an_empty_table_answers() {
    let table = table(&[]);
    assert!(table.is_empty());
    assert_eq!(table.function_at(Gva(0)), None);
    assert_eq!(table.lookup("a").count(), 0);
}
