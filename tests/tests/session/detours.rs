//! Probes that are served by detours: what they see is what a trap would have seen, and the guest is not left for it.

use super::fire::some;
use super::{UNTIL_GATE, after, assert_hits_take_no_exits, assert_saw_all_calls, listed};
use probe_engine::capture::filter::{Filter, Operand, Order, Test};
use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Fetch, Field, Register};
use std::collections::BTreeMap;
use std::hint::spin_loop;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tests::linux_rig::{Ended, Guest};
use vmm::events::Event;
use vmm::probe::Probe;
use vmm::session::{Command, Missed, ProbeState};

/// Called once for each step of a workload that says so, and seldom else.
const FUNCTION: &str = "__x64_sys_getppid";

/// Reads these registers.
fn reading(registers: &[Register]) -> Capture {
    let field = |register: &Register| Field {
        name: register.name().to_owned(),
        fetch: Fetch::word(Base::Register(*register), 8),
        shape: Shape::Hex,
    };
    Capture { fields: registers.iter().map(field).collect(), ..Capture::default() }
}

/// The values of an event that do not depend on where exactly the probe stands.
fn seen(event: &Event) -> impl PartialEq + std::fmt::Debug {
    (event.what, event.task, event.captured.clone())
}

/// The same hit twice: by a detour at the function's entry, and by a trap behind it.
fn sees_what_a_trap_sees(cpus: u8) {
    const FUNCTIONS: [&str; 3] = ["vfs_read", "do_sys_openat2", "wake_up_new_task"];
    let Some(mut guest) = Guest::new() else { return };
    let registers = || reading(&[Register::Rbx, Register::Rsp, Register::R12, Register::Rax, Register::Rdx]);
    for function in FUNCTIONS {
        let behind = guest.subject.behind_site(function);
        guest = guest.probe(Probe::at(function).capture(registers()).record());
        guest = guest.probe(Probe::at(behind).capture(registers()).record().pre(|_| {}));
    }
    let ended = guest.cpus(cpus).optimize().run("mix:20,fork:5,open:50");
    ended.assert_in_order();
    for (n, function) in FUNCTIONS.iter().enumerate() {
        let n = 2 * n as u32;
        let (detour, trap) = (ended.probe(n), ended.probe(n + 1));
        assert!(matches!(detour.state, ProbeState::Optimized(_)), "{detour:?}");
        assert!(matches!(trap.state, ProbeState::Armed(_)), "{trap:?}");
        assert_eq!(trap.trapped.as_deref(), Some("a handler on the host sees its hits"));
        println!("{cpus} CPUs: {} hits of {function}", detour.hits);
        assert!(detour.hits > 4 && detour.hits == trap.hits, "{function}: {detour:?} {trap:?}");
        assert_eq!((detour.missed, trap.missed), Default::default());
        let (detoured, trapped) = (ended.by_task(detour.id), ended.by_task(trap.id));
        assert_eq!([detoured.len(), trapped.len()], [detour.hits as usize; 2], "{function}");
        for (n, (detoured, trapped)) in detoured.into_iter().zip(trapped).enumerate() {
            assert_eq!(seen(detoured), seen(trapped), "hit {n} of {function} on {cpus} CPUs");
            // A task may be moved to another CPU between the two.
            assert!(detoured.nanos <= trapped.nanos || cpus > 1, "{detoured:?} {trapped:?}");
        }
    }
}

#[test]
fn a_detour_sees_what_a_trap_sees() {
    sees_what_a_trap_sees(1);
    sees_what_a_trap_sees(2);
}

/// A thousand and ten thousand hits: what they cost in exits.
#[test]
fn hits_of_a_detour_leave_the_guest_where_it_is() {
    let exits = |calls: u64| {
        let guest = Guest::new()?.optimize();
        let guest = guest.probe(Probe::at(FUNCTION)).probe(Probe::at(FUNCTION).record());
        let ended = guest.run(&format!("getppid:{calls}"));
        ended.assert_in_order();
        for n in 0..2 {
            assert_eq!(ended.probe(n).hits, calls, "{:?}", ended.probe(n));
            assert!(matches!(ended.probe(n).state, ProbeState::Optimized(_)));
        }
        assert_eq!(ended.events.len() as u64, calls);
        ended.report.exits
    };
    assert_hits_take_no_exits("calls", exits);
}

/// How many hits meet a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meet {
    None,
    Some,
    All,
}

#[test]
fn a_condition_counts_as_it_does_at_a_trap() {
    let Some(mut guest) = Guest::new() else { return };
    let field = |n, bytes, shape| Field {
        name: format!("arg{n}"),
        fetch: Fetch::word(Base::Argument(n), bytes),
        shape,
    };
    let test = |operand, test| Filter::Test(operand, test);
    let number = |operand, order, than| test(operand, Test::Number(order, than));
    // How many of the hits meet each: some of them, where nothing else is said.
    let conditions = [
        (Meet::Some, number(Operand::Field(0), Order::Less, 2)),
        (Meet::Some, number(Operand::Field(0), Order::Equal, 1)),
        (Meet::Some, number(Operand::Field(0), Order::GreaterOrEqual, 1000)),
        (Meet::All, number(Operand::Field(1), Order::Greater, -1)),
        (Meet::All, number(Operand::Field(1), Order::LessOrEqual, 1 << 70)),
        (Meet::Some, test(Operand::Field(2), Test::Bits(1))),
        (Meet::All, test(Operand::Comm, Test::Text(true, "init".to_owned()))),
        (Meet::All, test(Operand::Comm, Test::Text(false, "a name that is too long".to_owned()))),
        (Meet::None, test(Operand::Comm, Test::Text(true, "ini".to_owned()))),
        (Meet::Some, Filter::Not(Box::new(number(Operand::Pid, Order::NotEqual, 1)))),
        (Meet::Some, test(Operand::Cpu, Test::Among(vec![1..2, 5..9]))),
        (
            Meet::Some,
            Filter::All(vec![
                number(Operand::Pid, Order::Greater, 1),
                number(Operand::Cpu, Order::LessOrEqual, 1),
            ]),
        ),
        (
            Meet::Some,
            Filter::Any(vec![
                // The guest decides where task 1 runs: no CPU that exists is named.
                Filter::All(vec![
                    number(Operand::Pid, Order::Equal, 1),
                    number(Operand::Cpu, Order::Greater, 1),
                ]),
                number(Operand::Pid, Order::Greater, 1),
            ]),
        ),
    ];
    let capture = |filter: &Filter| Capture {
        // How much is read, to where, and the lowest byte of how much.
        fields: vec![field(2, 4, Shape::Signed), field(1, 8, Shape::Hex), field(2, 1, Shape::Unsigned)],
        filter: Some(filter.clone()),
        ..Capture::default()
    };
    for (_, filter) in &conditions {
        guest = guest.probe(Probe::at("vfs_read").capture(capture(filter)).record());
    }
    // All of them again, on a trap.
    let behind = guest.subject.behind_site("vfs_read");
    for (_, filter) in &conditions {
        guest = guest.probe(Probe::at(behind.as_str()).capture(capture(filter)).record().pre(|_| {}));
    }
    let all = 2 * conditions.len() as u32;
    let guest = guest.probe(Probe::at("vfs_read"));
    let ended = guest.cpus(2).optimize().run("mix:20,open:30,fork:5,pipe:30");
    ended.assert_in_order();
    let all = ended.hits(all);
    for (n, (meet, filter)) in conditions.iter().enumerate() {
        let (detour, trap) = (ended.probe(n as u32), ended.probe((n + conditions.len()) as u32));
        println!("{} of {all} hits: {filter:?}", detour.hits);
        assert!(matches!(detour.state, ProbeState::Optimized(_)), "{detour:?}");
        assert_eq!((detour.hits, detour.missed), (trap.hits, Missed::default()), "{filter:?}");
        assert_eq!(trap.missed, Missed::default());
        let met = match detour.hits {
            0 => Meet::None,
            hits if hits == all => Meet::All,
            _ => Meet::Some,
        };
        assert_eq!(met, *meet, "{} of {all} hits: {filter:?}", detour.hits);
    }
}

/// How often a CPU calls where nothing may be missed.
fn calls() -> u32 {
    if std::env::var_os("VMM_LONG").is_some() { 1_000_000 } else { 50_000 }
}

/// Runs a guest of two CPUs of which each hit is noted down, and none is missed.
fn notes_all(guest: Guest) -> Ended {
    let ended = guest.cpus(2).optimize().counting().probe(Probe::at(FUNCTION).record());
    let ended = ended.patience(Duration::from_secs(1200)).run(&format!("pinned:{}", calls()));
    ended.assert_in_order();
    let (probe, calls) = (ended.probe(0), ended.workload("pinned", "calls"));
    println!("{calls} calls, {} hits, {} read, {} waits", probe.hits, ended.read, ended.report.waits);
    assert!(matches!(probe.state, ProbeState::Optimized(_)), "{probe:?}");
    assert_eq!((probe.hits, ended.read, probe.missed), (calls, calls, Missed::default()));
    ended
}

/// Nobody reads for a while: the guest waits where its rings are full.
#[test]
fn a_reader_that_sleeps_misses_nothing() {
    let Some(guest) = Guest::new() else { return };
    let ended = notes_all(guest.asleep(Duration::from_secs(8)));
    assert!(ended.report.waits > 0, "the rings are larger than was thought");
}

/// Opens one file.
const OPENS: &str = "\
n=0
while [ $n -lt 1000 ]; do
    : < /etc/passwd
    n=$((n + 1))
done
";

/// Nobody reads for long. One CPU waits for that, as so many probes fill its ring. The other one has work, and would take it
/// for a stalled one: it stands still, too.
#[test]
fn a_reader_that_is_stuck_stops_all_cpus() {
    let Some(guest) = Guest::new() else { return };
    let guest = guest.cpus(2).script(OPENS).stuck(Duration::from_secs(30)).counting();
    let probes = (0..64).map(|_| Probe::at("do_sys_openat2").record());
    let guest = probes.fold(guest.probe(Probe::at(FUNCTION)), Guest::probe);
    let ended = guest.run_with("beside:/script", |handle, _| {
        let mut before = 0;
        loop {
            let calls = listed(handle).first().unwrap().1;
            // Both CPUs have begun.
            if calls > 1000 && calls == before {
                break;
            }
            before = calls;
            thread::sleep(Duration::from_secs(1));
        }
    });
    let hits: u64 = ended.report.probes.iter().skip(1).map(|probe| probe.hits).sum();
    println!("{hits} hits, {} read, {} waits", ended.read, ended.report.waits);
    assert!(ended.report.waits > 0, "the rings are larger than was thought");
    assert_eq!(ended.read, hits);
}

/// Others keep all processors busy, and the reader seldom runs.
#[test]
fn a_busy_machine_misses_nothing() {
    let Some(guest) = Guest::new() else { return };
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let processors = thread::available_parallelism().map_or(2, NonZero::get);
        for _ in 0..processors {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    spin_loop()
                }
            });
        }
        // Also when it fails.
        let notes = catch_unwind(AssertUnwindSafe(|| notes_all(guest)));
        is_over.store(true, Ordering::Relaxed);
        notes.unwrap_or_else(|failure| resume_unwind(failure));
    });
}

/// Probes come and go at one place and at many, and the switch for detours is thrown, while two CPUs run there.
#[test]
fn detours_come_and_go_under_load() {
    const ROUNDS: u32 = 40;
    let Some(guest) = Guest::new() else { return };
    let mut counted = BTreeMap::new();
    let guest = guest.cpus(2).optimize().probe(Probe::at(FUNCTION));
    let ended = guest.run_with(&format!("open:1,{UNTIL_GATE}"), |handle, console| {
        after(handle, console, "workload: open", 1);
        for round in 0..ROUNDS {
            // Some of the hits are written down: the guest makes millions.
            let recording = Probe::at(FUNCTION).capture(some(16)).record();
            let more = [recording, Probe::at(FUNCTION), Probe::at("vfs_read")].map(Probe::into);
            let ids = handle.register_all(more.into()).unwrap();
            let change = match round % 4 {
                0 => Command::Optimize(false),
                1 => Command::Optimize(true),
                2 => Command::Disable(vec![ids[0]]),
                _ => Command::Enable(ids.clone()),
            };
            handle.command(change).unwrap();
            for probe in handle.list().unwrap() {
                let kind = match probe.state {
                    ProbeState::Optimized(_) => "optimized",
                    ProbeState::Armed(_) => "trapped",
                    _ => "other",
                };
                *counted.entry(kind).or_insert(0) += 1;
            }
            handle.command(Command::Unregister(ids)).unwrap();
        }
        console.open_gate();
    });
    ended.assert_in_order();
    assert_saw_all_calls(&ended, &counted);
    // In a quarter of the rounds all four are on traps, and in another one is disabled.
    let expected =
        [("optimized", 11), ("trapped", 4), ("other", 1)].map(|(kind, each)| (kind, each * ROUNDS / 4));
    assert_eq!(counted, BTreeMap::from(expected));
}
