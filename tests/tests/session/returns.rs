//! Return probes: instances, recursion, tail calls, tasks that die, migration, and unregistering meanwhile.

use crate::{Notes, exits_of_40_000, path_at_filp_open};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tests::kernel::name_of;
use tests::linux_rig::Guest;
use vmm::probe::Probe;
use vmm::session::Command;

const EIO: i64 = 5;

/// Recursion 50 deep with ten instances misses exactly 40; beside it an entry probe and a second return probe with
/// an entry handler that refuses half of the calls and keeps data of its own for the others.
#[test]
fn recursion() {
    const DEPTH: u64 = 50;
    let Some(guest) = Guest::new() else { return };
    let returns = Notes::<(u64, u64, u64)>::new();
    let ended = guest
        .probe(Probe::on_return("btf_array_show").max_active(10))
        .probe(Probe::at("btf_array_show"))
        .probe({
            let returns = returns.clone();
            // `btf_array_show(btf, t, type_id, ...)`: from DEPTH + 1 outside to 2 inside.
            Probe::on_return("btf_array_show")
                .entry(|hit| {
                    let id = hit.argument(2).unwrap();
                    (id % 2 == 0).then_some((id, hit.regs.rsp, hit.at))
                })
                .handler(move |hit, (id, rsp, at)| {
                    assert_eq!((hit.regs.rsp, hit.at), (rsp + 8, at));
                    returns.add((id, hit.duration().unwrap(), hit.nanos()));
                })
                .max_active(64)
        })
        .run("nest:50");
    ended.assert_in_order();
    assert_eq!(ended.workload("nest", "depth"), DEPTH);
    assert_eq!((ended.hits(0), ended.probe(0).missed.instance), (10, 40));
    assert_eq!(ended.hits(1), DEPTH);
    assert_eq!((ended.hits(2), ended.probe(2).missed.hits()), (DEPTH / 2, 0));
    let returns = returns.take();
    let ids: Vec<u64> = returns.iter().map(|(id, ..)| *id).collect();
    assert_eq!(ids, (1..=DEPTH / 2).map(|n| 2 * n).collect::<Vec<_>>(), "the innermost returns first");
    assert!(returns.is_sorted_by_key(|(_, duration, _)| *duration), "{returns:?}");
    assert!(returns.is_sorted_by_key(|(.., nanos)| *nanos), "{returns:?}");
    assert!((0..3).all(|n| ended.probe(n).outstanding == 0));
}

/// A tail call makes two functions return at once: both are seen, the inner one first. A function that a handler
/// skips returns as well, where its return probe came first, and is never entered where it came second.
#[test]
fn tail_calls_and_skipped_functions_return() {
    let Some(guest) = Guest::new() else { return };
    let order = Notes::new();
    let note = |who: &'static str| {
        let order = order.clone();
        Probe::on_return(match who {
            "inner" => "ksys_read",
            _ => "__x64_sys_read",
        })
        .entry(|hit| Some(hit.regs.rsp))
        .handler(move |hit, rsp| order.add((who, hit.regs.rsp == rsp + 8, hit.regs.rax, hit.regs.rip)))
    };
    let values = |values: &Notes<i64>| {
        let values = values.clone();
        Probe::on_return(name_of("do_filp_open")).handler(move |hit, ()| values.add(hit.regs.rax as i64))
    };
    let (before, behind) = (Notes::new(), Notes::new());
    let ended = guest
        .probe(note("inner"))
        .probe(note("outer"))
        .probe(values(&before))
        .probe(Probe::at(name_of("do_filp_open")).pre(|hit| {
            if path_at_filp_open(hit) == b"/etc/group" {
                hit.skip_function(-EIO as u64).unwrap();
            }
        }))
        .probe(values(&behind))
        .run("pipe:20,try:/etc/group,try:/etc/passwd,try:/nonexistent");
    ended.assert_in_order();
    assert_eq!(ended.workload("try path=/etc/group", "errno"), 5);
    assert_eq!(ended.workload("try path=/etc/passwd", "errno"), 0);
    assert!(ended.hits(0) >= 40);
    assert_eq!(ended.hits(0), ended.hits(1));
    // The two processes of `pipe` sleep in their calls, and so their returns interleave; each pair is one return.
    let order = order.take();
    let (pairs, rest) = order.as_chunks::<2>();
    assert!(rest.is_empty());
    for [inner, outer] in pairs {
        assert_eq!((inner.0, inner.1, outer.0, outer.1), ("inner", true, "outer", true));
        assert_eq!(inner.2, outer.2);
        assert_eq!(inner.3, outer.3, "the caller is the same, whoever else follows the call");
    }
    let (before, behind) = (before.take(), behind.take());
    assert_eq!(before.iter().filter(|value| **value == -EIO).count(), 1);
    assert_eq!(behind.iter().filter(|value| **value == -EIO).count(), 0);
    assert_eq!(before.len(), behind.len() + 1);
    assert!((0..5).all(|n| ended.probe(n).outstanding == 0 && ended.probe(n).missed.hits() == 0));
}

/// Tasks that die inside leave no instance behind.
#[test]
fn tasks_that_die_leave_no_instance_behind() {
    let Some(mut guest) = Guest::new() else { return };
    for function in ["do_exit", "do_group_exit", "get_signal", "__x64_sys_pause", name_of("pipe_read")] {
        guest = guest.probe(Probe::on_return(function).max_active(256)).probe(Probe::at(function));
    }
    let ended = guest.run("die:1000,idle:2");
    ended.assert_in_order();
    let [paused, reading] = ["paused", "reading"].map(|key| ended.workload("die", key));
    for n in [0, 2, 4, 6, 8] {
        let probe = ended.probe(n);
        assert_eq!((probe.outstanding, probe.missed.hits()), (0, 0), "{probe:?}");
    }
    let [exit, group, signal, pause, read] = [0, 2, 4, 6, 8].map(|n| (ended.hits(n), ended.hits(n + 1)));
    assert!(exit.0 == 0 && exit.1 >= 1000, "{exit:?}");
    assert!(group.0 == 0 && group.1 >= 1000, "{group:?}");
    assert_eq!(signal.0, signal.1 - paused - reading);
    // A killed task leaves both calls, and dies on its way back to user mode.
    assert_eq!(pause, (paused, paused));
    assert_eq!(read, (reading, reading));
}

/// Calls that sleep, are preempted and go on on another CPU return to their own callers.
#[test]
fn migration() {
    let Some(guest) = Guest::new() else { return };
    let functions = ["__schedule", name_of("pipe_read"), name_of("pipe_write"), "do_nanosleep", "vfs_read"];
    let mut guest = guest.cpus(2);
    let (wrong, moved) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    for function in functions {
        let (wrong, moved) = (wrong.clone(), moved.clone());
        let probe = Probe::on_return(function).entry(|hit| Some((hit.regs.rsp, hit.vcpu))).handler(
            move |hit, (rsp, vcpu)| {
                wrong.fetch_add(u64::from(hit.regs.rsp != rsp + 8), Ordering::Relaxed);
                moved.fetch_add(u64::from(hit.vcpu != vcpu), Ordering::Relaxed);
            },
        );
        guest = guest.probe(probe.max_active(400));
    }
    let ended = guest.run("pipe:300,fork:10,pinned:100,idle:1");
    ended.assert_in_order();
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    for n in 0..5 {
        let probe = ended.probe(n);
        assert!(probe.hits > 0 && probe.missed.hits() == 0, "{probe:?}");
    }
    assert!(ended.hits(1) >= 600 && ended.hits(2) >= 600);
    assert!(ended.probe(0).outstanding > 0, "tasks sleep in __schedule");
    assert!((1..5).all(|n| ended.probe(n).outstanding == 0));
    assert!(moved.load(Ordering::Relaxed) > 0, "no call has changed its CPU");
}

/// Unregistering with instances outstanding: they return correctly, and their trampolines stay until then.
#[test]
fn a_return_probe_is_unregistered_while_a_task_sleeps_in_its_function() {
    /// A task sleeps until somebody types a line.
    const SCRIPT: &str = "sleep 10000 & read line; kill $!; wait\n";
    let Some(guest) = Guest::new() else { return };
    let (late, full) = (Notes::new(), Notes::new());
    let ended = guest
        .probe({
            let late = late.clone();
            Probe::on_return("hrtimer_nanosleep").handler(move |_, ()| late.add(()))
        })
        .probe(Probe::on_return("do_nanosleep"))
        .script(SCRIPT)
        .run_with("open:1,sh:/script,open:20", |handle, console| {
            console.wait_for("workload: open", 1);
            while handle.list().unwrap().iter().any(|probe| probe.outstanding == 0) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let ids = handle.list().unwrap().iter().map(|probe| probe.id).collect();
            handle.command(Command::Unregister(ids)).unwrap();
            // These take all trampolines that are free, and would take those too.
            for size in [1 << 14, 1 << 10, 1 << 6, 16] {
                while handle
                    .register_all(vec![Probe::on_return(name_of("do_filp_open")).max_active(size).into()])
                    .is_ok()
                {}
            }
            let all = handle.list().unwrap();
            console.open_gate();
            console.wait_for("workload: sh", 1);
            // Now they are free.
            let one = || vec![Probe::on_return(name_of("do_filp_open")).max_active(16).into()];
            handle.register_all(one()).unwrap();
            handle.register_all(one()).unwrap();
            handle.register_all(one()).unwrap_err();
            full.add(all.len());
        });
    ended.assert_in_order();
    assert_eq!(late.take().len(), 0, "its handler is not called any more");
    let full = full.take()[0];
    assert!(full > 6, "{full}");
    for probe in &ended.report.probes {
        assert_eq!((probe.outstanding, probe.missed.hits()), (0, 0), "{probe:?}");
    }
    for probe in &ended.report.probes[..full] {
        assert_eq!(probe.hits, 20, "{probe:?}");
    }
}

#[test]
fn a_trap_takes_one_exit_and_a_followed_call_two() {
    const FUNCTION: &str = "__x64_sys_getppid";
    let exits = |what, probe: fn() -> Probe| {
        exits_of_40_000(what, |calls| {
            let ended = Guest::new()?.probe(probe()).run(&format!("getppid:{calls}"));
            ended.assert_in_order();
            assert_eq!(ended.hits(0), calls);
            ended.report.exits
        })
    };
    let Some(entries) = exits("entries", || Probe::at(FUNCTION).into()) else { return };
    let Some(returns) = exits("returns", || Probe::on_return(FUNCTION).into()) else { return };
    assert!(entries >= 40_000, "{entries}");
    // What interrupts the guest grows with the time that traps take, and so with their number.
    let each = returns as f64 / entries as f64;
    assert!((1.6..2.4).contains(&each), "{entries} {returns}");
}
