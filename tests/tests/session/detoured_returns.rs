//! Return probes that are served by detours: calls are followed and come back as with traps, and nobody leaves the guest.

use super::assert_hits_take_no_exits;
use probe_engine::capture::shape::Shape;
use probe_engine::capture::{Base, Capture, Fetch, Field, Register};
use std::ops::Range;
use std::time::Duration;
use tests::kernel::name_of;
use tests::linux_rig::{Ended, Guest};
use vmm::events::What;
use vmm::probe::Probe;
use vmm::session::{Command, Handle, Missed, ProbeReport, ProbeState};

/// Reads the arguments of this number that the call was made with, and its value.
fn reading(arguments: &[u8]) -> Capture {
    let field =
        |name: &str, base| Field { name: name.to_owned(), fetch: Fetch::word(base, 4), shape: Shape::Hex };
    let arguments = arguments.iter().map(|n| field("argument", Base::Argument(*n)));
    let value = field("value", Base::Register(Register::Rax));
    Capture { fields: arguments.chain([value]).collect(), ..Capture::default() }
}

/// What a probe has seen of the workload's own process, as far as it is the same in every boot.
fn seen(ended: &Ended, n: u32) -> Vec<(u64, i64, Vec<u8>)> {
    let probe = ended.probe(n);
    let start = probe.address;
    let its = ended.events.iter().filter(|event| event.probe == probe.id);
    let its = its.filter(|event| event.task.is_some_and(|task| task.pid == 1));
    its.map(|event| match event.what {
        What::Return { value, duration } => {
            assert!(duration.0 <= event.nanos, "{event:?}");
            (value, event.rip.0.wrapping_sub(start.0).cast_signed(), event.captured.to_vec())
        }
        _ => panic!("{event:?}"),
    })
    .collect()
}

/// The same calls of two boots, followed by detours in one and by traps in the other.
#[test]
fn a_return_by_a_detour_is_that_by_a_trap() {
    let run = |optimized: bool| {
        let guest = Guest::new()?;
        let read = |function: &str, arguments: &[u8]| {
            Probe::on_return(function).capture(reading(arguments)).record().max_active(64)
        };
        let guest = guest.probe(read("do_sys_openat2", &[0])).probe(read("vfs_read", &[2]));
        // Two at one function, of which the second follows the first.
        let guest = guest.probe(read("ksys_read", &[0])).probe(read("ksys_read", &[0, 2]));
        let guest = if optimized { guest.optimize() } else { guest };
        let ended = guest.run("open:50,pipe:20,try:/etc/group,try:/nonexistent");
        ended.assert_in_order();
        Some(ended)
    };
    let (Some(detoured), Some(trapped)) = (run(true), run(false)) else { return };
    for n in 0..4 {
        let (detour, trap) = (detoured.probe(n), trapped.probe(n));
        assert!(matches!(detour.state, ProbeState::Optimized(_)), "{detour:?}");
        assert!(matches!(trap.state, ProbeState::Armed(_)), "{trap:?}");
        assert_eq!((detour.missed, trap.missed), Default::default());
        assert_eq!((detour.outstanding, trap.outstanding), (0, 0));
        let (by_detour, by_trap) = (seen(&detoured, n), seen(&trapped, n));
        println!("{} returns of {}, {} of the workload", detour.hits, detour.name, by_detour.len());
        assert!(by_detour.len() > 4);
        assert_eq!(by_detour, by_trap, "{}", detour.name);
    }
    // A `long` in 6.12, and an `int` in 7.2, whose upper half says nothing.
    let is_missing = |value: u64| value as u32 == -2i32 as u32;
    assert_eq!(seen(&detoured, 0).iter().filter(|(value, ..)| is_missing(*value)).count(), 1, "no such file");
    assert!(detoured.hits(2) == detoured.hits(3) && detoured.hits(2) > 20);
}

/// As many calls are followed at a time as were asked for, and the others are counted. They move no probe to a trap.
#[test]
fn recursion_beyond_the_limit_is_missed() {
    const FUNCTION: &str = "btf_array_show";
    let Some(guest) = Guest::new() else { return };
    let ended = guest
        .optimize()
        .fall_back()
        .probe(Probe::on_return(FUNCTION).max_active(10).record())
        .probe(Probe::at(FUNCTION))
        .probe(Probe::on_return(FUNCTION))
        .run("nest:50,nest:50");
    ended.assert_in_order();
    for n in 0..3 {
        assert!(matches!(ended.probe(n).state, ProbeState::Optimized(_)), "{:?}", ended.probe(n));
        assert_eq!(ended.probe(n).outstanding, 0);
    }
    assert_eq!((ended.hits(0), ended.probe(0).missed.instance), (20, 80));
    assert_eq!((ended.hits(1), ended.hits(2), ended.probe(2).missed), (100, 100, Missed::default()));
    let callers: Vec<_> = ended.events.iter().map(|event| event.rip).collect();
    assert_eq!(callers.len(), 20);
    assert!(
        callers.iter().all(|caller| caller.0.abs_diff(ended.probe(0).address.0) < 16 << 20),
        "{callers:?}"
    );
}

#[test]
fn tasks_that_die_leave_no_instance_behind() {
    let Some(mut guest) = Guest::new() else { return };
    for function in ["do_exit", "do_group_exit", "__x64_sys_pause", name_of("pipe_read")] {
        guest = guest.probe(Probe::on_return(function).max_active(256)).probe(Probe::at(function));
    }
    let ended = guest.optimize().run("die:1000,idle:2");
    ended.assert_in_order();
    let [paused, reading] = ["paused", "reading"].map(|key| ended.workload("die", key));
    for n in [0, 2, 4, 6] {
        let probe = ended.probe(n);
        println!("{}: entered {} times, {} returns", probe.name, ended.hits(n + 1), probe.hits);
        assert_eq!((probe.outstanding, probe.missed.hits()), (0, 0), "{probe:?}");
    }
    let [exit, group, pause, read] = [0, 2, 4, 6].map(|n| (ended.hits(n), ended.hits(n + 1)));
    assert!(exit.0 == 0 && exit.1 >= 1000, "{exit:?}");
    assert!(group.0 == 0 && group.1 >= 1000, "{group:?}");
    assert_eq!((pause, read), ((paused, paused), (reading, reading)));
}

/// Calls that sleep, are preempted and go on on another CPU return to their own callers, and all are seen.
#[test]
fn calls_that_sleep_and_move_return() {
    let Some(guest) = Guest::new() else { return };
    let functions = [name_of("pipe_read"), name_of("pipe_write"), "do_nanosleep", "vfs_read"];
    let mut guest = guest.cpus(2).optimize();
    for function in functions {
        guest = guest.probe(Probe::on_return(function).record()).probe(Probe::at(function));
    }
    let ended = guest.probe(Probe::on_return("schedule")).run("pipe:300,fork:10,pinned:100,idle:1");
    ended.assert_in_order();
    for (n, function) in (0..).step_by(2).zip(functions) {
        let probe = ended.probe(n);
        assert!(matches!(probe.state, ProbeState::Optimized(_)), "{probe:?}");
        assert_eq!((probe.missed, probe.outstanding), (Missed::default(), 0), "{probe:?}");
        assert!(probe.hits > 0 && probe.hits == ended.hits(n + 1), "{function}: {probe:?}");
    }
    let schedule = ended.probe(2 * functions.len() as u32);
    assert!(matches!(schedule.state, ProbeState::Optimized(_)), "{schedule:?}");
    assert!(schedule.outstanding > 0 && schedule.hits > 100, "tasks sleep in it: {schedule:?}");
    assert_eq!(schedule.missed, Missed::default());
}

/// Probes come and go while calls are followed on two CPUs: tasks return through stubs of probes that have gone, and no
/// place of theirs is used again before.
#[test]
fn return_probes_come_and_go_while_they_follow_calls() {
    /// Pipes and sleeps until somebody types a line.
    const SCRIPT: &str = "\
until [ -e /over ]; do echo through a pipe | cat > /dev/null; sleep 0.01; done &
read line
: > /over
wait
";
    let Some(guest) = Guest::new() else { return };
    let functions = [name_of("pipe_read"), "do_nanosleep", "schedule", "do_sys_openat2", "__x64_sys_getppid"];
    let guest = guest.cpus(2).optimize().script(SCRIPT).patience(Duration::from_secs(600));
    let guest = guest.probe(Probe::on_return("__x64_sys_getppid")).probe(Probe::at("__x64_sys_getppid"));
    let ended = guest.run_with("open:1,beside:/script", |handle, console| {
        console.wait_for("workload: open", 1);
        let probe = |function: &&str| -> Probe { Probe::on_return(*function).record().into() };
        for round in 0..40 {
            let ids = handle.register_all(functions.iter().map(probe).collect()).unwrap();
            match round % 4 {
                0 => drop(handle.command(Command::Optimize(false)).unwrap()),
                1 => drop(handle.command(Command::Disable(ids.clone())).unwrap()),
                _ => {}
            }
            std::thread::sleep(Duration::from_millis(20));
            handle.command(Command::Optimize(true)).unwrap();
            handle.command(Command::Unregister(ids)).unwrap();
        }
        console.open_gate();
    });
    ended.assert_in_order();
    // Where it stands on a trap for a while, some ten calls at a time can be followed, which is enough here.
    let (returns, entries) = (ended.probe(0), ended.probe(1));
    println!("{} calls, {} returns; {:?}", entries.hits, returns.hits, ended.report.unregistered);
    assert!(entries.hits > ended.workload("beside", "calls"), "{entries:?}");
    assert_eq!((returns.hits, returns.missed, returns.outstanding), (entries.hits, Missed::default(), 0));
    assert!(ended.report.unregistered.hits > 100);
}

/// Each task that waits for the other end of a pipe is in all of these.
const HOLDERS: [&str; 7] = [
    "__x64_sys_openat",
    "do_sys_openat2",
    "do_filp_open",
    "path_openat",
    "vfs_open",
    "do_dentry_open",
    "fifo_open",
];
/// So many return probes are at each place, all in one stub.
const EACH: u32 = 10;
/// 500 tasks would hold 35,000 instances.
const HOLD: &str = "\
mkfifo /held
i=0; while [ $i -lt 500 ]; do read line < /held & i=$((i + 1)); done
change() { i=0; while [ $i -lt 50 ]; do cd /; i=$((i + 1)); done; echo changed; read line; }
echo held; read line
change
change
: > /held
wait
";

/// Whose calls find no instance, because tasks that sleep hold all of them, go on by traps.
#[test]
fn probes_without_instances_go_on_by_traps() {
    // By chance as many instances are left over as the last calls take.
    assert!((0..4).any(|_| instances_run_out()), "some were left over in each guest");
}

/// Runs such a guest. False where its last calls found enough instances.
fn instances_run_out() -> bool {
    const CHANGE: &str = "__x64_sys_chdir";
    const NONE_LEFT: &str = "no instance was left to follow a call of it";
    let Some(mut guest) = Guest::new() else { return true };
    for function in HOLDERS.into_iter().map(name_of).flat_map(|function| [function; EACH as usize]) {
        guest = guest.probe(Probe::on_return(function));
    }
    for _ in 0..EACH {
        guest = guest.probe(Probe::on_return(CHANGE).max_active(2));
    }
    let guest = guest.probe(Probe::at(CHANGE)).optimize().fall_back().script(HOLD);
    let holders = HOLDERS.len() * EACH as usize;
    let stand = |handle: &Handle, range: Range<usize>| -> Vec<ProbeReport> {
        loop {
            let probes = handle.list().unwrap()[range.clone()].to_vec();
            if probes.iter().all(|probe| probe.trapped.is_some()) {
                return probes;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    let changes = holders..holders + EACH as usize;
    let mut were_enough = false;
    let ended = guest.patience(Duration::from_secs(900)).run_with("sh:/script", |handle, console| {
        console.wait_for("held", 1);
        // When the last of them has gone, there are fewer instances than a stub takes.
        let held = stand(handle, 0..holders);
        println!("{} calls are followed", held.iter().map(|probe| probe.outstanding).sum::<usize>());
        let before = &handle.list().unwrap()[changes.clone()];
        assert!(
            before.iter().all(|p| matches!(p.state, ProbeState::Optimized(_)) && p.hits == 0),
            "{before:?}"
        );
        console.open_gate();
        console.wait_for("changed", 1);
        let followed = &handle.list().unwrap()[changes.clone()];
        were_enough = followed.iter().all(|probe| probe.hits == 50);
        if were_enough {
            console.open_gate();
            console.wait_for("changed", 2);
            return console.open_gate();
        }
        let first = stand(handle, changes.clone());
        println!("missed: {:?}", first.iter().map(|probe| probe.missed.instance).collect::<Vec<_>>());
        assert!(first.iter().any(|probe| probe.missed.instance > 0), "{first:?}");
        for probe in &first {
            assert!(matches!(probe.state, ProbeState::Armed(_)), "{probe:?}");
            assert_eq!(probe.hits + probe.missed.instance, 50, "{probe:?}");
            let fell_back = probe.trapped.as_deref() == Some(NONE_LEFT);
            assert_eq!(fell_back, probe.missed.instance > 0, "{probe:?}");
        }
        console.open_gate();
        console.wait_for("changed", 2);
        let second = &handle.list().unwrap()[changes.clone()];
        for (first, second) in first.iter().zip(second) {
            assert_eq!((second.hits, second.missed), (first.hits + 50, first.missed), "{second:?}");
            assert_eq!((&second.state, &second.trapped), (&first.state, &first.trapped));
        }
        console.open_gate();
    });
    ended.assert_in_order();
    if were_enough {
        return false;
    }
    assert_eq!(ended.hits(holders as u32 + EACH), 100);
    for (n, function) in HOLDERS.into_iter().enumerate() {
        let probes = &ended.report.probes[n * EACH as usize..][..EACH as usize];
        let calls = |probe: &ProbeReport| probe.hits + probe.missed.hits();
        println!("{function}: {} calls, the first probe has {:?}", calls(&probes[0]), probes[0].missed);
        assert!(
            probes.iter().all(|probe| calls(probe) == calls(&probes[0]) && probe.outstanding == 0),
            "{probes:?}"
        );
        assert!(probes.iter().all(|probe| probe.hits > 400), "{probes:?}");
    }
    true
}

#[test]
fn returns_leave_the_guest_where_it_is() {
    const FUNCTION: &str = "__x64_sys_getppid";
    let exits = |calls: u64| {
        let ended = Guest::new()?.optimize().probe(Probe::on_return(FUNCTION).record());
        let ended = ended.run(&format!("getppid:{calls}"));
        ended.assert_in_order();
        assert_eq!((ended.hits(0), ended.events.len() as u64), (calls, calls));
        ended.report.exits
    };
    assert_hits_take_no_exits("returns", exits);
}
