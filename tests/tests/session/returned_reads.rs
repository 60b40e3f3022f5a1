//! Memory that detours read when a function returns: it is what a trap reads, faults included.

use super::reads::{OPEN, at, field, reading};
use probe_engine::capture::filter::{Filter, Operand, Order, Test};
use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Fetch, Field, Register, Value, What};
use tests::kernel::name_of;
use tests::linux_rig::{Ended, Guest};
use vmm::events::Captured;
use vmm::probe::Probe;
use vmm::session::ProbeState;

/// Each return twice, without what is known of the call: by a detour at the function, and by a trap where it returns to.
fn reads_behind_it(cpus: u8) {
    let Some(guest) = Guest::new() else { return };
    let callee = name_of("do_filp_open");
    let banner = guest.subject.kernel.symbol("linux_banner").unwrap();
    let capture = reading(vec![
        // The file, or an error, where there is nothing.
        at(Base::Register(Register::Rax), &[0], false, What::Bytes(64)),
        at(Base::Register(Register::Rip), &[-5], false, What::Bytes(5)),
        at(Base::Kernel(banner), &[0], false, What::String(200)),
        at(Base::Constant(0), &[8], true, What::Bytes(8)),
        field(Fetch::word(Base::Stack(0), 8)),
        field(Fetch::word(Base::Stack(3), 4)),
        at(Base::Register(Register::Rbx), &[0], false, What::Bytes(8)),
        at(Base::Register(Register::R12), &[8], false, What::Bytes(8)),
    ]);
    let behind = guest.subject.behind_call(OPEN, callee);
    let guest = guest.probe(Probe::on_return(callee).capture(capture.clone()).record());
    let guest = guest.probe(Probe::at(behind).capture(capture.clone()).record().pre(|_| {}));
    let ended = guest.cpus(cpus).optimize().run("open:50,mix:20,try:/etc/group,try:/nonexistent");
    ended.assert_in_order();
    let (detour, trap) = (ended.probe(0), ended.probe(1));
    assert!(matches!(detour.state, ProbeState::Optimized(_)), "{detour:?}");
    assert!(matches!(trap.state, ProbeState::Armed(_)), "{trap:?}");
    assert_eq!((detour.missed, trap.missed, detour.outstanding), Default::default());
    let of = |probe, process: bool| {
        let its = ended.events.iter().filter(move |event| event.probe == probe);
        let its = its.filter(move |event| event.rip == trap.address);
        its.filter(move |event| !process || event.task.is_some_and(|task| task.pid == 1))
    };
    assert_eq!(of(detour.id, false).count() as u64, trap.hits);
    let read = |probe| of(probe, true).map(|event| (event.task, &event.captured)).collect::<Vec<_>>();
    let faults = |(_, captured): &(_, &Captured)| {
        capture.values(captured).filter(|(_, value)| matches!(value, Value::Fault(_))).count()
    };
    let (detoured, trapped) = (read(detour.id), read(trap.id));
    println!("{cpus} vCPUs: {} returns, {} of the workload", detour.hits, detoured.len());
    assert!(detoured.len() > 50 && detoured.iter().map(faults).sum::<usize>() > detoured.len());
    for (n, (detoured, trapped)) in detoured.iter().zip(&trapped).enumerate() {
        assert_eq!(detoured, trapped, "return {n}");
    }
    assert_eq!(detoured.len(), trapped.len());
}

#[test]
fn a_return_reads_what_is_there_behind_it() {
    reads_behind_it(1);
    reads_behind_it(2);
}

/// Counts opens by the name that they were made with, when they return.
fn opened(equal: bool) -> Capture {
    let name = at(Base::Argument(1), &[0], true, What::String(4096));
    let filter = Filter::Test(Operand::Field(0), Test::Text(equal, "/etc/group".to_owned()));
    Capture { filter: Some(filter), ..reading(vec![Field { shape: Shape::Text, ..name }]) }
}

/// What is read at returns, as far as it is the same in every boot.
fn returned() -> [(&'static str, Capture); 5] {
    let value = Field { shape: Shape::Signed, ..field(Fetch::word(Base::Register(Register::Rax), 8)) };
    let of_name = vec![
        at(Base::Register(Register::Rax), &[0, 0], false, What::String(4096)),
        at(Base::Argument(0), &[0], true, What::String(4096)),
    ];
    let of_open = vec![
        value.clone(),
        at(Base::Argument(1), &[0], true, What::String(4096)),
        at(Base::Argument(2), &[0], false, What::Bytes(24)),
        at(Base::Argument(6), &[0], false, What::Bytes(8)),
        at(Base::Constant(0), &[8], false, What::Bytes(8)),
    ];
    // What has been read is in the buffer, and the position behind it.
    let of_read = vec![
        value,
        at(Base::Argument(1), &[0], true, What::Bytes(4)),
        at(Base::Argument(3), &[0], false, What::Bytes(8)),
    ];
    let some = Filter::Test(Operand::Field(0), Test::Number(Order::Greater, 3));
    [
        (name_of("getname"), reading(of_name)),
        (OPEN, reading(of_open)),
        ("vfs_read", Capture { filter: Some(some), ..reading(of_read) }),
        (OPEN, opened(true)),
        (OPEN, opened(false)),
    ]
}

/// The same calls of two boots, followed by detours in one and by traps in the other.
fn reads_what_traps_read(cpus: u8) {
    let captures = returned();
    let run = |optimized: bool| {
        let mut guest = Guest::new()?.cpus(cpus);
        for (function, capture) in &captures {
            guest = guest.probe(Probe::on_return(*function).capture(capture.clone()).record().max_active(64));
        }
        let guest = if optimized { guest.optimize() } else { guest };
        let ended = guest.run("open:50,pipe:20,try:/etc/group,try:/nonexistent");
        ended.assert_in_order();
        Some(ended)
    };
    let (Some(detoured), Some(trapped)) = (run(true), run(false)) else { return };
    for (n, (function, capture)) in (0..).zip(&captures) {
        let (detour, trap) = (detoured.probe(n), trapped.probe(n));
        assert!(matches!(detour.state, ProbeState::Optimized(_)), "{detour:?}");
        assert!(matches!(trap.state, ProbeState::Armed(_)), "{trap:?}");
        assert_eq!((detour.missed, detour.outstanding), Default::default(), "{function}");
        assert_eq!((trap.missed, trap.outstanding), Default::default(), "{function}");
        let read = |ended: &Ended| -> Vec<Vec<u8>> {
            let its = ended.events.iter().filter(|event| event.probe == detour.id);
            let its = its.filter(|event| event.task.is_some_and(|task| task.pid == 1));
            its.map(|event| event.captured.to_vec()).collect()
        };
        let (by_detour, by_trap) = (read(&detoured), read(&trapped));
        println!("{cpus} vCPUs: {} returns of {function}, {} of pid 1", detour.hits, by_detour.len());
        assert!(by_detour.len() > 1);
        for (n, (by_detour, by_trap)) in by_detour.iter().zip(&by_trap).enumerate() {
            let [detoured, trapped] =
                [by_detour, by_trap].map(|captured| capture.values(captured).collect::<Vec<_>>());
            assert_eq!(detoured, trapped, "return {n} of {function}");
        }
        assert_eq!(by_detour.len(), by_trap.len(), "{function}");
        let text = |captured: &Vec<u8>| captured.windows(10).any(|bytes| bytes == b"/etc/group");
        assert_eq!(by_detour.iter().any(text), !matches!(n, 2 | 4), "{function}");
    }
    let [all, group, others] = [1, 3, 4].map(|n| detoured.hits(n));
    assert_eq!((group + others, group), (all, trapped.hits(3)), "each has been compared");
}

#[test]
fn returns_read_what_traps_read() {
    reads_what_traps_read(1);
    reads_what_traps_read(2);
}
