use super::record::kind;
use super::*;
use crate::linux::testing::{self, BtfBuilder};
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
fn functions_have_prototypes() {
    let mut btf = BtfBuilder::default();
    let int = btf.int("int", 4);
    let pointer = btf.pointer(0);
    let names = ["format", "size"].map(|name| btf.name(name));
    let print = btf.add("", kind::FUNC_PROTO, 3, false, int, &[names[0], pointer, names[1], int, 0, 0]);
    let other = btf.add("", kind::FUNC_PROTO, 1, false, 0, &[names[1], int]);
    btf.structure("print", 4, &[("size", int, 0)]);
    let first = btf.add("print", kind::FUNC, 0, false, print, &[]);
    btf.add("print", kind::FUNC, 0, false, other, &[]);
    btf.add("print", kind::FUNC, 1, false, print, &[]);
    btf.add("nothing", kind::FUNC, 1, false, int, &[]);
    let section = btf.finish();
    let btf = Btf::parse(&section).unwrap();
    let found = btf.function("print").unwrap();
    assert_eq!((found.id, found.others), (TypeId(first), 1));
    assert_eq!(found.prototype.returns, TypeId(int));
    let parameters: Vec<_> = found.prototype.parameters().collect();
    assert_eq!(parameters, [("format", TypeId(pointer)), ("size", TypeId(int))]);
    assert!(found.prototype.is_variadic());
    assert_eq!(btf.named("print").count(), 4);
    assert!(btf.function("print.llvm.123").is_some(), "clang has promoted it");
    assert!(btf.function("nothing").is_none());
    assert!(btf.function("prin").is_none());
    let Some(Kind::Prototype(other)) = btf.get(TypeId(other)).map(|found| found.kind) else { panic!() };
    assert_eq!((other.parameters().count(), other.is_variadic()), (1, false));
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
    let parse = |bytes: &[u8]| Btf::parse(bytes).map(|btf| btf.type_count());
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

/// What [`BtfBuilder::add`] takes, and what the type says of itself.
type Row<'a> = (&'a str, u8, u32, bool, u32, &'a [u32], &'a str);

/// Every kind of type, and what it says of itself.
#[test]
fn every_kind_is_read() {
    let mut btf = BtfBuilder::default();
    let int = btf.add("int", kind::INT, 0, false, 4, &[1 << 24 | 32]);
    let flag = btf.add("_Bool", kind::INT, 0, false, 1, &[4 << 24 | 8]);
    let [x, y, a] = ["x", "y", "A"].map(|name| btf.name(name));
    let rest: [Row; 19] = [
        ("", kind::PTR, 0, false, int, &[], "Pointer(TypeId(1))"),
        ("", kind::ARRAY, 0, false, 0, &[flag, int, 7], "Array { element: TypeId(2), count: 7 }"),
        ("s", kind::STRUCT, 2, true, 8, &[x, int, 3 << 24 | 5, y, int, 32], ""),
        ("u", kind::UNION, 1, false, 4, &[x, int, 0], ""),
        ("e", kind::ENUM, 1, true, 4, &[a, u32::MAX], ""),
        ("e", kind::ENUM, 1, false, 4, &[a, u32::MAX], ""),
        ("f", kind::FWD, 0, true, 0, &[], "Forward { is_union: true }"),
        ("t", kind::TYPEDEF, 0, false, int, &[], "Typedef(TypeId(1))"),
        ("", kind::VOLATILE, 0, false, int, &[], "Modifier { modifier: Volatile, ty: TypeId(1) }"),
        ("", kind::CONST, 0, false, int, &[], "Modifier { modifier: Const, ty: TypeId(1) }"),
        ("", kind::RESTRICT, 0, false, int, &[], "Modifier { modifier: Restrict, ty: TypeId(1) }"),
        ("user", kind::TYPE_TAG, 0, false, int, &[], "Modifier { modifier: TypeTag, ty: TypeId(1) }"),
        ("f", kind::FUNC, 2, false, 16, &[], "Function { prototype: TypeId(16), linkage: Extern }"),
        ("", kind::FUNC_PROTO, 1, false, int, &[x, int], ""),
        ("v", kind::VAR, 0, false, int, &[1], "Variable { ty: TypeId(1), linkage: Global }"),
        (".data", kind::DATASEC, 1, false, 64, &[17, 8, 4], ""),
        ("double", kind::FLOAT, 0, false, 8, &[], "Float { size: 8 }"),
        ("bpf", kind::DECL_TAG, 0, false, 15, &[u32::MAX], "Tag { ty: TypeId(15), component: None }"),
        ("e64", kind::ENUM64, 1, true, 8, &[a, 0, 1 << 31], ""),
    ];
    for (name, kind, count, flag, size_or_type, rest, _) in rest {
        btf.add(name, kind, count, flag, size_or_type, rest);
    }
    let section = btf.finish();
    let btf = Btf::parse(&section).unwrap();
    assert_eq!(btf.type_count(), 21);
    assert_eq!(btf.types().count(), 21);
    for (id, (name, .., expected)) in (3..).zip(rest) {
        let found = btf.get(TypeId(id)).unwrap();
        assert_eq!((found.id, found.name()), (TypeId(id), name));
        if !expected.is_empty() {
            assert_eq!(format!("{:?}", found.kind), expected);
        }
    }
    let kind = |id| btf.get(TypeId(id)).unwrap().kind;
    assert!(matches!(kind(0), Kind::Void));
    assert!(btf.get(TypeId(22)).is_none());
    let signed = Int { bytes: 4, bits: 32, is_signed: true, is_char: false, is_bool: false };
    assert!(matches!(kind(1), Kind::Int(int) if int == signed));
    let truth = Int { bytes: 1, bits: 8, is_signed: false, is_char: false, is_bool: true };
    assert!(matches!(kind(2), Kind::Int(int) if int == truth));
    let members = |name| {
        let found = btf.structure(name).unwrap();
        (found.is_union, found.size, found.members().collect::<Vec<_>>())
    };
    let [first, second] = [("x", 5, Some(3)), ("y", 32, None)].map(|(name, bit, bits)| Member {
        name,
        bit,
        bits,
        ty: TypeId(int),
    });
    assert_eq!(members("s"), (false, 8, vec![first, second]));
    assert_eq!(members("u"), (true, 4, vec![Member { bit: 0, bits: None, ..first }]));
    let values = |id| match kind(id) {
        Kind::Enumeration(found) => (found.size, found.is_signed, found.values().collect::<Vec<_>>()),
        other => panic!("{other:?}"),
    };
    assert_eq!(values(7), (4, true, vec![("A", -1)]));
    assert_eq!(values(8), (4, false, vec![("A", 0xffff_ffff)]));
    assert_eq!(values(21), (8, true, vec![("A", i64::MIN)]));
    let Kind::Section(data) = kind(18) else { panic!() };
    assert_eq!((data.size, data.variables().collect::<Vec<_>>()), (64, vec![(TypeId(17), 8, 4)]));
    for (id, size) in [
        (1, Some(4)),
        (3, Some(8)),
        (4, Some(7)),
        (9, None),
        (14, Some(4)),
        (15, None),
        (16, None),
        (17, Some(4)),
        (18, Some(64)),
        (19, Some(8)),
        (20, None),
        (21, Some(8)),
    ] {
        assert_eq!(btf.size(TypeId(id)), size, "{id}");
    }
}

/// A module's types are numbered behind the kernel's, and so are its strings.
#[test]
fn a_modules_types_are_read_on_top_of_the_kernels() {
    let base = section();
    let base = Btf::parse(&base).unwrap();
    let last = base.type_count();
    let mut btf = BtfBuilder::on_top_of(&base);
    let own = btf.structure("own", 16, &[("module", 13, 0), ("next", last + 2, 8)]);
    let pointer = btf.pointer(own);
    let shared = base.strings.own.windows(7).position(|name| name == b"module\0").unwrap() as u32;
    btf.add_named(shared, kind::STRUCT, 0, false, 4, &[]);
    let section = btf.finish();
    let btf = Btf::split(&base, &section).unwrap();
    assert_eq!((own, pointer, btf.type_count()), (last + 1, last + 2, last + 3));
    assert_eq!(btf.get(TypeId(own)).unwrap().name(), "own");
    assert_eq!(btf.structure("own").unwrap().id, TypeId(own));
    assert_eq!(btf.pointee(TypeId(pointer)), Some(TypeId(own)));
    assert_eq!(btf.member("own", "next").unwrap().offset(), Some(8));
    assert_eq!(btf.size_of("part"), Some(16), "the kernel's are there");
    let named: Vec<_> = btf.named("module").map(|found| found.id.0).collect();
    assert_eq!(named, [last + 3, base.structure("module").unwrap().id.0], "its own come first");
    assert_eq!(btf.types().count() as u32, last + 3);
    assert!(base.get(TypeId(own)).is_none());
    assert_eq!(Btf::split(&btf, &section).unwrap_err(), BtfError::Base);
}

#[test]
fn damaged_names_are_empty() {
    let mut btf = BtfBuilder::default();
    btf.int("good", 4);
    btf.int(&"x".repeat(512), 4);
    btf.int(&"x".repeat(513), 4);
    btf.add_named(u32::MAX, kind::INT, 0, false, 4, &[32]);
    btf.int("b\u{7f}d", 4);
    btf.int("open", 4);
    let mut section = btf.finish();
    let bad = section.windows(3).position(|name| name == b"b\x7fd").unwrap();
    section[bad + 1] = 0xff;
    *section.last_mut().unwrap() = b'!';
    let btf = Btf::parse(&section).unwrap();
    let lens: Vec<_> = btf.types().map(|found| found.name().len()).collect();
    assert_eq!(lens, [4, 512, 0, 0, 0, 0]);
    assert_eq!(btf.named("").count(), 0);
}

/// Asks everything of every type.
fn look(btf: &Btf<'_>) {
    for found in btf.types() {
        let _ = (btf.size(found.id), btf.plain(found.id), btf.member_of(found.id, "nobody"));
        let entries = match found.kind {
            Kind::Structure(structure) => structure.members().count(),
            Kind::Enumeration(enumeration) => enumeration.values().count(),
            Kind::Prototype(prototype) => prototype.parameters().count(),
            Kind::Section(section) => section.variables().count(),
            _ => 0,
        };
        assert!(entries <= 0xffff);
        assert!(found.name().is_empty() || btf.named(found.name()).any(|same| same.id == found.id));
    }
}

#[test]
fn seeds_of_the_fuzz_target() {
    let section = section();
    let kernel = Btf::parse(&section).unwrap();
    let mut module = BtfBuilder::on_top_of(&kernel);
    let own = module.structure("own", 16, &[("low", 1, 0), ("next", kernel.type_count() + 2, 8)]);
    module.pointer(own);
    for (name, module) in [("kernel", Vec::new()), ("with_a_module", module.finish())] {
        let bytes = [(section.len() as u32).to_le_bytes().to_vec(), section.clone(), module].concat();
        testing::seed(&format!("seeds/btf/{name}"), &bytes);
    }
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
            let _ = (btf.enum_value("kind", "INIT"), btf.function("function"));
            look(&btf);
        }
    }

    #[test]
    fn no_corruption_of_a_modules_types_panics(
        at in any::<prop::sample::Index>(),
        bytes in proptest::collection::vec(any::<u8>(), 1..16),
        cut in any::<prop::sample::Index>(),
    ) {
        let base = section();
        let base = Btf::parse(&base).unwrap();
        let mut btf = BtfBuilder::on_top_of(&base);
        let own = btf.structure("own", 16, &[("low", 1, 0), ("next", base.type_count() + 2, 8)]);
        btf.pointer(own);
        btf.add("own", kind::FUNC, 0, false, base.type_count() - 1, &[]);
        let good = btf.finish();
        let mut bad = good.clone();
        let at = at.index(bad.len());
        for (byte, new) in bad.iter_mut().skip(at).zip(&bytes) {
            *byte = *new;
        }
        for section in [&bad[..], &good[..cut.index(good.len())]] {
            if let Ok(btf) = Btf::split(&base, section) {
                let _ = (btf.member("own", "next.low"), btf.function("own"));
                look(&btf);
            }
        }
    }
}
