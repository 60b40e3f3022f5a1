//! Histograms that are made in the guest: they are what the host makes of all hits, one by one.

use super::reads::{at, field, reading};
use probe_engine::capture::filter::{Circumstances, Operand};
use probe_engine::capture::hist::{By, Form, Histogram, Sort};
use probe_engine::capture::shape::Shape;
use probe_engine::capture::tally::Tally;
use probe_engine::capture::{Base, Capture, Fetch, Field, Register, Values, What, names};
use tests::detour::histogram;
use tests::linux_rig::{Ended, Guest};
use vmm::events::Event;
use vmm::probe::Probe;
use vmm::session::ProbeState;

const READ: &str = "vfs_read";

/// How many bytes are read, and from where in the file, which is nowhere at times.
fn of_entry() -> Capture {
    let position = at(Base::Argument(3), &[0], false, What::Bytes(8));
    reading(vec![
        Field { shape: Shape::Unsigned, ..field(Fetch::word(Base::Argument(2), 8)) },
        Field { shape: Shape::Signed, ..position },
    ])
}

/// How many were, or why none.
fn of_return() -> Capture {
    let value = field(Fetch::word(Base::Register(Register::Rax), 8));
    reading(vec![Field { shape: Shape::Result, ..value }])
}

fn plan(keys: &[(Operand, Form)], sum: u16) -> Histogram {
    let sort = vec![Sort { by: By::Hits, descending: true }];
    Histogram { sort, ..histogram(keys, &[sum]) }
}

/// What the hits of probe `n` came to in the guest.
fn in_guest(ended: &Ended, n: u32, plan: &Histogram) -> Tally {
    let mut tally = Tally::new(plan.clone());
    for (probe, group) in &ended.report.groups {
        if *probe == ended.probe(n).id {
            tally.add_group(group.clone());
        }
    }
    tally
}

/// What those of probe `n` come to on the host.
fn on_host(ended: &Ended, n: u32, capture: &Capture, plan: &Histogram) -> Tally {
    let mut tally = Tally::new(plan.clone());
    let of = |event: &&Event| event.probe == ended.probe(n).id;
    for event in ended.events.iter().filter(of) {
        let at = Circumstances { cpu: event.vcpu, task: event.task.as_ref(), ip: event.rip.0 };
        tally.add(plan, &capture.fields, Values::of(&event.captured), &at);
    }
    tally
}

#[test]
fn histograms_are_made_in_the_guest() {
    let Some(guest) = Guest::new() else { return };
    let (entry, back) = (of_entry(), of_return());
    let field = |n, form| (Operand::Field(n), form);
    let of_entries = [
        plan(&[(Operand::Pid, Form::Process), field(0, Form::Log2)], 0),
        plan(&[(Operand::Comm, Form::Text), field(1, Form::Buckets(4096))], 1),
        plan(&[(Operand::Cpu, Form::Hex)], 0),
    ];
    let of_returns = plan(&[field(0, Form::Buckets(100)), (Operand::Ip, Form::Hex)], 0);
    let entered = || Probe::at(READ).capture(entry.clone());
    let returned = || Probe::on_return(READ).capture(back.clone()).max_active(500);
    let mut guest = guest.cpus(2).optimize().probe(entered().record()).probe(returned().record());
    for plan in &of_entries {
        guest = guest.probe(entered().histogram(plan.clone()));
    }
    let ended = guest.probe(returned().histogram(of_returns.clone())).run("mix:20,fork:20,open:50");
    ended.assert_in_order();
    let all = (2..).zip(of_entries.iter().map(|plan| (0, &entry, plan)));
    for (n, (source, capture, plan)) in all.chain([(5, (1, &back, &of_returns))]) {
        let (one_by_one, counted) = (ended.probe(source), ended.probe(n));
        assert!(matches!(counted.state, ProbeState::Optimized(_)), "{counted:?}");
        assert_eq!((one_by_one.missed, counted.missed), Default::default());
        let (guest, host) = (in_guest(&ended, n, plan), on_host(&ended, source, capture, plan));
        println!("{} hits, {} keys", host.hits(), host.len());
        assert!(host.hits() > 100 && host.hits() == counted.hits, "{counted:?}");
        assert_eq!(guest.text(&names::none).to_string(), host.text(&names::none).to_string());
        assert!(ended.events.iter().all(|event| event.probe != counted.id), "none was noted down");
    }
    let text = in_guest(&ended, 3, &of_entries[1]).text(&names::none).to_string();
    assert!(text.contains("(missing)"), "some are read from nowhere:\n{text}");
}
