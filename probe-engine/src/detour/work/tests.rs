use super::*;
use crate::addr::Gva;
use crate::capture::filter::{Filter, Operand, Order, Test};
use crate::capture::shape::Shape;
use crate::capture::{Field, Hop, Value, What};
use crate::detour::condition::{ComparedString, Number, Origin};
use crate::detour::reads::Given;
use crate::linux::glob::Glob;
use crate::linux::task::{COMM, Context, Task};

fn field(name: &str, base: Base, bytes: u8, shape: Shape) -> Field {
    Field { name: name.to_owned(), fetch: Fetch::word(base, bytes), shape }
}

fn capture(fields: Vec<Field>, filter: Option<Filter>) -> Capture {
    Capture { fields, filter, ..Capture::default() }
}

fn memory(base: Base, hops: &[i64], what: What) -> Fetch {
    let hop = |offset: &i64| Hop::at(*offset);
    let (last, hops) = hops.split_last().unwrap();
    Fetch { base, hops: hops.iter().map(hop).collect(), read: Read::Memory(hop(last), what) }
}

fn of_memory(fetches: Vec<Fetch>, shape: &Shape) -> Capture {
    let field = |fetch| Field { name: "it".to_owned(), fetch, shape: shape.clone() };
    capture(fetches.into_iter().map(field).collect(), None)
}

/// A task at this address.
fn task(at: Gva) -> Task {
    Task { at, pid: 7, tgid: 7, ns_pid: None, uid: None, context: Context::Task, comm: [0; COMM] }
}

#[test]
fn what_no_detour_reads_stays_on_the_trap() {
    let refused = |fetches, hits| match Work::of(
        0,
        &ProbePlan::new(hits).reading(of_memory(fetches, &Shape::Hex)).recorded(),
    ) {
        Err(Unsuited::Memory(name, reason)) => (name, reason),
        work => panic!("{work:?}"),
    };
    let strings = memory(Base::Argument(1), &[0], What::Strings(4));
    let many = vec![memory(Base::Argument(1), &[0], What::String(4096)); 5];
    let much = memory(Base::Argument(0), &[0], What::Bytes(1100));
    let far = memory(Base::Argument(0), &[1 << 40], What::Bytes(8));
    for fetches in [vec![strings], many, vec![much], vec![far]] {
        for hits in [Trigger::Pass, Trigger::Return { max_active: None }] {
            let kept = ("it".to_owned(), "more of it than a detour keeps");
            assert_eq!(refused(fetches.clone(), hits), kept);
        }
    }
    let half = refused(vec![Fetch::word(Base::Arguments(5), 16)], Trigger::Pass);
    assert_eq!(half.1, "lies half in a register and half on the stack");
}

/// What an area says of one read.
fn kept(at: u64, bytes: &[u8], room: usize) -> Vec<u64> {
    let mut words = vec![at, bytes.len() as u64];
    let padded: Vec<u8> = bytes.iter().copied().chain(std::iter::repeat(0xee)).take(room).collect();
    words.extend(padded.as_chunks().0.iter().copied().map(u64::from_le_bytes));
    words
}

#[test]
fn memory_is_what_the_record_has_kept_of_it() {
    let longest = usize::from(crate::detour::reads::LONGEST_STRING);
    let string = || memory(Base::Register(Register::R12), &[16, 0], What::String(4096));
    let fields = of_memory(
        vec![
            Fetch::word(Base::Stack(2), 8),
            string(),
            string(),
            memory(Base::Argument(1), &[4], What::Bytes(12)),
            memory(Base::Argument(1), &[0, 0], What::Bytes(4)),
        ],
        &Shape::Hex,
    );
    let work = Work::of(0, &ProbePlan::new(Trigger::Pass).reading(fields.clone()).recorded()).unwrap();
    assert_eq!(work.record, Some(vec![Register::Rsp, Register::R12]));
    let (short, long) = (b"/etc/passwd\0", vec![b'x'; longest]);
    let room = longest + 8;
    let area = [
        kept(0x8010, &7u64.to_le_bytes(), 8),
        // Both may lie at the end of a page, and the second one is longer than what is kept.
        kept(0x9010, &0x6ff8u64.to_le_bytes(), 8),
        kept(0x6ff8, short, room),
        kept(0x9010, &0x6ff8u64.to_le_bytes(), 8),
        kept(0x6ff8, &long, room),
        kept(0x5004, b"twelve bytes", 16),
        // There is no memory at this pointer.
        kept(0x5000, &[], 8),
        kept(0xdead, &[], 8),
    ];
    let record = |area: Vec<u64>| Record {
        ticks: 1,
        probe: 0,
        task: task(Gva(0)),
        args: [0, 0x5000, 0, 0, 0, 0],
        registers: [vec![0x8000, 0x9000], area].concat(),
    };
    let read = |area: Vec<u64>| {
        let mut captured = Vec::new();
        assert!(work.replay(
            &fields,
            &record(area),
            RecordedAt { rip: Gva(0x55), slide: 0, cpu: 0 },
            &mut captured
        ));
        captured
    };
    let captured = read(area.concat());
    let values: Vec<_> = fields.values(&captured).map(|(_, value)| value).collect();
    assert_eq!(values[0].number(), Some(7));
    assert_eq!(values[1], Value::Text { bytes: b"/etc/passwd", cut: false });
    assert_eq!(values[3], Value::Bytes(b"twelve bytes"));
    assert_eq!(values[4], Value::Fault(Gva(0x5000)));
    // Without what was read first, and without the short string.
    let unread = [kept(0, &[], 8), kept(0, &[], 8), kept(0, &[], room)];
    let captured = read(unread.iter().chain(area.iter().skip(3)).flatten().copied().collect());
    let values: Vec<_> = fields.values(&captured).map(|(_, value)| value).collect();
    assert_eq!(values[0], Value::Fault(Gva(0x8010)));
    assert_eq!(values[2], Value::Text { bytes: &long, cut: true });
    // Whatever the guest writes there is read as something.
    for word in [0, 1, 8, u64::MAX, 1 << 63] {
        read(vec![word; area.concat().len()]);
        read(Vec::new());
    }
}

#[test]
fn at_a_return_memory_is_what_the_value_and_the_arguments_lead_to() {
    let fields = of_memory(
        vec![
            memory(Base::Argument(1), &[0], What::String(16)),
            memory(Base::Register(Register::Rax), &[8, 4], What::Bytes(4)),
            Fetch::word(Base::Stack(1), 8),
            memory(Base::Register(Register::Rip), &[-4], What::Bytes(4)),
            Fetch::word(Base::Argument(0), 4),
            // Nobody knows what was on the stack.
            memory(Base::Argument(6), &[0], What::Bytes(8)),
        ],
        &Shape::Hex,
    );
    let work = Work::of(
        0,
        &ProbePlan::new(Trigger::Return { max_active: Some(2) }).reading(fields.clone()).recorded(),
    )
    .unwrap();
    assert_eq!(work.record, Some(vec![Register::Rsp]));
    assert_eq!(work.calls, Some(Calls { most: Some(2), arguments: true }));
    let area = [
        kept(0x5000, b"/etc/passwd\0", 24),
        kept(0x9008, &0x6000u64.to_le_bytes(), 8),
        kept(0x6004, b"four", 8),
        kept(0x8008, &7u64.to_le_bytes(), 8),
        kept(0x51, b"call", 8),
    ];
    let comm = [0; COMM];
    let task = Task { at: Gva(0), pid: 7, tgid: 7, ns_pid: None, uid: None, context: Context::Task, comm };
    let registers = [vec![3, 0x5000, 0, 0, 0, 0, 0x8000], area.concat()].concat();
    let record = Record { ticks: 9, probe: 0, task, args: [0x9000, 1, 0x55, 0, 0, 0], registers };
    let mut captured = Vec::new();
    assert!(work.replay(
        &fields,
        &record,
        RecordedAt { rip: record.returned().back, slide: 0, cpu: 0 },
        &mut captured
    ));
    let values: Vec<_> = fields.values(&captured).map(|(_, value)| value).collect();
    assert_eq!(values[0], Value::Text { bytes: b"/etc/passwd", cut: false });
    assert_eq!(values[1], Value::Bytes(b"four"));
    assert_eq!((values[2].number(), values[4].number()), (Some(7), Some(3)));
    assert_eq!((&values[3], &values[5]), (&Value::Bytes(b"call"), &Value::Missing));
}

#[test]
fn what_a_filter_alone_reads_of_an_argument_keeps_it() {
    let hidden = of_memory(vec![memory(Base::Argument(1), &[0], What::String(4096))], &Shape::Text).fields;
    let filter = Some(Filter::Test(Operand::Field(1), Test::Text(true, "x".to_owned())));
    let fields = vec![field("value", Base::Register(Register::Rax), 8, Shape::Hex)];
    let work = Work::of(
        0,
        &ProbePlan::new(Trigger::Return { max_active: None }).reading(Capture {
            fields,
            hidden,
            filter,
            ..Capture::default()
        }),
    )
    .unwrap();
    assert!(work.keeps_arguments() && work.record.is_none());
    assert_eq!(work.condition, Some(HitCondition::Text(STRING, true, "x".to_owned())));
    let known = memory(Base::Argument(6), &[0], What::Bytes(8));
    let fields = of_memory(vec![known], &Shape::Hex);
    let filter = Some(Filter::Test(Operand::Field(0), Test::Number(Order::Equal, 5)));
    let refused = Work::of(
        0,
        &ProbePlan::new(Trigger::Return { max_active: None }).reading(Capture { filter, ..fields }),
    );
    assert_eq!(refused, Err(Unsuited::NoNumber("it".to_owned())));
}

#[test]
fn memory_is_compared_as_a_number_of_its_width() {
    let test = || Test::Number(Order::Equal, 5);
    let of = |fetch: Fetch, shape: Shape| {
        let filter = Some(Filter::Test(Operand::Field(0), test()));
        let fields = vec![Field { name: "it".to_owned(), fetch, shape }];
        Work::of(0, &ProbePlan::new(Trigger::Pass).reading(capture(fields, filter))).map(|work| {
            assert_eq!(work.record, None);
            work.condition.unwrap()
        })
    };
    let number =
        |from, width, is_signed| Ok(HitCondition::Number(Number { from, low: 0, width, is_signed }, test()));
    let long = || memory(Base::Argument(0), &[8, 0], What::Bytes(4));
    assert_eq!(of(long(), Shape::Signed), number(Origin::Memory(24), 32, true));
    assert_eq!(of(Fetch::word(Base::Stack(1), 2), Shape::Hex), number(Origin::Memory(0), 16, false));
    let far = Fetch { hops: vec![Hop::at(8)], ..Fetch::word(Base::Argument(0), 8) };
    assert_eq!(of(far, Shape::Hex), number(Origin::Memory(0), 64, false));
    let pointer = Fetch {
        read: Read::Pointee { what: What::Bytes(8), user: false },
        ..Fetch::word(Base::Argument(0), 8)
    };
    assert_eq!(of(pointer, Shape::Hex), number(Origin::Given(Given::Register(Register::Rdi)), 64, false));
    assert_eq!(
        of(Fetch::word(Base::Current, 8), Shape::Hex),
        number(Origin::Given(Given::Current), 64, false)
    );
    let own = Hop { per_cpu: true, ..Hop::at(8) };
    let address = Fetch { read: Read::Address(own, 4), ..Fetch::word(Base::Argument(0), 8) };
    assert_eq!(of(address, Shape::Hex), number(Origin::Memory(8), 32, false));
    let saved = |is_signed| {
        let read = Read::Extended { at: None, of: 2, is_signed, bytes: 8 };
        Fetch { read, ..Fetch::word(Base::Saved(1, Register::Rax), 8) }
    };
    assert_eq!(of(saved(false), Shape::Signed), number(Origin::Memory(0), 16, false));
    assert_eq!(of(saved(true), Shape::Signed), number(Origin::Memory(0), 16, true));
    assert_eq!(of(saved(true), Shape::Hex), Err(Unsuited::NoNumber("it".to_owned())));
    let string = memory(Base::Argument(0), &[0], What::String(8));
    assert_eq!(of(string, Shape::Hex), Err(Unsuited::NoNumber("it".to_owned())));
}

#[test]
fn arguments_are_in_every_record_and_other_registers_once() {
    let fields = vec![
        field("a", Base::Argument(0), 4, Shape::Signed),
        field("b", Base::Register(Register::R12), 8, Shape::Hex),
        field("c", Base::Register(Register::R12), 1, Shape::Hex),
        field("d", Base::Register(Register::Rip), 8, Shape::Hex),
        field("e", Base::Comm, 0, Shape::Text),
        field("f", Base::Constant(7), 8, Shape::Unsigned),
    ];
    let work = Work::of(9, &ProbePlan::new(Trigger::Pass).reading(capture(fields.clone(), None)).recorded())
        .unwrap();
    assert_eq!(
        work,
        Work {
            consumer: None,
            probe: 9,
            scope: Scope::Boot,
            condition: None,
            record: Some(vec![Register::R12]),
            reads: Reads::default(),
            groups: None,
            calls: None
        }
    );
    let counted = Work::of(9, &ProbePlan::new(Trigger::Pass).reading(capture(fields, None))).unwrap();
    assert_eq!(counted.record, None);
    assert_eq!(Work::of(1, &ProbePlan::new(Trigger::Pass).recorded()).unwrap().record, Some(Vec::new()));
}

#[test]
fn a_record_has_the_task_and_where_the_cpu_has_its_own_variables() {
    const PER_CPU: u64 = 0x5000_0000;
    let own = |offset| Hop { per_cpu: true, ..Hop::at(offset) };
    let fields = of_memory(
        vec![
            Fetch::word(Base::Current, 8),
            Fetch { read: Read::Memory(own(8), What::Bytes(4)), ..Fetch::word(Base::Kernel(Gva(0x1000)), 8) },
            Fetch { read: Read::Address(own(4), 8), ..Fetch::word(Base::Register(Register::R12), 8) },
            Fetch { hops: vec![own(0)], ..memory(Base::Argument(1), &[16], What::Bytes(4)) },
        ],
        &Shape::Hex,
    );
    let work = Work::of(0, &ProbePlan::new(Trigger::Pass).reading(fields.clone()).recorded()).unwrap();
    assert_eq!(work.record, Some(vec![Register::R12]));
    let at = 0x1000 + 0x10 + PER_CPU + 8;
    let area = [
        vec![PER_CPU],
        kept(at, &7u32.to_le_bytes(), 8),
        kept(0xabc + PER_CPU + 4, &(0xabc + PER_CPU + 4).to_le_bytes(), 8),
        kept(1 + PER_CPU, &0x6000u64.to_le_bytes(), 8),
        kept(0x6010, &9u32.to_le_bytes(), 8),
    ];
    let registers = [vec![0xabc], area.concat()].concat();
    assert_eq!(work.words(), registers.len());
    let record = Record { ticks: 1, probe: 0, task: task(Gva(0x7000)), args: [0, 1, 2, 3, 4, 5], registers };
    let mut captured = Vec::new();
    assert!(work.replay(&fields, &record, RecordedAt { rip: Gva(0x55), slide: 0x10, cpu: 0 }, &mut captured));
    let values: Vec<_> = fields.values(&captured).map(|(_, value)| value.number()).collect();
    assert_eq!(values, [Some(0x7000), Some(7), Some(0xabc + PER_CPU + 4), Some(9)]);
}

#[test]
fn a_record_is_read_as_the_hit_would_have_been() {
    let capture = capture(
        vec![
            field("dfd", Base::Argument(0), 4, Shape::Signed),
            field("r", Base::Register(Register::R12), 8, Shape::Hex),
            field("comm", Base::Comm, 0, Shape::Text),
            field("at", Base::Register(Register::Rip), 8, Shape::Hex),
            field("in", Base::Kernel(Gva(0x1000)), 8, Shape::Hex),
        ],
        Some(Filter::Test(Operand::Field(0), Test::Number(Order::Less, 0))),
    );
    let work = Work::of(0, &ProbePlan::new(Trigger::Pass).reading(capture.clone()).recorded()).unwrap();
    let mut comm = [0; COMM];
    comm[..3].copy_from_slice(b"cat");
    let task = Task { at: Gva(0), pid: 7, tgid: 7, ns_pid: None, uid: None, context: Context::Task, comm };
    let record =
        Record { ticks: 1, probe: 0, task, args: [-100i64 as u64, 1, 2, 3, 4, 5], registers: vec![0xabc] };
    let mut captured = Vec::new();
    assert!(work.replay(
        &capture,
        &record,
        RecordedAt { rip: Gva(0x55), slide: 0x10, cpu: 0 },
        &mut captured
    ));
    let values: Vec<_> = capture.values(&captured).map(|(_, value)| value).collect();
    assert_eq!(values[0].signed(), Some(-100));
    assert_eq!(values[1].number(), Some(0xabc));
    assert_eq!(values[2].text(), Some(&b"cat"[..]));
    assert_eq!((values[3].number(), values[4].number()), (Some(0x55), Some(0x1010)));
    let other = Record { args: [1; 6], ..record };
    assert!(
        !work.replay(&capture, &other, RecordedAt { rip: Gva(0x55), slide: 0x10, cpu: 0 }, &mut captured),
        "its filter says no"
    );
}

#[test]
fn conditions_are_numbers_of_a_width_and_the_name_of_the_task() {
    let fields = || {
        vec![
            field("dfd", Base::Argument(0), 4, Shape::Signed),
            field("pair", Base::Arguments(0), 16, Shape::Hex),
            field(
                "bits",
                Base::Register(Register::Rbx),
                8,
                Shape::BitField { low: 3, width: 5, of: Box::new(Shape::Unsigned) },
            ),
        ]
    };
    let of = |operand, test| {
        let capture = capture(fields(), Some(Filter::Test(operand, test)));
        Work::of(0, &ProbePlan::new(Trigger::Pass).reading(capture.clone()).recorded())
            .map(|work| work.condition.unwrap())
    };
    let test = || Test::Number(Order::Equal, 5);
    let number = |from, low, width, is_signed| {
        Ok(HitCondition::Number(Number { from, low, width, is_signed }, test()))
    };
    assert_eq!(
        of(Operand::Field(0), test()),
        number(Origin::Given(Given::Register(Register::Rdi)), 0, 32, true)
    );
    assert_eq!(
        of(Operand::Field(2), test()),
        number(Origin::Given(Given::Register(Register::Rbx)), 3, 5, false)
    );
    assert_eq!(of(Operand::Pid, test()), number(Origin::Pid, 0, 32, false));
    assert_eq!(of(Operand::Field(1), test()), Err(Unsuited::NoNumber("pair".to_owned())));
    let cat = || Test::Text(true, "cat".to_owned());
    assert_eq!(of(Operand::Comm, cat()), Ok(HitCondition::Text(NAME, true, "cat".to_owned())));
    assert_eq!(of(Operand::Field(0), cat()), Err(Unsuited::Text));
}

/// The task's.
const NAME: ComparedString = ComparedString { entry: None, most: 16, goes_on: false };

/// Its condition, when the task's name, a string, an array of 16 bytes and a pointer are read, and another string for the
/// filter.
fn of_strings(operand: Operand, test: Test) -> Result<HitCondition, Unsuited> {
    let text = |fetch| Field { name: "it".to_owned(), fetch, shape: Shape::Text };
    let pointee = Read::Pointee { what: What::String(512), user: false };
    let fields = vec![
        text(memory(Base::Argument(1), &[0], What::String(4096))),
        field("at", Base::Register(Register::R12), 8, Shape::Hex),
        text(memory(Base::Argument(0), &[0], What::Bytes(16))),
        field("name", Base::Comm, 0, Shape::Text),
        text(Fetch { read: pointee, ..Fetch::word(Base::Argument(2), 8) }),
        text(memory(Base::Argument(1), &[0], What::String(24))),
        field("number", Base::Comm, 0, Shape::Hex),
    ];
    let hidden = vec![text(memory(Base::Register(Register::R12), &[0], What::String(4096)))];
    let filter = Some(Filter::Test(operand, test));
    let work = Work::of(
        0,
        &ProbePlan::new(Trigger::Pass)
            .reading(Capture { fields, hidden, filter, ..Capture::default() })
            .recorded(),
    )?;
    assert_eq!(work.record, Some(vec![Register::R12]));
    Ok(work.condition.unwrap())
}

/// As they lie there, one behind the other.
const STRING: ComparedString = ComparedString { entry: Some(0), most: 256, goes_on: true };
const ARRAY: ComparedString = ComparedString { entry: Some(280), most: 16, goes_on: false };
const POINTEE: ComparedString = ComparedString { entry: Some(312), most: 256, goes_on: true };
const SHORT: ComparedString = ComparedString { entry: Some(592), most: 24, goes_on: false };
const HIDDEN: ComparedString = ComparedString { entry: Some(640), most: 256, goes_on: true };

#[test]
fn strings_are_compared_as_a_whole() {
    let text = |length| Test::Text(false, "x".repeat(length));
    let compared = |of, length| Ok(HitCondition::Text(of, false, "x".repeat(length)));
    assert_eq!(of_strings(Operand::Field(0), text(7)), compared(STRING, 7));
    assert_eq!(of_strings(Operand::Field(0), text(255)), compared(STRING, 255));
    assert_eq!(of_strings(Operand::Field(0), text(256)), Err(Unsuited::LongText));
    assert_eq!(of_strings(Operand::Field(2), text(16)), compared(ARRAY, 16));
    assert_eq!(of_strings(Operand::Field(2), text(300)), compared(ARRAY, 300));
    assert_eq!(of_strings(Operand::Field(3), text(7)), compared(NAME, 7));
    assert_eq!(of_strings(Operand::Field(4), text(7)), compared(POINTEE, 7));
    assert_eq!(of_strings(Operand::Field(5), text(24)), compared(SHORT, 24));
    assert_eq!(of_strings(Operand::Field(7), text(7)), compared(HIDDEN, 7));
    for other in [Operand::Field(8), Operand::Field(1), Operand::Field(6), Operand::Field(9), Operand::Pid] {
        assert_eq!(of_strings(other, text(7)), Err(Unsuited::Text), "{other:?}");
    }
    assert_eq!(of_strings(Operand::Field(0), Test::Text(true, "a\0b".to_owned())), Err(Unsuited::Text));
}

#[test]
fn patterns_are_matched_where_what_is_kept_can_decide() {
    let glob = |pattern: &str| Glob::new(pattern).unwrap();
    let of = |operand, pattern: &str| of_strings(operand, Test::Glob(glob(pattern)));
    let matched = |of, pattern: &str| Ok(HitCondition::Pattern(of, glob(pattern)));
    for (operand, text) in [
        (Operand::Comm, NAME),
        (Operand::Field(0), STRING),
        (Operand::Field(2), ARRAY),
        (Operand::Field(3), NAME),
        (Operand::Field(4), POINTEE),
        (Operand::Field(7), HIDDEN),
    ] {
        for pattern in ["", "*", "/etc/*", "*.so", "*lib*", "ba?h", "[!/]*[a-z]"] {
            assert_eq!(of(operand, pattern), matched(text, pattern), "{pattern}");
        }
    }
    assert_eq!(of(Operand::Field(1), "*"), Err(Unsuited::Text));
    // Stars take nothing.
    let long = |length| "*".to_owned() + &"?".repeat(length) + "*";
    assert_eq!(of(Operand::Field(0), &long(255)), matched(STRING, &long(255)));
    assert_eq!(of(Operand::Field(0), &long(256)), Err(Unsuited::LongText));
    assert_eq!(of(Operand::Field(2), &long(300)), matched(ARRAY, &long(300)));
}
