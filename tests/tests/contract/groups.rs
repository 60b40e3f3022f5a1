//! Hits that a detour counts by their keys: it comes to what the host makes of a record of each.

use probe_engine::addr::Gva;
use probe_engine::capture::filter::{Circumstances, Operand};
use probe_engine::capture::hist::{Form, Histogram};
use probe_engine::capture::shape::Shape;
use probe_engine::capture::tally::Tally;
use probe_engine::capture::{Base, Capture, Fetch, Field, Values, names};
use probe_engine::detour::groups::groups;
use probe_engine::detour::layout::{self, GROUPS, Rings};
use probe_engine::detour::ring::{Drained, Ring, counter};
use probe_engine::detour::work::{RecordedAt, Work};
use probe_engine::insn::copy::JUMP;
use probe_engine::probe::plan::{Action, ProbePlan};
use tests::code::{CODE, DATA, code, dump_registers, ending, mov, repeat, stack};
use tests::detour::{PID, TASK, divert, guest, histogram};
use tests::host::fit;
use tests::rig::{Rig, Start};
use vmm::reserved;

const AFTER: Gva = Gva(DATA.0 + 0x300);
const NUMBERS: Gva = Gva(DATA.0 + 0x400);

/// The counter of the loop, in rdi, and a number for each of its rounds, in rsi.
fn fields() -> Capture {
    let field = |name: &str, argument, bytes, shape| Field {
        name: name.to_owned(),
        fetch: Fetch::word(Base::Argument(argument), bytes),
        shape,
    };
    let fields = vec![
        field("signed", 1, 8, Shape::Signed),
        field("unsigned", 1, 8, Shape::Unsigned),
        field("short", 1, 2, Shape::Signed),
        field("round", 0, 8, Shape::Unsigned),
        Field { name: "task".to_owned(), fetch: Fetch::word(Base::Comm, 16), shape: Shape::Text },
    ];
    Capture { fields, ..Capture::default() }
}

/// Runs a loop of as many rounds as there are `numbers`, whose every round is counted by each of `plans`: says what the
/// guest has made of it, with what it has noted down besides, and what the host makes of a record of each hit.
fn count(plans: &[Histogram], numbers: &[u64]) -> Option<Vec<(Tally, Tally, u64)>> {
    /// `mov rsi, [rbx + 8 * rdi]`
    const LOAD: [u8; 4] = [0x48, 0x8b, 0x34, 0xfb];
    let rig = Rig::new(fit()?);
    let set_up = code(&[&mov(3, NUMBERS.0 - 8), &mov(7, numbers.len() as u64)]);
    let site = CODE.add((set_up.len() + LOAD.len()) as u64);
    rig.write(TASK, b"micro\0\0\0\0\0\0\0\0\0\0\0");
    rig.write(TASK.add(PID), &7u32.to_le_bytes());
    rig.write(NUMBERS, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
    let (capture, mut jump) = (fields(), [0; JUMP]);
    let work = |probe, action| {
        Work::of(probe, &ProbePlan { action, capture: capture.clone(), ..ProbePlan::default() }).unwrap()
    };
    let grouped = (1..).zip(plans).map(|(probe, plan)| work(probe, Action::Histogram(plan.clone())));
    let works: Vec<Work> = [work(0, Action::Record { stack: None })].into_iter().chain(grouped).collect();
    let ram = rig.reserve(&(CODE..CODE.add(1)), |reserved, ram| {
        jump = divert(&guest(&rig, reserved, None), site, &works, reserved, ram);
    });
    let round = repeat(LOAD.len() + JUMP);
    rig.write(CODE, &ending(&[&set_up, &LOAD, &jump, &round, &dump_registers(AFTER)]));
    let left = rig.run(&[Start::at(CODE, stack(0))]).to_end();
    assert_eq!(left.u64(AFTER.add(8 * 4)), stack(0).0, "the stack");
    assert_eq!(left.u64(AFTER.add(8 * 6)), numbers[0], "rsi");
    let mut made: Vec<_> =
        plans.iter().map(|plan| (Tally::new(plan.clone()), Tally::new(plan.clone()), 0)).collect();
    let mut ring = Ring::new(Rings::of(1), reserved::DATA, 0);
    let mut has_more = true;
    while has_more {
        let drained = ring.drain(&*ram, |record| {
            let (mut bytes, number) = (Vec::new(), record.probe as usize);
            assert!(works[number].replay(
                &capture,
                &record,
                RecordedAt { rip: site, slide: 0, cpu: 0 },
                &mut bytes
            ));
            let at = Circumstances { cpu: 0, task: Some(&record.task), ip: site.0 };
            let add = |tally: &mut Tally, plan| tally.add(plan, &capture.fields, Values::of(&bytes), &at);
            if let Some(of) = number.checked_sub(1) {
                add(&mut made[of].0, &plans[of]);
                made[of].2 += 1;
            } else {
                made.iter_mut().zip(plans).for_each(|((_, host, _), plan)| add(host, plan));
            }
        });
        has_more = drained.unwrap() == Drained::More;
    }
    assert!(!ring.is_broken());
    let mut found = groups(&*ram, reserved::DATA);
    for ((work, made), n) in works.iter().skip(1).zip(&mut made).zip(1..) {
        assert_eq!(counter(&*ram, reserved::DATA, layout::HITS, n), numbers.len() as u64);
        assert_eq!(counter(&*ram, reserved::DATA, layout::DROPS, n), 0);
        for raw in found.remove(&n).into_iter().flatten() {
            made.0.add_group(work.groups.as_ref().unwrap().read(&raw));
        }
    }
    assert!(found.is_empty());
    Some(made)
}

#[test]
fn groups_are_what_the_host_makes_of_records() {
    let number = |field, form| (Operand::Field(field), form);
    let plain = || Form::Number(Shape::Signed);
    let plans = [
        histogram(&[number(0, Form::Log2)], &[0, 1]),
        histogram(&[number(0, Form::Buckets(10))], &[2]),
        histogram(&[number(1, Form::Buckets(1000))], &[]),
        histogram(&[number(1, Form::Buckets(u64::MAX))], &[1]),
        histogram(&[number(2, plain()), (Operand::Comm, Form::Text)], &[0]),
        histogram(&[number(4, Form::Text), (Operand::Pid, Form::Process), (Operand::Cpu, plain())], &[1, 3]),
        histogram(&[(Operand::Ip, Form::Hex), (Operand::Comm, Form::Text), number(2, Form::Buckets(7))], &[]),
    ];
    let edges = [0, 1, 2, 3, 4, 5, 9, 10, 11, 999, 1000, 0x7fff, 0x8000, 0xffff, 1 << 32, 1 << 62, 1 << 63];
    let all = edges.iter().flat_map(|edge: &u64| [*edge, edge.wrapping_neg(), edge.wrapping_sub(1), !edge]);
    let numbers: Vec<u64> = all.clone().chain(all.clone().rev()).chain(all).collect();
    for (guest, host, noted) in plans.chunks(4).filter_map(|plans| count(plans, &numbers)).flatten() {
        assert_eq!(noted, 0, "there is room for all");
        assert!(!host.is_empty() && host.hits() == numbers.len() as u64);
        assert_eq!(guest.text(&names::none).to_string(), host.text(&names::none).to_string());
    }
}

#[test]
fn what_finds_no_room_among_the_groups_is_noted_down() {
    // More keys than there are groups.
    let numbers: Vec<u64> = (0..40_000).collect();
    let plans = [histogram(&[(Operand::Field(3), Form::Hex)], &[0])];
    let Some(made) = count(&plans, &numbers) else { return };
    for (guest, host, noted) in made {
        assert!((40_000 - GROUPS..15_000).contains(&noted), "{noted}");
        println!(
            "{noted} of {} hits were noted down, {} counted by key",
            numbers.len(),
            guest.hits() - noted
        );
        assert_eq!(guest.text(&names::none).to_string(), host.text(&names::none).to_string());
    }
}
