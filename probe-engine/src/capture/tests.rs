use super::filter::{Filter, Operand, Order, Test};
use super::shape::Shape;
use super::shape::{Flag, MemberShape};
use super::shown::Shown;
use super::*;
use crate::addr::Gva;
use crate::linux::glob::Glob;
use crate::linux::task::Context;
use crate::linux::task::Task;
use crate::linux::testing::Ram;
use crate::regs::Regs;
use crate::virt_memory::LONGEST_STRING;
use proptest::prelude::*;

const TASK: Task = Task {
    at: Ram::BASE,
    pid: 42,
    tgid: 41,
    ns_pid: None,
    uid: None,
    context: Context::Task,
    comm: *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0",
};
/// Between a per-CPU variable and the CPU's own one.
const PER_CPU: u64 = 0x2800;
/// Behind all that is mapped.
const NOWHERE: Gva = Gva(0x10);

fn kernel(offset: u64) -> Gva {
    Ram::BASE.add(offset)
}

/// What `capture` reads with RDI at the start of what is mapped, and RSP at 0x1000 of it; as text.
fn taken(ram: &Ram, capture: &Capture) -> Option<String> {
    let regs = Regs { rdi: Ram::BASE.0, rsi: 7, rsp: kernel(0x1000).0, rax: u64::MAX - 1, ..Regs::default() };
    let scene = Scene {
        regs: &regs,
        entered_with: None,
        memory: &ram.memory(),
        slide: 0x1000,
        task: Some(&TASK),
        cpu: 3,
        per_cpu: Some(PER_CPU),
    };
    let mut record = Vec::with_capacity(LONGEST_RECORD);
    let room = record.capacity();
    let passes = capture.take(&scene, &mut record);
    assert_eq!(record.capacity(), room, "a hit allocates nothing");
    let shown = |(field, value): (&Field, Value<'_>)| {
        format!("{}={}", field.name, Shown { shape: &field.shape, value, names: &names::none })
    };
    passes.then(|| capture.values(&record).map(shown).collect::<Vec<_>>().join(" "))
}

fn one(fetch: Fetch, shape: Shape) -> Capture {
    Capture { fields: vec![Field { name: "a".to_owned(), fetch, shape }], ..Capture::default() }
}

fn of(base: Base, hops: &[i64], read: Read) -> Fetch {
    let hops = hops.iter().map(|offset| Hop::at(*offset)).collect();
    Fetch { base, hops, read }
}

fn at(offset: i64, what: What) -> Read {
    Read::Memory(Hop::at(offset), what)
}

const RDI: Base = Base::Register(Register::Rdi);

#[test]
fn values_come_from_where_they_are_said_to_be() {
    let ram = Ram::new();
    ram.put(kernel(8), &kernel(0x100).0.to_le_bytes());
    ram.put(kernel(0x110), &0x1122_3344_5566_7788u64.to_le_bytes());
    ram.put(kernel(0x1008), &[0xfe, 0xff, 0xff, 0xff]);
    ram.put(kernel(0x2000), b"words\0");
    ram.put(kernel(0x2818), &[0x2a, 0, 0, 0]);
    let own = |offset| Hop { per_cpu: true, ..Hop::at(offset) };
    let long = Shape::Signed;
    let cases = [
        (of(RDI, &[], Read::Word(8)), Shape::Hex, "a=0xffffffffc0000000"),
        (of(Base::Argument(1), &[], Read::Word(4)), Shape::Unsigned, "a=7"),
        (of(RDI, &[8], at(0x10, What::Bytes(2))), Shape::Hex, "a=0x7788"),
        (of(RDI, &[8], at(0x10, What::Bytes(8))), Shape::Hex, "a=0x1122334455667788"),
        (of(Base::Stack(1), &[], Read::Word(4)), long.clone(), "a=-2"),
        // The seventh argument is the first word behind the return address.
        (of(Base::Argument(6), &[], Read::Word(4)), long.clone(), "a=-2"),
        (of(Base::Constant(5), &[], Read::Word(1)), Shape::Char, "a='\\x05'"),
        (of(Base::Kernel(kernel(0x1000)), &[], at(0, What::String(9))), Shape::Text, "a=\"words\""),
        (of(Base::Comm, &[], Read::Word(0)), Shape::Text, "a=\"cat\""),
        (of(Base::Text("x".to_owned()), &[], Read::Word(0)), Shape::Text, "a=\"x\""),
        (of(Base::Current, &[], Read::Word(8)), Shape::Hex, "a=0xffffffffc0000000"),
        (of(Base::Current, &[8], at(0x10, What::Bytes(2))), Shape::Hex, "a=0x7788"),
        (of(RDI, &[], Read::Memory(own(0x18), What::Bytes(4))), Shape::Unsigned, "a=42"),
        (of(RDI, &[], Read::Address(own(0x18), 8)), Shape::Hex, "a=0xffffffffc0002818"),
        (of(RDI, &[], Read::Address(own(0x18), 2)), Shape::Hex, "a=0x2818"),
        (of(Base::Unknown, &[], Read::Word(8)), Shape::Hex, "a=(missing)"),
        (of(Base::Constant(NOWHERE.0), &[0], at(8, What::Bytes(8))), Shape::Hex, "a=(fault)"),
        (of(RDI, &[], at(-1, What::Bytes(8))), Shape::Hex, "a=(fault)"),
        (
            of(Base::Constant(0), &[], Read::Pointee { what: What::String(8), user: false }),
            Shape::Text,
            "a=NULL",
        ),
        (
            of(Base::Constant(NOWHERE.0), &[], Read::Pointee { what: What::String(8), user: false }),
            Shape::Text,
            "a=0x10 (not present)",
        ),
        (of(Base::Register(Register::Rax), &[], Read::Word(8)), Shape::Pointer(None), "a=-2 (ENOENT)"),
        (of(Base::Register(Register::Rax), &[], Read::Word(4)), Shape::Result, "a=-2 (ENOENT)"),
    ];
    for (fetch, shape, expected) in cases {
        assert_eq!(taken(&ram, &one(fetch.clone(), shape)).as_deref(), Some(expected), "{fetch:?}");
    }
}

#[test]
fn strings_end_at_their_nul_at_a_page_or_where_too_much_would_be_read() {
    let ram = Ram::new();
    ram.put(kernel(0xffd), b"pages\0");
    ram.put(kernel(Ram::LEN - 2), b"no");
    ram.put(kernel(0x3000), &[b'x'; 0x1100]);
    ram.put(kernel(0x10), &kernel(0xffd).0.to_le_bytes());
    ram.put(kernel(0x18), &NOWHERE.0.to_le_bytes());
    ram.put(kernel(0x20), &Ram::USER.add(0xfff).0.to_le_bytes());
    let string =
        |offset, most| taken(&ram, &one(of(RDI, &[], at(offset, What::String(most))), Shape::Text)).unwrap();
    assert_eq!(string(0xffd, 64), "a=\"pages\"");
    assert_eq!(string(0xffd, 4), "a=\"page\"...");
    assert_eq!(string(Ram::LEN as i64 - 2, 64), "a=(fault)", "the end is in a page that is not there");
    assert_eq!(string(Ram::LEN as i64 - 2, 2), "a=\"no\"...");
    assert_eq!(string(0x3000, LONGEST_STRING).len(), "a=\"\"...".len() + 4096);
    let several = Shape::Array { count: 3, of: Box::new(Shape::Text) };
    let strings = taken(&ram, &one(of(RDI, &[], at(0x10, What::Strings(3))), several));
    assert_eq!(strings.unwrap(), "a={\"pages\",(fault),\"ges\"}");
    // What has to be a process's is not read from the kernel, which may be anywhere else.
    let user = |at: Gva| Fetch {
        base: Base::Constant(at.0),
        hops: Vec::new(),
        read: Read::Memory(Hop::of_user(0), What::String(9)),
    };
    assert_eq!(taken(&ram, &one(user(Ram::USER.add(0xffd)), Shape::Text)).unwrap(), "a=\"pages\"");
    assert_eq!(taken(&ram, &one(user(kernel(0xffd)), Shape::Text)).unwrap(), "a=(fault)");
}

#[test]
fn a_record_has_an_end() {
    let ram = Ram::new();
    ram.put(kernel(0), &[b'x'; 0x4000]);
    let mut capture = one(of(RDI, &[], at(0, What::String(LONGEST_STRING))), Shape::Text);
    let field = capture.fields.remove(0);
    capture.fields = vec![field; 128];
    let text = taken(&ram, &capture).unwrap();
    assert!(text.len() > 3 * 4096, "{}", text.len());
    assert!(text.ends_with("a=(missing)"), "what had no room is not shown as something else");
}

#[test]
fn a_return_knows_what_the_function_was_entered_with() {
    let ram = Ram::new();
    let regs = Regs { rsi: 1, rsp: kernel(0).0, ..Regs::default() };
    let memory = ram.memory();
    let entered_with = Some([10, 11, 12, 13, 14, 15]);
    let scene = Scene { entered_with, ..Scene::of_registers(&regs, &memory) };
    let mut capture = one(of(Base::Argument(1), &[], Read::Word(8)), Shape::Unsigned);
    capture.fields.extend(one(of(Base::Argument(6), &[], Read::Word(8)), Shape::Unsigned).fields);
    capture.fields.extend(one(of(Base::Comm, &[], Read::Word(0)), Shape::Text).fields);
    capture.fields.extend(one(of(Base::Current, &[], Read::Word(8)), Shape::Hex).fields);
    let own = Hop { per_cpu: true, ..Hop::at(0) };
    capture.fields.extend(one(of(RDI, &[], Read::Address(own, 8)), Shape::Hex).fields);
    let mut record = Vec::new();
    assert!(capture.take(&scene, &mut record));
    let values: Vec<_> = capture.values(&record).map(|(_, value)| value).collect();
    assert_eq!(
        values,
        [Value::Bytes(&11u64.to_le_bytes()), Value::Missing, Value::Missing, Value::Missing, Value::Missing,]
    );
}

#[test]
fn numbers_and_structures_are_shown_as_people_write_them() {
    let flag = |mask, value, name: &str| Flag { mask, value, name: name.to_owned() };
    let flags =
        Shape::Flags(vec![flag(3, 0, "RO"), flag(3, 1, "WO"), flag(0xc, 0xc, "BOTH"), flag(4, 4, "ONE")]);
    let names = Shape::Enum(vec![(-1, "MINUS".to_owned()), (2, "TWO".to_owned())]);
    let bits = |low, width, of| Shape::BitField { low, width, of: Box::new(of) };
    let member = |name: &str, offset, len, shape| MemberShape { name: name.to_owned(), offset, len, shape };
    let structure = Shape::Struct {
        members: vec![member("x", 0, 1, Shape::Unsigned), member("y", 2, 2, bits(4, 4, Shape::Signed))],
        more: true,
    };
    let cases: [(&[u8], Shape, &str, &str); 17] = [
        (&[8, 1], flags.clone(), "RO|0x108", "\"RO|0x108\""),
        (&[0xd], flags.clone(), "WO|BOTH", "\"WO|BOTH\""),
        (&[4], flags.clone(), "RO|ONE", "\"RO|ONE\""),
        (&[0], flags, "RO", "\"RO\""),
        (&[0xff], names.clone(), "MINUS", "\"MINUS\""),
        (&[2, 0, 0, 0], names.clone(), "TWO", "\"TWO\""),
        (&[3], names, "3", "\"3\""),
        (&[0xa4, 1], Shape::Octal, "0o644", "\"0o644\""),
        (&[1], Shape::Bool, "true", "true"),
        (b"a", Shape::Char, "'a'", "\"'a'\""),
        (&[0xf0], bits(4, 4, Shape::Unsigned), "15", "15"),
        (&[0xf0], bits(4, 4, Shape::Signed), "-1", "-1"),
        (&[0xfe, 0xff], Shape::Signed, "-2", "-2"),
        (&[1, 0, 2, 0], Shape::Array { count: 2, of: Box::new(Shape::Unsigned) }, "{1,2}", "[1,2]"),
        (&[9, 0, 0xf0, 0], structure, "{x=9, y=-1...}", "{\"x\":9,\"y\":-1}"),
        (
            b"a\"\n\xff\0b",
            Shape::Text,
            "\"a\\\"\\n\\xff\"",
            "{\"text\":\"a\\\"\\n\u{fffd}\",\"bytes\":\"61220aff\"}",
        ),
        (&[0xf4, 0xff, 0xff, 0xff], Shape::Result, "-12 (ENOMEM)", "-12"),
    ];
    for (bytes, shape, text, json) in cases {
        let shown = Shown { shape: &shape, value: Value::Bytes(bytes), names: &names::none };
        assert_eq!(shown.to_string(), text, "{shape:?}");
        assert_eq!(serde_json::to_string(&shown).unwrap(), json, "{shape:?}");
    }
    let symbol = |_| Some("vfs_read+0x4/0x370".to_owned());
    let value = Value::Bytes(&[1; 8]);
    assert_eq!(Shown { shape: &Shape::Symbol, value, names: &symbol }.to_string(), "vfs_read+0x4/0x370");
    let fault = Shown { shape: &Shape::Hex, value: Value::Fault(NOWHERE), names: &names::none };
    assert_eq!(serde_json::to_string(&fault).unwrap(), "{\"fault\":\"0x10\"}");
    let cut = Value::Text { bytes: b"a", cut: true };
    let pointer = Shape::Pointer(None);
    for (shape, value, json) in [
        (&Shape::Text, cut, r#"{"text":"a","cut":true}"#),
        (&Shape::Hex, Value::Missing, r#"{"missing":true}"#),
        (&Shape::Unsigned, cut, r#"{"missing":true}"#),
        (&pointer, Value::Bytes(&[0; 8]), "null"),
        (&pointer, Value::Bytes(&[1, 0]), "\"0x1\""),
    ] {
        let shown = Shown { shape, value, names: &names::none };
        assert_eq!(serde_json::to_string(&shown).unwrap(), json, "{shape:?}");
    }
}

#[test]
fn a_filter_decides_which_hits_count() {
    let ram = Ram::new();
    ram.put(kernel(0), b"/etc/passwd\0");
    let mut capture = one(of(Base::Constant(u64::MAX), &[], Read::Word(4)), Shape::Signed);
    for (fetch, shape) in [
        (of(Base::Constant(u64::MAX), &[], Read::Word(4)), Shape::Unsigned),
        (of(RDI, &[], at(0, What::String(64))), Shape::Text),
        (of(Base::Constant(NOWHERE.0), &[], at(0, What::Bytes(4))), Shape::Unsigned),
    ] {
        capture.fields.extend(one(fetch, shape).fields);
    }
    let test = |operand, test| Filter::Test(operand, test);
    let number = |n, order, value| test(Operand::Field(n), Test::Number(order, value));
    let glob = |pattern| test(Operand::Field(2), Test::Glob(Glob::new(pattern).unwrap()));
    let text = |equal, text: &str| test(Operand::Field(2), Test::Text(equal, text.to_owned()));
    let minus = number(0, Order::Equal, -1);
    let cases = [
        (minus.clone(), true),
        (number(0, Order::Less, 0), true),
        (number(1, Order::Equal, 0xffff_ffff), true),
        (number(1, Order::Less, 0), false),
        (test(Operand::Field(1), Test::Bits(0x8000_0000)), true),
        (test(Operand::Field(1), Test::Bits(0x1_0000_0000)), false),
        (glob("/etc/*"), true),
        (glob("*shadow"), false),
        (text(true, "/etc/passwd"), true),
        (text(false, "/etc/passwd"), false),
        // What could not be read is neither this nor that.
        (number(3, Order::Equal, 0), false),
        (number(3, Order::NotEqual, 0), false),
        (number(9, Order::Equal, 0), false),
        (test(Operand::Pid, Test::Number(Order::Equal, 42)), true),
        (test(Operand::Cpu, Test::Among(vec![0..2, 3..4])), true),
        (test(Operand::Cpu, Test::Among(vec![0..1, 1..3])), false),
        (test(Operand::Comm, Test::Text(true, "cat".to_owned())), true),
        (Filter::All(vec![minus.clone(), glob("/tmp*")]), false),
        (Filter::Any(vec![glob("/tmp*"), minus.clone()]), true),
        (Filter::Not(Box::new(glob("/tmp*"))), true),
    ];
    for (filter, passes) in cases {
        capture.filter = Some(filter);
        assert_eq!(taken(&ram, &capture).is_some(), passes, "{:?}", capture.filter);
    }
}

fn fetches() -> impl Strategy<Value = Fetch> {
    let base = prop_oneof![
        Just(RDI),
        any::<u8>().prop_map(Base::Argument),
        (0u8..200).prop_map(Base::Arguments),
        any::<u16>().prop_map(Base::Stack),
        any::<u64>().prop_map(Base::Constant),
        (0u64..0x3000).prop_map(|offset| Base::Constant(Ram::BASE.0 + offset)),
        Just(Base::Comm),
        Just(Base::Current),
        ".{0,40}".prop_map(Base::Text),
    ];
    let offset = prop_oneof![any::<i64>(), -64i64..0x2000];
    let hop = (offset, any::<bool>(), any::<bool>());
    let hop = hop.prop_map(|(offset, user, per_cpu)| Hop { offset, user, per_cpu });
    let what = prop_oneof![
        any::<u16>().prop_map(What::Bytes),
        any::<u16>().prop_map(What::String),
        any::<u16>().prop_map(What::Strings),
    ];
    let read = prop_oneof![
        any::<u8>().prop_map(Read::Word),
        (hop.clone(), what.clone()).prop_map(|(hop, what)| Read::Memory(hop, what)),
        (what, any::<bool>()).prop_map(|(what, user)| Read::Pointee { what, user }),
        (hop.clone(), any::<u8>()).prop_map(|(hop, bytes)| Read::Address(hop, bytes)),
    ];
    (base, proptest::collection::vec(hop, 0..4), read).prop_map(|(base, hops, read)| Fetch {
        base,
        hops,
        read,
    })
}

proptest! {
    #[test]
    fn whatever_is_asked_for_one_value_comes_back_and_no_record_is_too_long(
        fetches in proptest::collection::vec(fetches(), 0..12),
        memory in proptest::collection::vec(any::<u8>(), 0..0x800),
    ) {
        let ram = Ram::new();
        ram.put(kernel(0), &memory);
        let regs = Regs { rdi: Ram::BASE.0, rsp: kernel(0x100).0, ..Regs::default() };
        let memory = ram.memory();
        let scene = Scene { regs: &regs, entered_with: None, memory: &memory, slide: 0, task: Some(&TASK), cpu: 0, per_cpu: Some(0x800) };
        let field = |fetch: &Fetch| Field { name: String::new(), fetch: fetch.clone(), shape: Shape::Hex };
        let capture = Capture { fields: fetches.iter().map(field).collect(), ..Capture::default() };
        let mut record = Vec::new();
        prop_assert!(capture.take(&scene, &mut record));
        prop_assert!(record.len() <= LONGEST_RECORD);
        prop_assert_eq!(Values::of(&record).count(), fetches.len());
    }

    #[test]
    fn no_record_panics_its_reader(record in proptest::collection::vec(any::<u8>(), 0..200)) {
        for value in Values::of(&record) {
            for shape in [Shape::Text, Shape::Hex, Shape::Pointer(Some(Box::new(Shape::Text)))] {
                let shown = Shown { shape: &shape, value, names: &names::none };
                let _ = (shown.to_string(), serde_json::to_string(&shown), value.number(), value.signed(), value.text());
            }
        }
    }
}
