//! Memory that detours read, by the guest's own functions: it is what a trap reads, faults included.

use probe_engine::addr::Gva;
use probe_engine::capture::filter::{Filter, Operand, Order, Test};
use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Fetch, Field, Hop, Read, Value, What};
use probe_engine::linux::glob::Glob;
use tests::linux_rig::{Ended, Guest};
use vmm::events::Event;
use vmm::probe::Probe;
use vmm::session::{Command, Missed, ProbeState};

pub(super) const OPEN: &str = "do_sys_openat2";
/// How some names begin.
const GROUP: u64 = u64::from_le_bytes(*b"/etc/gro");

pub(super) fn field(fetch: Fetch) -> Field {
    Field { name: "it".to_owned(), fetch, shape: Shape::Hex }
}

/// What lies at the end of these hops.
pub(super) fn at(base: Base, hops: &[i64], user: bool, what: What) -> Field {
    let (last, hops) = hops.split_last().unwrap();
    let hops = hops.iter().map(|offset| Hop::at(*offset)).collect();
    field(Fetch { base, hops, read: Read::Memory(Hop { user, ..Hop::at(*last) }, what) })
}

pub(super) fn reading(fields: Vec<Field>) -> Capture {
    Capture { fields, ..Capture::default() }
}

/// What is read at each function: of processes, of the kernel, of the stack, and where there is nothing.
fn captures(banner: Gva) -> [(&'static str, Capture); 4] {
    let of_open = vec![
        at(Base::Argument(1), &[0], true, What::String(4096)),
        at(Base::Argument(2), &[0], false, What::Bytes(24)),
        // The kernel's memory is no process's.
        at(Base::Argument(2), &[0], true, What::Bytes(8)),
        at(Base::Kernel(banner), &[0], false, What::String(200)),
        field(Fetch::word(Base::Stack(0), 8)),
        field(Fetch::word(Base::Stack(3), 4)),
    ];
    let of_read = vec![
        at(Base::Argument(0), &[32, 8], false, What::Bytes(8)),
        at(Base::Argument(0), &[16, 0, 0], false, What::String(32)),
        at(Base::Argument(3), &[0], false, What::Bytes(8)),
        at(Base::Constant(0), &[8], false, What::Bytes(8)),
        at(Base::Constant(1 << 63), &[8], false, What::Bytes(8)),
        at(Base::Constant(0xffff_8000_0000_0000), &[0, 0], false, What::Bytes(4)),
        field(Fetch {
            read: Read::Pointee { what: What::Bytes(16), user: false },
            ..Fetch::word(Base::Argument(1), 8)
        }),
    ];
    // In a page fault, the page that is missing.
    let of_fault = vec![
        at(Base::Argument(1), &[0], true, What::Bytes(8)),
        at(Base::Argument(0), &[0], false, What::Bytes(64)),
    ];
    // On the stack of interrupts.
    let of_interrupt =
        vec![at(Base::Argument(0), &[0], false, What::Bytes(16)), field(Fetch::word(Base::Stack(0), 8))];
    [
        (OPEN, reading(of_open)),
        ("vfs_read", reading(of_read)),
        ("handle_mm_fault", reading(of_fault)),
        ("hrtimer_interrupt", reading(of_interrupt)),
    ]
}

fn seen(event: &Event) -> impl PartialEq + std::fmt::Debug {
    (event.what, event.task, event.captured.clone())
}

/// The same hit twice: by a detour at the function's entry, and by a trap behind it.
#[test]
fn a_detour_reads_what_a_trap_reads() {
    let Some(mut guest) = Guest::new() else { return };
    let captures = captures(guest.subject.kernel.symbol("linux_banner").unwrap());
    for (function, capture) in &captures {
        let behind = guest.subject.behind_site(function);
        guest = guest.probe(Probe::at(*function).capture(capture.clone()).record());
        guest = guest.probe(Probe::at(behind).capture(capture.clone()).record().pre(|_| {}));
    }
    let guest = guest.optimize().script("( : < '' )\ntrue\n");
    let ended = guest.run("mix:20,fork:5,open:50,try:/etc/group,sh:/script");
    ended.assert_in_order();
    for (n, (function, capture)) in (0..).step_by(2).zip(&captures) {
        let (detour, trap) = (ended.probe(n), ended.probe(n + 1));
        assert!(matches!(detour.state, ProbeState::Optimized(_)), "{detour:?}");
        assert!(matches!(trap.state, ProbeState::Armed(_)), "{trap:?}");
        assert_eq!((detour.missed, trap.missed), Default::default(), "{function}");
        assert!(detour.hits > 4 && detour.hits == trap.hits, "{function}: {detour:?} {trap:?}");
        let of_detour = ended.events.iter().filter(|event| event.probe == detour.id);
        let is_fault = |value: &Value<'_>| matches!(value, Value::Fault(_));
        let faults =
            |event: &Event| capture.values(&event.captured).filter(|(_, value)| is_fault(value)).count();
        let faults = of_detour.map(faults).sum::<usize>();
        println!("{} hits of {function}, {faults} values were not there", detour.hits);
        assert_eq!(faults == 0, *function == "hrtimer_interrupt", "{function}");
        let both = ended.by_task(detour.id).into_iter().zip(ended.by_task(trap.id));
        for (n, (detoured, trapped)) in both.enumerate() {
            assert_eq!(seen(detoured), seen(trapped), "hit {n} of {function}");
            assert!(capture.values(&detoured.captured).count() == capture.fields.len());
        }
    }
    for name in [b"/etc/group".as_slice(), b""] {
        let expected = Value::Text { bytes: name, cut: false };
        let is_it =
            |event: &&Event| captures[0].1.values(&event.captured).any(|(_, value)| value == expected);
        let opened = ended.events.iter().filter(|event| event.probe == ended.probe(0).id);
        assert!(opened.filter(is_it).count() > 0, "the name {name:?} was read");
    }
}

/// Counts opens by how the name begins.
fn opens(order: Order) -> Capture {
    let name = at(Base::Argument(1), &[0], true, What::Bytes(8));
    let filter = Filter::Test(Operand::Field(0), Test::Number(order, GROUP.into()));
    Capture { filter: Some(filter), ..reading(vec![name]) }
}

#[test]
fn memory_is_compared_as_it_is_at_a_trap() {
    let Some(mut guest) = Guest::new() else { return };
    let behind = guest.subject.behind_site(OPEN);
    for order in [Order::Equal, Order::NotEqual] {
        guest = guest.probe(Probe::at(OPEN).capture(opens(order)));
        guest = guest.probe(Probe::at(behind.as_str()).capture(opens(order)).pre(|_| {}));
    }
    // What is not there is neither equal nor different.
    let nowhere = at(Base::Constant(0), &[8], false, What::Bytes(8));
    let filter = Filter::Test(Operand::Field(0), Test::Number(Order::NotEqual, 0));
    let nothing = Capture { filter: Some(filter), ..reading(vec![nowhere]) };
    let not = |capture: &Capture| {
        let filter = capture.filter.clone().map(|filter| Filter::Not(Box::new(filter)));
        Capture { filter, ..capture.clone() }
    };
    guest = guest.probe(Probe::at(OPEN).capture(not(&nothing))).probe(Probe::at(OPEN).capture(nothing));
    // The whole of it.
    let named = |equal| {
        let name = at(Base::Argument(1), &[0], true, What::String(4096));
        let filter = Filter::Test(Operand::Field(0), Test::Text(equal, "/etc/group".to_owned()));
        let fields = vec![Field { shape: Shape::Text, ..name }];
        Capture { filter: Some(filter), ..reading(fields) }
    };
    for equal in [true, false] {
        guest = guest.probe(Probe::at(OPEN).capture(named(equal)).record());
        guest = guest.probe(Probe::at(behind.as_str()).capture(named(equal)).record().pre(|_| {}));
    }
    let ended = guest.optimize().run("open:50,mix:20,try:/etc/group,try:/etc/groups,try:/etc/none");
    ended.assert_in_order();
    let [equal, trapped, other, other_trapped, all, none] = std::array::from_fn(|n| ended.hits(n as u32));
    println!("{equal} opens of /etc/group, {other} others");
    assert_eq!((equal, other, none), (trapped, other_trapped, 0));
    assert!(equal >= 2 && other > 2 && equal + other == all, "{equal} {other} {all}");
    let [group, group_trapped, others, others_trapped] = std::array::from_fn(|n| ended.hits(6 + n as u32));
    println!("{group} of /etc/group itself, {others} others");
    assert_eq!((group, others), (group_trapped, others_trapped));
    assert!(group > 2 && group == equal - 1 && group + others == all, "{group} {others} {all}");
    for n in [0, 2, 4, 5, 6, 8] {
        assert!(matches!(ended.probe(n).state, ProbeState::Optimized(_)), "{:?}", ended.probe(n));
    }
}

/// Opens by what their names match, with one that is longer than what a detour keeps: where its beginning does not decide,
/// that is missed, and counted so.
#[test]
fn a_detour_matches_what_a_trap_matches() {
    let Some(mut guest) = Guest::new() else { return };
    let behind = guest.subject.behind_site(OPEN);
    let name = || Field { shape: Shape::Text, ..at(Base::Argument(1), &[0], true, What::String(4096)) };
    // Which do not match, and how many are missed.
    let cases = [
        (Operand::Field(0), "/etc/*", false, 0),
        (Operand::Field(0), "/e?c/gr[a-o]up", true, 0),
        (Operand::Field(0), "*group", false, 1),
        (Operand::Field(0), "/*c/g*up*", true, 1),
        (Operand::Comm, "[!k]*it", false, 0),
    ];
    for (operand, pattern, negated, _) in cases {
        let test = Filter::Test(operand, Test::Glob(Glob::new(pattern).unwrap()));
        let filter = Some(if negated { Filter::Not(Box::new(test)) } else { test });
        let capture = Capture { filter, ..reading(vec![name()]) };
        guest = guest.probe(Probe::at(OPEN).capture(capture.clone()).record());
        guest = guest.probe(Probe::at(behind.as_str()).capture(capture).record().pre(|_| {}));
    }
    let long = "x".repeat(300);
    let steps = format!("open:50,fork:3,try:/etc/group,try:/etc/groups,try:group,try:/etc/{long}");
    let ended = guest.optimize().run(&steps);
    ended.assert_in_order();
    for (n, (_, pattern, negated, missed)) in (0..).step_by(2).zip(cases) {
        let (detour, trap) = (ended.probe(n), ended.probe(n + 1));
        println!("{pattern} {} {}", if negated { "does not match" } else { "matches" }, detour.hits);
        assert!(matches!(detour.state, ProbeState::Optimized(_)), "{pattern}: {detour:?}");
        assert_eq!(detour.missed, Missed { unread: missed, ..Missed::default() }, "{pattern}");
        // The long one ends in no way that is asked for.
        let long = if negated { missed } else { 0 };
        assert!(detour.hits > 2 && detour.hits + long == trap.hits, "{pattern}: {detour:?} {trap:?}");
    }
}

/// A probe in the guest's functions that detours read by would see them, and they it.
#[test]
fn detours_read_by_nothing_that_is_probed() {
    const COPY: &str = "copy_from_kernel_nofault";
    let Some(guest) = Guest::new() else { return };
    let (_, capture) = captures(guest.subject.kernel.symbol("linux_banner").unwrap())[0].clone();
    let guest = guest.cpus(2).optimize().probe(Probe::at(OPEN).capture(capture).record());
    let ended: Ended = guest.probe(Probe::at(OPEN)).run_with(
        "open:50,sh:/gate,open:50,sh:/gate,open:50",
        |handle, console| {
            console.wait_for("workload: open", 1);
            let ids = handle.register_all(vec![Probe::at(COPY).into()]).unwrap();
            let listed = handle.list().unwrap();
            assert!(matches!(listed[0].state, ProbeState::Armed(_)), "{:?}", listed[0]);
            let reason = listed[0].trapped.as_deref().unwrap();
            assert_eq!(
                reason,
                "it reads memory, and a probe stands in the guest's functions that would do so"
            );
            console.open_gate();
            console.wait_for("workload: open", 2);
            handle.command(Command::Unregister(ids)).unwrap();
            assert!(matches!(handle.list().unwrap()[0].state, ProbeState::Optimized(_)));
            console.open_gate();
        },
    );
    ended.assert_in_order();
    assert!(ended.hits(0) >= 150 && ended.hits(0) == ended.hits(1), "{:?}", ended.probe(0));
    assert_eq!(ended.probe(0).missed, Missed::default());
}
