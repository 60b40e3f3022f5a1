use super::*;
use crate::linux::testing::BtfBuilder;
use proptest::prelude::*;

/// ```c
/// typedef unsigned int word;
/// struct part { void *base; const word size; };
/// struct module {
///     word state;
///     union { word inner; struct { word first, second; }; };
///     struct part parts[7];
///     word low : 3, high : 5;
///     word grid[2][3];
/// };
/// enum kind { NONE = -1, TEXT = 0, INIT = 4 };
/// enum wide { BIG = 1 << 40 };
/// struct again { word x; };  struct again { word y; };
/// void function(void);
/// ```
fn section() -> Vec<u8> {
    let mut btf = BtfBuilder::default();
    let int = btf.int("unsigned int", 4);
    let word = btf.add("word", kind::TYPEDEF, 0, false, int, &[]);
    let constant = btf.add("", kind::CONST, 0, false, word, &[]);
    let pointer = btf.pointer(0);
    let part = btf.structure("part", 16, &[("base", pointer, 0), ("size", constant, 8)]);
    let pair = btf.structure("", 8, &[("first", word, 0), ("second", word, 4)]);
    let inner = [("inner", word, 0), ("", pair, 0)];
    let inner = inner.map(|(name, ty, at)| [btf.name(name), ty, at]);
    let union = btf.add("", kind::UNION, 2, false, 8, inner.as_flattened());
    let parts = btf.array(part, 7);
    let row = btf.array(word, 3);
    let grid = btf.array(row, 2);
    let members = [
        ("state", word, 0),
        ("", union, 32),
        ("parts", parts, 128),
        ("low", word, 3 << 24 | 1024),
        ("high", word, 5 << 24 | 1027),
        ("grid", grid, 1056),
    ];
    let members = members.map(|(name, ty, at)| [btf.name(name), ty, at]);
    btf.add("module", kind::STRUCT, 6, true, 160, members.as_flattened());
    let values = [("NONE", u32::MAX), ("TEXT", 0), ("INIT", 4)].map(|(name, value)| [btf.name(name), value]);
    btf.add("kind", kind::ENUM, 3, true, 4, values.as_flattened());
    let big = btf.name("BIG");
    btf.add("wide", kind::ENUM64, 1, false, 8, &[big, 0, 1 << 8]);
    btf.structure("again", 4, &[("x", word, 0)]);
    btf.structure("again", 4, &[("y", word, 0)]);
    let prototype = btf.add("", kind::FUNC_PROTO, 0, false, 0, &[]);
    btf.add("function", kind::FUNC, 1, false, prototype, &[]);
    btf.finish()
}

#[test]
fn members_are_found_by_path() {
    let section = section();
    let btf = Btf::parse(&section).unwrap();
    for (path, offset) in [
        ("state", 0),
        ("inner", 4),
        ("first", 4),
        ("second", 8),
        ("parts", 16),
        ("parts[0].base", 16),
        ("parts[0].size", 24),
        ("parts[4].size", 88),
        ("parts[6]", 112),
        ("grid[1]", 144),
    ] {
        let member = btf.member("module", path).unwrap_or_else(|| panic!("{path}"));
        assert_eq!(member.offset(), Some(offset), "{path}");
    }
    for path in
        ["", ".", "parts[7]", "parts[", "parts[]", "parts[-1]", "parts.base", "state[0]", "state.x", "stat"]
    {
        assert_eq!(btf.member("module", path), None, "{path}");
    }
    assert_eq!(btf.member("modul", "state"), None);
    assert_eq!(btf.member("again", "y").and_then(|member| member.offset()), Some(0));
    let high = btf.member("module", "high").unwrap();
    assert_eq!((high.bit, high.bits, high.offset()), (1027, Some(5), None));
}

#[test]
fn types_have_sizes_and_enumerators_values() {
    let section = section();
    let btf = Btf::parse(&section).unwrap();
    let size = |path| btf.size(btf.member("module", path).unwrap().ty);
    assert_eq!(size("state"), Some(4));
    assert_eq!(size("parts"), Some(112));
    assert_eq!(size("parts[2].base"), Some(8));
    assert_eq!(size("parts[2].size"), Some(4));
    assert_eq!(size("grid"), Some(24));
    assert_eq!(btf.array(btf.member("module", "parts").unwrap().ty).map(|(_, count)| count), Some(7));
    assert_eq!(btf.size_of("module"), Some(160));
    assert_eq!(btf.size_of("word"), None);
    for (name, value) in [("NONE", Some(-1)), ("TEXT", Some(0)), ("INIT", Some(4)), ("DATA", None)] {
        assert_eq!(btf.enum_value("kind", name), value, "{name}");
    }
    assert_eq!(btf.enum_value("wide", "BIG"), Some(1 << 40));
    assert_eq!(btf.size(TypeId(0)), None);
    assert_eq!(btf.size(TypeId(u32::MAX)), None);
}

#[test]
fn functions_have_numbers() {
    let section = section();
    let btf = Btf::parse(&section).unwrap();
    let last = btf.starts.len() as u32;
    assert_eq!(btf.func_id("function"), Some(last));
    assert_eq!(btf.func_id("module"), None);
}

#[test]
fn circles_end() {
    let mut btf = BtfBuilder::default();
    let name = btf.name("own");
    btf.add("loop", kind::TYPEDEF, 0, false, 1, &[]);
    btf.add("inside", kind::STRUCT, 2, false, 8, &[0, 2, 0, 0, 2, 32]);
    btf.add("", kind::ARRAY, 0, false, 0, &[3, 1, u32::MAX]);
    btf.add("holder", kind::STRUCT, 1, false, 8, &[name, 3, 0]);
    let section = btf.finish();
    let btf = Btf::parse(&section).unwrap();
    assert_eq!(btf.size(TypeId(1)), None);
    assert_eq!(btf.member("inside", "anything"), None);
    assert_eq!(btf.size(TypeId(3)), None);
    assert_eq!(btf.member("holder", "own[1]"), None);
}

#[test]
fn damage_is_named() {
    let good = section();
    let parse = |bytes: &[u8]| Btf::parse(bytes).map(|btf| btf.starts.len());
    assert_eq!(parse(b""), Err(BtfError::Header));
    assert_eq!(parse(b"\x7fELF and more than a header's worth of it"), Err(BtfError::Header));
    assert_eq!(parse(&good[..good.len() - 1]), Err(BtfError::Header));
    let mut unknown = good.clone();
    unknown[24 + 7] = 31;
    assert_eq!(parse(&unknown), Err(BtfError::Kind(1)));
    let mut cut = good;
    let len = u32_at(&cut, 12).unwrap();
    cut[12..16].copy_from_slice(&(len - 4).to_le_bytes());
    assert!(matches!(parse(&cut), Err(BtfError::Cut(_))));
}

proptest! {
    #[test]
    fn no_corruption_panics(at in any::<prop::sample::Index>(), bytes in proptest::collection::vec(any::<u8>(), 1..16)) {
        let mut section = section();
        let at = at.index(section.len());
        for (byte, new) in section.iter_mut().skip(at).zip(&bytes) {
            *byte = *new;
        }
        if let Ok(btf) = Btf::parse(&section) {
            for path in ["second", "parts[4].size", "grid[1]", "high"] {
                let _ = btf.member("module", path).map(|member| btf.size(member.ty));
            }
            let _ = (btf.enum_value("kind", "INIT"), btf.func_id("function"));
        }
    }
}
