use super::*;
use crate::capture::filter::Order;
use crate::capture::{Hop, What};
use crate::linux::task::{COMM, Context, Task};

fn field(name: &str, base: Base, bytes: u8, shape: Shape) -> Field {
    Field { name: name.to_owned(), fetch: Fetch::word(base, bytes), shape }
}

fn capture(fields: Vec<Field>, filter: Option<Filter>) -> Capture {
    Capture { fields, hidden: Vec::new(), filter }
}

#[test]
fn what_reads_memory_stays_on_the_trap() {
    let string = Fetch {
        base: Base::Argument(1),
        hops: Vec::new(),
        read: Read::Memory(Hop { offset: 0, user: true }, What::String(64)),
    };
    let far = Fetch { hops: vec![Hop { offset: 8, user: false }], ..Fetch::word(Base::Argument(0), 8) };
    for fetch in [string, far, Fetch::word(Base::Stack(1), 8), Fetch::word(Base::Argument(6), 8)] {
        let fields = vec![Field { name: "it".to_owned(), fetch, shape: Shape::Hex }];
        let refused = Work::of(0, Some(&capture(fields, None)), true, Hits::Passes);
        assert_eq!(refused, Err(Unsuited::Memory("it".to_owned())));
    }
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
    let work = Work::of(9, Some(&capture(fields.clone(), None)), true, Hits::Passes).unwrap();
    assert_eq!(work, Work { probe: 9, condition: None, record: Some(vec![Register::R12]), calls: None });
    let counted = Work::of(9, Some(&capture(fields, None)), false, Hits::Passes).unwrap();
    assert_eq!(counted.record, None);
    assert_eq!(Work::of(1, None, true, Hits::Passes).unwrap().record, Some(Vec::new()));
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
    let work = Work::of(0, Some(&capture), true, Hits::Passes).unwrap();
    let mut comm = [0; COMM];
    comm[..3].copy_from_slice(b"cat");
    let task = Task { at: Gva(0), pid: 7, tgid: 7, ns_pid: None, uid: None, context: Context::Task, comm };
    let record =
        Record { ticks: 1, probe: 0, task, args: [-100i64 as u64, 1, 2, 3, 4, 5], registers: vec![0xabc] };
    let mut captured = Vec::new();
    assert!(work.replay(Some(&capture), &record, Gva(0x55), 0x10, 0, &mut captured));
    let values: Vec<_> = capture.values(&captured).map(|(_, value)| value).collect();
    assert_eq!(values[0].signed(), Some(-100));
    assert_eq!(values[1].number(), Some(0xabc));
    assert_eq!(values[2].text(), Some(&b"cat"[..]));
    assert_eq!((values[3].number(), values[4].number()), (Some(0x55), Some(0x1010)));
    let other = Record { args: [1; 6], ..record };
    assert!(!work.replay(Some(&capture), &other, Gva(0x55), 0x10, 0, &mut captured), "its filter says no");
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
        Work::of(0, Some(&capture), true, Hits::Passes).map(|work| work.condition.unwrap())
    };
    let test = || Test::Number(Order::Equal, 5);
    let number =
        |from, low, width, is_signed| Ok(Condition::Number(Number { from, low, width, is_signed }, test()));
    assert_eq!(of(Operand::Field(0), test()), number(Origin::Register(Register::Rdi), 0, 32, true));
    assert_eq!(of(Operand::Field(2), test()), number(Origin::Register(Register::Rbx), 3, 5, false));
    assert_eq!(of(Operand::Pid, test()), number(Origin::Pid, 0, 32, false));
    assert_eq!(of(Operand::Field(1), test()), Err(Unsuited::NoNumber("pair".to_owned())));
    assert_eq!(
        of(Operand::Comm, Test::Text(true, "cat".to_owned())),
        Ok(Condition::Comm(true, "cat".to_owned()))
    );
    assert_eq!(of(Operand::Field(0), Test::Text(true, "cat".to_owned())), Err(Unsuited::Text));
}
