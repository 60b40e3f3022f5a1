//! Tasks that are held until another one comes.

use super::Notes;
use probe_engine::addr::Gva;
use probe_engine::linux::locks::LockKind;
use probe_engine::linux::unwind::End;
use probe_engine::probe::pace::{Delay, GateId, HoldMode, Pace};
use probe_engine::probe::table::ProbeId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tests::linux_rig::{Ended, Guest};
use vmm::probe::Probe;
use vmm::session::{Command, HoldEnd, Stands, Stood};

const GATE: GateId = GateId(7);
const ROUNDS: u64 = 40;
/// Longer than it takes another task to come to a CPU of its own.
const LONG: Duration = Duration::from_secs(5);

/// In each round one task makes a folder, and another one calls rmdir until the folder is there. They may begin on one CPU: that
/// takes interrupts while a task is held there, by which the other task gets to the other CPU.
const MEET: &str = "\
i=0
while [ $i -lt 40 ]; do
    mkdir /held$i &
    while [ ! -d /held$i ]; do rmdir /none 2>/dev/null; done
    wait
    i=$((i + 1))
done
";

fn hold(within: Duration) -> Pace {
    Pace::Hold { gate: GATE, within, mode: HoldMode::Cpu }
}

/// The same, and its CPU runs others.
fn yielding(within: Duration) -> Pace {
    Pace::Hold { gate: GATE, within, mode: HoldMode::Task }
}

/// What this probe sees of the program mkdir.
fn by_mkdir(definition: &str) -> Probe {
    Probe::define(&format!(r#"{definition} if comm == "mkdir""#)).unwrap()
}

/// A guest with two CPUs, in which mkdir is held until rmdir comes.
fn meeting() -> Option<Guest> {
    let guest = Guest::new()?.cpus(2).script(MEET);
    Some(
        guest
            .probe(Probe::at("__x64_sys_mkdir").paced(hold(LONG)).record())
            .probe(Probe::at("__x64_sys_rmdir").paced(Pace::Open { gate: GATE }).record()),
    )
}

/// In each round the order was forced, and the other CPU's hit says the same.
fn assert_all_were_reached(ended: &Ended) {
    ended.assert_in_order();
    let [gate] = ended.report.gates[..] else { panic!("{:?}", ended.report.gates) };
    let counts = (gate.gate, gate.reached, gate.timed_out, gate.unfinished, gate.passed);
    assert_eq!(counts, (GATE, ROUNDS, 0, 0, 0));
    assert_eq!(ended.holds.len() as u64, ROUNDS);
    for held in &ended.holds {
        let HoldEnd::Opened { by } = held.end else { panic!("{held:?}") };
        assert_eq!((held.gate, held.probe), (GATE, ProbeId(0)));
        assert_eq!(held.task.unwrap().comm(), b"mkdir");
        // A hit has the time at which it began, which may be just before the other task was held.
        let until = held.nanos + held.waited;
        let mut opens = ended.events.iter().filter(|event| event.probe == ProbeId(1) && event.vcpu == by);
        assert!(opens.any(|event| event.nanos < until), "{held:?}");
    }
}

#[test]
fn a_task_is_held_until_another_one_comes() {
    let Some(guest) = meeting() else { return };
    let ended = guest.run("sh:/script");
    assert_all_were_reached(&ended);
    assert_eq!(ended.hits(0), ROUNDS);
}

/// There is one CPU, and the other task runs there.
#[test]
fn the_cpu_of_a_task_that_is_held_runs_the_other_one() {
    let Some(guest) = Guest::new() else { return };
    let ended = guest
        .script(MEET)
        .probe(Probe::at("__x64_sys_mkdir").paced(yielding(LONG)).record())
        .probe(Probe::at("__x64_sys_rmdir").paced(Pace::Open { gate: GATE }).record())
        .run("sh:/script");
    assert_all_were_reached(&ended);
    assert!(ended.holds.iter().all(|held| held.mode == HoldMode::Task && held.vcpu == 0));
    assert_eq!(ended.hits(0), ROUNDS);
}

/// The same on two CPUs, between which tasks go as the kernel likes, in one that preempts its own code anyway.
#[test]
fn a_task_may_go_to_another_cpu_while_it_is_held() {
    let Some(guest) = Guest::new() else { return };
    let ended = guest
        .cpus(2)
        .cmdline("preempt=full")
        .script(MEET)
        .probe(Probe::at("__x64_sys_mkdir").paced(yielding(LONG)).record())
        .probe(Probe::at("__x64_sys_rmdir").paced(Pace::Open { gate: GATE }).record())
        .run("sh:/script");
    assert_all_were_reached(&ended);
    assert!(ended.holds.iter().all(|held| held.mode == HoldMode::Task));
}

/// Nobody comes. The task is in the scheduler then, or about to go there, and its stack is that of the place where it is held.
#[test]
fn a_task_that_has_its_cpu_run_others_is_found_where_it_is_held() {
    let Some(guest) = Guest::new() else { return };
    let function = guest.subject.kernel.symbol("__x64_sys_mkdir").unwrap();
    let ended = guest
        .unwind()
        .cmdline("nokaslr")
        .script("i=0; while [ $i -lt 8 ]; do mkdir /alone$i; i=$((i + 1)); done\n")
        .probe(Probe::at("__x64_sys_mkdir").paced(yielding(Duration::from_millis(50))))
        .probe(Probe::at("__x64_sys_rmdir").paced(Pace::Open { gate: GATE }))
        .run("sh:/script");
    ended.assert_in_order();
    assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
    let is_found = |stood: &Stood| {
        let frames = stood.stack.iter().flat_map(|stack| &stack.frames);
        frames.clone().any(|frame| frame.at.is_in(&(function..function.add(16)))) && frames.count() > 2
    };
    let stands = ended.holds.iter().map(|held| match &held.end {
        HoldEnd::TimedOut(stands) => stands,
        HoldEnd::Opened { .. } | HoldEnd::Released => panic!("{held:?}"),
    });
    // Another task may run at that moment.
    let found = stands.clone().filter(|stands| stands.cpus.iter().any(is_found)).count();
    assert!(stands.count() == 8 && found >= 4, "{found}: {:?}", ended.holds);
}

/// Interrupts are off there: the kernel cannot be preempted, and the CPU waits with the task.
#[test]
fn where_the_kernel_cannot_be_preempted_the_cpu_waits() {
    let Some(guest) = Guest::new() else { return };
    let ended = guest
        .script("mkdir /alone && rmdir /alone\n")
        .probe(
            Probe::define(r#"p enqueue_task_fair if comm == "sh""#)
                .unwrap()
                .paced(yielding(Duration::from_millis(2))),
        )
        .probe(Probe::at("__x64_sys_acct").paced(Pace::Open { gate: GATE }))
        .run("sh:/script");
    ended.assert_in_order();
    assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
    let [gate] = ended.report.gates[..] else { panic!("{:?}", ended.report.gates) };
    assert!(gate.timed_out > 0 && gate.reached == 0, "{gate:?}");
    assert!(ended.holds.iter().all(|held| held.mode == HoldMode::Cpu), "{:?}", ended.holds);
}

/// The guest can be stopped, and a task goes on right when its own site was changed meanwhile.
#[test]
fn the_guest_is_stopped_and_its_sites_are_changed_while_a_task_is_held() {
    let Some(guest) = meeting() else { return };
    let (is_over, rounds) = (AtomicBool::new(false), Notes::new());
    let ended = guest.run_with("sh:/script,open:1", |handle, console| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                console.wait_for("workload: sh", 1);
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                let at = |place: &str| Probe::at(place).post(|_| ()).into();
                let places = vec![at("__x64_sys_mkdir"), at("__x64_sys_rmdir")];
                let Ok(done) = handle.register_all(places) else { break };
                let _ = handle.command(Command::Disable(vec![ProbeId(1)]));
                let _ = handle.command(Command::Enable(vec![ProbeId(1)]));
                let _ = handle.unregister_all(done);
                rounds.add(());
            }
        });
    });
    // A rmdir that passes while its probe is disabled opens nothing, and the next one does.
    ended.assert_in_order();
    let [gate] = ended.report.gates[..] else { panic!("{:?}", ended.report.gates) };
    assert_eq!((gate.reached, gate.timed_out, gate.unfinished, ended.hits(0)), (ROUNDS, 0, 0, ROUNDS));
    let rounds = rounds.take().len();
    println!("{rounds} rounds of changes");
    assert!(rounds > 5, "{rounds}");
}

/// Nobody comes: the task goes on, and where all CPUs stood is told.
#[test]
fn a_task_goes_on_when_its_time_is_over() {
    let Some(guest) = Guest::new() else { return };
    let ended = guest
        .unwind()
        .script("mkdir /alone && rmdir /alone\n")
        .probe(Probe::at("__x64_sys_mkdir").paced(hold(Duration::from_millis(50))))
        .probe(Probe::at("__x64_sys_rmdir").paced(Pace::Open { gate: GATE }))
        .run("sh:/script");
    ended.assert_in_order();
    assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
    let [held] = &ended.holds[..] else { panic!("{:?}", ended.holds) };
    assert!(held.waited >= 50_000_000, "{held:?}");
    let HoldEnd::TimedOut(stands) = &held.end else { panic!("{held:?}") };
    let [stood] = &stands.cpus[..] else { panic!("{stands:?}") };
    assert!(
        !stood.is_halted && stood.stack.as_ref().is_some_and(|stack| stack.frames.len() > 2),
        "{stood:?}"
    );
    let [gate] = ended.report.gates[..] else { panic!("{:?}", ended.report.gates) };
    assert_eq!((gate.reached, gate.timed_out, gate.unfinished, gate.passed), (0, 1, 0, 0));
}

/// The one that is held has the lock of the folder in which the other one works: it is told who waits for whom, and both go on.
#[test]
fn a_lock_that_both_want_is_told_and_no_standstill() {
    let Some(guest) = Guest::new() else { return };
    let ended = guest
        .cpus(2)
        .unwind()
        .script("mkdir /a & mkdir /b & wait; [ -d /a ] && [ -d /b ]\n")
        .probe(by_mkdir("p vfs_mkdir").paced(hold(Duration::from_secs(2))))
        .probe(by_mkdir("r vfs_mkdir").paced(Pace::Open { gate: GATE }))
        .run("sh:/script");
    ended.assert_in_order();
    assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
    let [gate] = ended.report.gates[..] else { panic!("{:?}", ended.report.gates) };
    assert_eq!((gate.reached, gate.timed_out, gate.unfinished), (0, 2, 0));
    let HoldEnd::TimedOut(Stands { cpus, sleepers }) = &ended.holds[0].end else {
        panic!("{:?}", ended.holds)
    };
    let held = ended.holds[0].task.unwrap();
    // Who waits sleeps, or looks on another CPU whether the owner is about to go on.
    let waits = cpus.iter().filter_map(|stood| Some((stood.task?, stood.lock?, stood.stack.as_ref()?)));
    let sleeps =
        sleepers.iter().filter_map(|sleeper| Some((sleeper.task, sleeper.lock?, sleeper.stack.as_ref()?)));
    let (waiter, lock, stack) = waits.chain(sleeps).next().unwrap();
    assert_eq!((waiter.comm(), lock.kind), (&b"mkdir"[..], LockKind::RwSemaphore));
    assert!(waiter.at != held.at && lock.owner.unwrap().at == held.at, "{lock:?}");
    assert!(stack.frames.len() > 5 && matches!(stack.end, End::User(_)), "{stack:?}");
}

/// A return is held behind it, and an instruction that touches memory in front of it.
#[test]
fn what_a_task_has_done_that_is_held() {
    let Some(guest) = Guest::new() else { return };
    let function = tests::kernel::name_of("do_filp_open");
    let writes = guest
        .subject
        .find(function, |i| !i.is_copied && i.text.starts_with("mov") && i.text.contains("[rsp"));
    println!("{}", writes.text);
    let before = Notes::new();
    let ended = guest
        .probe(Probe::on_return("__x64_sys_mkdir").paced(hold(Duration::from_millis(20))).record())
        .probe(Probe::at(writes.place.as_str()).paced(hold(Duration::from_micros(10))).pre({
            let before = before.clone();
            move |hit| before.add(Gva(hit.regs.rip))
        }))
        .script("mkdir /a && cat /script >/dev/null\n")
        .run("sh:/script");
    ended.assert_in_order();
    let returns = ended.holds.iter().filter(|held| held.probe == ProbeId(0)).count();
    assert_eq!((returns, ended.hits(0)), (1, 1));
    assert!(before.take().len() as u64 == ended.hits(1) && ended.hits(1) > 0);
}

#[test]
fn hits_wait_for_times_of_chance() {
    let Some(guest) = Guest::new() else { return };
    let delay = Delay { seed: 3, most: Duration::from_millis(2) };
    let ended =
        guest.cpus(2).probe(Probe::at("__x64_sys_openat").paced(Pace::Delay(delay))).run("open:200,fork:20");
    ended.assert_in_order();
    assert!(ended.hits(0) >= 200 && ended.report.gates.is_empty(), "{}", ended.hits(0));
}

#[test]
fn what_holds_no_task_is_refused() {
    let Some(guest) = Guest::new() else { return };
    let ended = guest.run_with("open:1", |handle, _| {
        let watch = Probe::watch("panic_on_oops:4:w").paced(hold(LONG));
        let error = handle.register(watch).unwrap_err();
        assert!(error.to_string().contains("hold no task"), "{error}");
    });
    ended.assert_in_order();
}
