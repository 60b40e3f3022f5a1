use super::*;
use crate::linux::symbol_file::SymbolFile;
use crate::linux::testing::{Part, elf};

const TEXT: u64 = 0xffff_ffff_8100_0000;
const DATA: u64 = 0xffff_ffff_8200_0000;

/// Functions of nops: two `show`, one with an alias, and one with padding before it.
fn kernel() -> Kernel {
    let data = vec![0; 0x10];
    let image = elf(&[Part::text(".text", TEXT, vec![0x90; 0x100]), Part::data(".data", DATA, data)]);
    let symbols = [
        (0, "T _text"),
        (0x10, "t show"),
        (0x20, "T vfs_read"),
        (0x20, "W vfs_read_alias"),
        (0x30, "t show"),
        (0x40, "t __pfx_late"),
        (0x50, "t late"),
        (0x100, "T _etext"),
    ];
    let lines = symbols.map(|(offset, symbol)| format!("{:x} {symbol}\n", TEXT + offset));
    let map = format!("{}{DATA:x} d first\n", lines.concat());
    Kernel::read(&image, Some(&SymbolFile::parse(map.into_bytes()).unwrap())).unwrap()
}

#[test]
fn every_place_has_its_address_and_the_name_that_leads_there() {
    let kernel = kernel();
    for (written, name, at) in [
        ("vfs_read", "vfs_read", 0x20),
        ("vfs_read_alias", "vfs_read_alias", 0x20),
        ("vfs_read_alias+0x3", "vfs_read_alias+0x3", 0x23),
        ("show#1", "show#1", 0x10),
        ("show#2+4", "show#2+0x4", 0x34),
        ("late#1", "late#1", 0x50),
        ("0xffffffff81000035", "show#2+0x5", 0x35),
        ("0xffffffff81000021", "vfs_read+0x1", 0x21),
        ("lat?", "late", 0x50),
    ] {
        let resolved = resolve(&written.parse().unwrap(), &kernel).unwrap();
        let [Place::Kernel { name: found, info }] = &*resolved.places else { panic!("{written}") };
        assert_eq!((found.as_str(), info.at), (name, Gva(TEXT + at)), "{written}");
        let again = resolve(&name.parse().unwrap(), &kernel).unwrap();
        assert_eq!(again.places, resolved.places, "{written}");
    }
}

#[test]
fn a_pattern_names_functions_once_and_tells_them_apart() {
    let resolved = resolve(&"*".parse().unwrap(), &kernel()).unwrap();
    let names: Vec<_> = resolved.places.iter().map(Place::name).collect();
    assert_eq!(names, ["_text", "show#1", "vfs_read", "show#2", "late"]);
    assert_eq!(resolved.places.iter().map(Place::function).nth(3), Some(Some("show")));
}

#[test]
fn what_means_no_function_is_told_what_there_is() {
    let kernel = kernel();
    for (written, said) in [
        (
            "show",
            "in the kernel, there are 2 `show`, and their files are not known (kallsyms has none): choose show#1 at \
             0xffffffff81000010, show#2 at 0xffffffff81000030",
        ),
        (
            "show#3",
            "in the kernel, there are only 2 `show`: show#1 at 0xffffffff81000010, show#2 at 0xffffffff81000030",
        ),
        ("late#2", "in the kernel, there is only one `late`: leave out what is behind the `#`"),
        ("vfs_raed#2", "the kernel has no function `vfs_raed`; did you mean `vfs_read`?"),
        ("__pfx_late", "`__pfx_late` cannot be probed: it is padding before a function, not code"),
        ("show#2+0x10", "`show#2` is 0x10 bytes long, the offset 0x10 is behind it"),
    ] {
        let error = resolve(&written.parse().unwrap(), &kernel).unwrap_err();
        assert_eq!(error.to_string(), said);
    }
}
