//! A guest that is made to stand still, and what is seen of it meanwhile.

use probe_engine::addr::Gva;
use probe_engine::linux::unwind::{Cut, End};
use probe_engine::probe::pace::{GateId, HoldMode, Pace};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};
use tests::linux_rig::Guest;
use vmm::probe::Probe;
use vmm::session::{Command, CommandError, HoldEnd, ReadError, StopCause};

/// The guest is paused for longer than it may be silent, and than a task may be held.
#[test]
fn a_guest_that_is_paused_does_nothing_until_it_is_resumed() {
    let Some(guest) = Guest::new() else { return };
    let kernel = guest.subject.kernel.clone();
    let probe = || Probe::at("do_sys_openat2").record();
    let ended = guest.cpus(2).unwind().optimize().probe(probe()).run_with(
        "getppid:10,sh:/gate,open:20000,getppid:10",
        |handle, console| {
            console.wait_for("workload: getppid", 1);
            console.open_gate();
            let hits = || handle.list().unwrap()[0].hits;
            let before = hits();
            let begun = Instant::now();
            while hits() < before + 100 {
                assert!(begun.elapsed() < Duration::from_secs(60));
            }
            handle.command(Command::Pause).unwrap();
            handle.command(Command::Pause).unwrap();
            let stands = hits();
            thread::sleep(Duration::from_millis(2500));
            assert_eq!(hits(), stands);

            let standing = handle.standing().unwrap();
            assert_eq!(standing.cpus.len(), 2);
            let slide = standing.slide.unwrap();
            for cpu in &standing.cpus {
                assert_eq!(cpu.regs.unwrap().rip, cpu.rip.0);
            }
            assert!(standing.cpus.iter().any(|cpu| !cpu.stack.as_ref().unwrap().frames.is_empty()));
            // A jump of ours stands there.
            let link = kernel.symbol("do_sys_openat2").unwrap();
            let (at, own) = (link.add(slide), kernel.image().bytes_at(link, 64).unwrap());
            let read = handle.read(at, 64, None).unwrap();
            let call = own.iter().position(|byte| *byte == 0xe8).unwrap();
            assert_eq!(&read[..call], &own[..call]);
            assert_eq!(&read[call..call + 5], [0x0f, 0x1f, 0x44, 0, 0], "as its ftrace has left it");
            assert!(handle.read(at, 1, Some(1)).is_ok());
            assert!(matches!(handle.read(at, 1, Some(2)), Err(ReadError::NoVcpu(2))));
            assert!(matches!(handle.read(Gva(0x10), 1, None), Err(ReadError::Unmapped(Gva(0x10)))));
            assert!(matches!(handle.read(at, 1 << 20, None), Err(ReadError::TooLong(_))));

            // Its number is known before its first event.
            let (tell, told) = mpsc::channel();
            let ids = handle.register_told(vec![probe().into()], move |ids| tell.send(ids.to_vec()).unwrap());
            assert_eq!(told.try_recv().unwrap(), ids.unwrap());
            handle.command(Command::Resume).unwrap();
            handle.command(Command::Resume).unwrap();
        },
    );
    ended.assert_in_order();
    // The shell at the gate opens its script.
    assert_eq!(ended.hits(0), ended.workload("done", "openat") + 1);
    assert!(ended.hits(1) > 0 && ended.hits(1) < ended.hits(0));
}

/// Much of what such a guest does is done by detours, also of returns, and where memory is read.
#[test]
fn who_stands_in_a_detour_is_seen_where_it_goes_on() {
    const LOOKS: usize = 150;
    let Some(guest) = Guest::new() else { return };
    let kernel = guest.subject.kernel.clone();
    let functions = ["do_sys_openat2", "vfs_open", "vfs_read", "do_filp_open", "security_file_open"];
    let known: Vec<&str> = functions.into_iter().filter(|name| kernel.symbol(name).is_some()).collect();
    let mut guest = guest.cpus(1).unwind().optimize();
    for name in &known {
        guest = guest.probe(Probe::at(*name).record()).probe(Probe::on_return(*name).record());
    }
    let ended = guest.run_with("getppid:10,open:2000000", |handle, console| {
        console.wait_for("workload: getppid", 1);
        let (mut probed, mut lost) = (0, Vec::new());
        for _ in 0..LOOKS {
            handle.command(Command::Pause).unwrap();
            let standing = handle.standing().unwrap();
            handle.command(Command::Resume).unwrap();
            let slide = standing.slide.unwrap();
            let Some(stack) = &standing.cpus[0].stack else { continue };
            let innermost = |at: Gva| kernel.symbols().function_at(Gva(at.0.wrapping_sub(slide)));
            let name = stack.frames.first().and_then(|frame| Some(innermost(frame.at)?.symbol.name));
            probed += usize::from(name.is_some_and(|name| known.contains(&name)));
            // Of thunks the kernel itself knows nothing.
            let is_whole = matches!(stack.end, End::User(_) | End::Bottom | End::Cut(Cut::Undefined(_)));
            if !is_whole || (name.is_none() && !stack.frames.is_empty()) {
                lost.push(format!("{:?} {name:?} {:?}", stack.frames.first(), stack.end));
            }
            thread::sleep(Duration::from_millis(3));
        }
        println!("{probed} of {LOOKS} in a function with probes, {} not known", lost.len());
        assert!(probed > 0);
        assert!(lost.is_empty(), "{lost:#?}");
        handle.command(Command::Stop).unwrap();
    });
    assert_eq!(ended.report.end, vmm::session::Outcome::Stopped);
}

#[test]
fn a_guest_that_is_paused_can_be_ended() {
    let Some(guest) = Guest::new() else { return };
    let ended =
        guest.probe(Probe::at("do_sys_openat2")).run_with("getppid:10,idle:600", |handle, console| {
            console.wait_for("workload: getppid", 1);
            handle.command(Command::Pause).unwrap();
            handle.command(Command::Stop).unwrap();
            assert!(matches!(handle.standing(), Err(CommandError::Ended)));
        });
    assert_eq!(ended.report.end, vmm::session::Outcome::Stopped);
}

/// Whoever says that a guest is to go on may not have heard yet that it has come to stand still once more.
#[test]
fn a_guest_goes_on_for_who_knows_of_its_last_stop() {
    let Some(guest) = Guest::new() else { return };
    let probe = Probe::at("__x64_sys_getppid").paced(Pace::Stop);
    let ended = guest.cpus(2).run_with("open:1,sh:/gate,getppid:3", |handle, console| {
        console.wait_for("workload: open", 1);
        let stops = handle.stops().unwrap();
        let ids = handle.register_all(vec![probe.into()]).unwrap();
        console.open_gate();
        let stands = || handle.stands_for().unwrap().is_some();
        for number in 1..=2 {
            let stopped = stops.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!((stopped.number, stopped.why), (number, StopCause::Probe(ids[0])));
            for late in [Command::ResumeAfter(number - 1), Command::LetGoAfter(number - 1)] {
                handle.command(late).unwrap();
                assert!(stands(), "{number}");
            }
            if number == 1 {
                handle.command(Command::ResumeAfter(number)).unwrap();
            }
        }
        handle.unregister_all(ids).unwrap();
        handle.command(Command::LetGoAfter(2)).unwrap();
        assert!(!stands());
    });
    ended.assert_in_order();
}

/// Its time does not go on while the guest is paused, so that whoever looks finds it where it is held.
#[test]
fn a_task_that_is_held_is_seen_and_let_go() {
    const GATE: GateId = GateId(3);
    const LONG: Duration = Duration::from_secs(5);
    let Some(guest) = Guest::new() else { return };
    let pace = Pace::Hold { gate: GATE, within: LONG, mode: HoldMode::Cpu };
    let ended = guest
        .cpus(2)
        .script("mkdir /held\n")
        .probe(Probe::at("__x64_sys_mkdir").paced(pace))
        .probe(Probe::at("__x64_sys_rmdir").paced(Pace::Open { gate: GATE }))
        .run_with("sh:/script", |handle, _| {
            let begun = Instant::now();
            while handle.held().unwrap().is_empty() {
                assert!(begun.elapsed() < Duration::from_secs(60));
                thread::sleep(Duration::from_millis(20));
            }
            handle.command(Command::Pause).unwrap();
            thread::sleep(LONG);
            let held = handle.held().unwrap();
            assert_eq!((held.len(), held[0].gate), (1, GATE));
            assert_eq!(held[0].task.unwrap().comm(), b"mkdir");
            assert_eq!(handle.release(Some(GateId(4))).unwrap(), 0);
            assert_eq!(handle.release(Some(GATE)).unwrap(), 1);
            assert_eq!(handle.release(None).unwrap(), 0);
            handle.command(Command::Resume).unwrap();
        });
    ended.assert_in_order();
    assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
    assert_eq!((ended.holds.len(), &ended.holds[0].end), (1, &HoldEnd::Released));
    let [gate] = ended.report.gates[..] else { panic!("{:?}", ended.report.gates) };
    assert_eq!((gate.released, gate.reached, gate.timed_out, gate.unfinished), (1, 0, 0, 0));
}
