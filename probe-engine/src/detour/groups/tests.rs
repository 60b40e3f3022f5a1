use super::*;
use crate::addr::Gpa;
use crate::capture::hist::{Key as By, Summed};
use crate::capture::shape::Shape;
use crate::capture::{Base, Capture, Fetch, Field, Hop, Read, What, names};
use crate::detour::layout::tag;
use crate::detour::unsuited::Unsuited;
use crate::detour::work::Work;
use crate::memory::testing::Ram;
use crate::probe::plan::{Action, ProbePlan};

fn field(fetch: Fetch, shape: Shape) -> Field {
    Field { name: "it".to_owned(), fetch, shape }
}

fn capture() -> Capture {
    let string = Read::Memory(Hop::of_user(0), What::String(64));
    let fields = vec![
        field(Fetch::word(Base::Argument(0), 8), Shape::Signed),
        field(Fetch::word(Base::Argument(1), 4), Shape::Unsigned),
        field(Fetch { base: Base::Argument(2), hops: Vec::new(), read: string }, Shape::Text),
        field(Fetch::word(Base::Comm, 16), Shape::Text),
    ];
    Capture { fields, ..Capture::default() }
}

fn plan(keys: &[(Operand, Form)], sums: &[u16]) -> Histogram {
    let key = |(operand, form): &(Operand, Form)| By {
        name: "k".to_owned(),
        operand: *operand,
        form: form.clone(),
    };
    let sum = |n: &u16| Summed { name: "s".to_owned(), operand: Operand::Field(*n) };
    Histogram {
        said: "hist".to_owned(),
        keys: keys.iter().map(key).collect(),
        values: sums.iter().map(sum).collect(),
        sort: Vec::new(),
        size: 2048,
    }
}

fn work(action: Action) -> Result<Work, Unsuited> {
    Work::of(3, &ProbePlan { action, capture: capture(), ..ProbePlan::default() })
}

fn groups_of(plan: &Histogram) -> Option<Groups> {
    work(Action::Histogram(plan.clone())).unwrap().groups
}

#[test]
fn what_a_detour_cannot_count_by_is_noted_down() {
    use Operand::{Comm, Cpu, Field, Ip, Pid};
    let text = || Form::Text;
    for (keys, sums, words) in [
        (vec![(Pid, Form::Process)], vec![], Some(1)),
        (vec![(Comm, text()), (Field(3), text()), (Comm, text())], vec![0, 1], Some(6)),
        (vec![(Field(0), Form::Log2), (Cpu, Form::Hex), (Ip, Form::Symbol)], vec![1], Some(3)),
        (vec![(Field(1), Form::Buckets(u64::MAX))], vec![], Some(1)),
        // A signed number has no such buckets, strings are too long, and there are two sums.
        (vec![(Field(0), Form::Buckets(1 << 63))], vec![], None),
        (vec![(Field(2), text())], vec![], None),
        (vec![(Pid, Form::Hex)], vec![0, 1, 0], None),
        (vec![(Pid, Form::Hex)], vec![2], None),
    ] {
        let plan = plan(&keys, &sums);
        assert_eq!(groups_of(&plan).map(|groups| groups.words()), words, "{plan:?}");
    }
}

#[test]
fn a_probe_that_counts_by_keys_can_also_note_down() -> Result<(), Unsuited> {
    let plan = plan(&[(Operand::Pid, Form::Hex)], &[]);
    let (each, grouped) = (work(Action::Record { stack: None })?, work(Action::Histogram(plan))?);
    assert_eq!(Work { groups: None, ..grouped }, each);
    assert_eq!(each.record, Some(Vec::new()));
    Ok(())
}

/// A group as the stub writes it.
fn raw(missing: u64, keys: &[u64], hits: u64, sums: &[i128]) -> RawGroup {
    let mut words = [0; GROUP as usize / 8];
    words[0] = tag(3).into();
    words[1] = missing;
    words[2..2 + keys.len()].copy_from_slice(keys);
    words[8] = 1234;
    words[9] = u64::from_le_bytes(*b"micro\0ju");
    words[11] = hits;
    for (place, sum) in words[12..].chunks_mut(2).zip(sums) {
        place.copy_from_slice(&[*sum as u64, (*sum >> 64) as u64]);
    }
    let mut bytes = [0; GROUP as usize];
    bytes.as_chunks_mut().0.iter_mut().zip(words).for_each(|(to, word)| *to = word.to_le_bytes());
    RawGroup(bytes)
}

#[test]
fn groups_are_read_as_their_plan_says() {
    use Operand::{Comm, Field, Pid};
    let name = u64::from_le_bytes(*b"cat\0junk");
    for (keys, missing, words, expected) in [
        (vec![(Field(0), Form::Buckets(10))], 0, vec![-2i64 as u64], vec![KeyValue::Number(-20)]),
        (vec![(Field(1), Form::Buckets(10))], 0, vec![2], vec![KeyValue::Number(20)]),
        (vec![(Field(0), Form::Hex)], 0, vec![u64::MAX], vec![KeyValue::Number(-1)]),
        (vec![(Field(0), Form::Log2)], 0, vec![63], vec![KeyValue::Number(63)]),
        (
            vec![(Comm, Form::Text), (Pid, Form::Process)],
            0,
            vec![name, 9, 7],
            vec![KeyValue::Text(b"cat".as_slice().into()), KeyValue::Number(7)],
        ),
        (
            vec![(Field(0), Form::Hex), (Pid, Form::Hex)],
            1,
            vec![0, 5],
            vec![KeyValue::Missing, KeyValue::Number(5)],
        ),
    ] {
        let groups = groups_of(&plan(&keys, &[0, 1])).unwrap();
        let group = groups.read(&raw(missing, &words, 9, &[-5, 1 << 70]));
        assert_eq!(group.key, expected, "{keys:?}");
        assert_eq!((group.hits(), group.first(), group.sums), (9, 1234, vec![-5, 1 << 70]));
        assert_eq!(&group.comm[..6], b"micro\0");
    }
}

#[test]
fn groups_are_found_by_their_probes_and_whatever_else_is_there_is_left() {
    let memory = Ram::new(crate::detour::layout::SIZE as usize);
    let put = |n: u64, tag: u64| {
        let mut group = raw(0, &[n], n, &[]);
        group.0[..8].copy_from_slice(&tag.to_le_bytes());
        memory.write(Gpa(TABLE_OF_GROUPS + n * GROUP), &group.0).unwrap();
    };
    let nonsense = [1, 0, u64::MAX, u64::from(COUNTERS) + 2, 1 << 32 | 5];
    let tags = [u64::from(tag(3)), u64::from(tag(0)), u64::from(tag(3)), u64::from(tag(COUNTERS - 1))];
    (0..).zip(nonsense.into_iter().chain(tags)).for_each(|(n, tag)| put(n, tag));
    put(GROUPS - 1, tag(7).into());
    let found = groups(&memory, Gpa(0));
    let hits = |probe| found[&probe].iter().map(RawGroup::hits).collect::<Vec<_>>();
    assert_eq!((hits(3), hits(0)), (vec![5, 7], vec![6]));
    assert_eq!((hits(COUNTERS - 1), hits(7), found.len()), (vec![8], vec![GROUPS - 1], 4));
}

#[test]
fn a_group_of_nonsense_does_no_harm() {
    let plan =
        plan(&[(Operand::Field(0), Form::Buckets(i64::MAX as u64)), (Operand::Comm, Form::Text)], &[0]);
    let groups = groups_of(&plan).unwrap();
    let mut tally = crate::capture::tally::Tally::new(plan);
    for _ in 0..3 {
        tally.add_group(groups.read(&RawGroup([0xff; GROUP as usize])));
        tally.add_group(groups.read(&RawGroup([0x7f; GROUP as usize])));
    }
    assert_eq!(tally.hits(), u64::MAX);
    assert!(!tally.text(&names::none).to_string().is_empty());
}
