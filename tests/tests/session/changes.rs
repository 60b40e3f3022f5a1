//! Registering, unregistering, enabling and disabling while the guest runs.

use super::{UNTIL_GATE, after, listed};
use probe_engine::addr::Gva;
use probe_engine::probe::place::Place;
use probe_engine::probe::table::ProbeId;
use std::thread;
use std::time::Duration;
use tests::kernel::name_of;
use tests::linux_rig::{Console, Guest};
use vmm::probe::Probe;
use vmm::session::{Command, CommandError, Handle, ProbeReport, ProbeState, RegisterError};

const MKDIR: &str = "vfs_mkdir";
const RMDIR: &str = "vfs_rmdir";

/// The guest makes and removes three directories more. Returns what was listed then.
fn after_walk(handle: &Handle, console: &Console, walks: usize) -> Vec<(u32, u64, bool)> {
    after(handle, console, "workload: walk", walks)
}

/// May be registered disabled; enable and disable each; the switch for all changes no probe's own state; the list
/// has all of that; the same place again after unregistering.
#[test]
fn probes_are_switched_one_by_one_and_all_at_once() {
    let Some(guest) = Guest::new() else { return };
    let [a, b, c] = [0, 1, 2].map(ProbeId);
    let ended = guest
        .probe(Probe::at(MKDIR))
        .probe(Probe::at(MKDIR).disabled())
        .probe(Probe::on_return(RMDIR))
        .run_with(
            "walk:3,sh:/gate,walk:3,sh:/gate,walk:3,sh:/gate,walk:3,sh:/gate,walk:3",
            |handle, console| {
                // The kernel makes directories of its own while it boots.
                let first = after_walk(handle, console, 1);
                let made = first[0].1;
                assert!(made >= 3);
                assert_eq!(first, [(0, made, true), (1, 0, false), (2, 3, true)]);
                assert_eq!(handle.list().unwrap()[1].state, ProbeState::Disabled);
                handle.command(Command::Enable(vec![b])).unwrap();
                handle.command(Command::Disable(vec![a])).unwrap();
                let second = after_walk(handle, console, 2);
                assert_eq!(second, [(0, made, false), (1, 3, true), (2, 6, true)]);
                handle.command(Command::Arm(false)).unwrap();
                let third = after_walk(handle, console, 3);
                assert_eq!(third, [(0, made, false), (1, 3, false), (2, 6, false)]);
                handle.command(Command::Disable(vec![c])).unwrap();
                handle.command(Command::Arm(true)).unwrap();
                let fourth = after_walk(handle, console, 4);
                assert_eq!(fourth, [(0, made, false), (1, 6, true), (2, 6, false)]);
                handle.command(Command::Unregister(vec![a, b])).unwrap();
                let again = handle
                    .register_all(vec![Probe::at(MKDIR).into(), Probe::on_return(MKDIR).into()])
                    .unwrap();
                assert_eq!(again, [3, 4].map(ProbeId));
                let fifth = after_walk(handle, console, 5);
                assert_eq!(fifth, [(2, 6, false), (3, 3, true), (4, 3, true)]);
            },
        );
    ended.assert_in_order();
}

/// Batch registration is all or nothing: if one fails, nothing stays armed; nor does a command change anything when
/// one of its probes is not there.
#[test]
fn a_batch_is_registered_all_or_nothing() {
    let Some(guest) = Guest::new() else { return };
    let inside = guest.subject.find(name_of("do_filp_open"), |i| i.text.starts_with("sub rsp"));
    let good = || {
        vec![
            Probe::at(RMDIR).into(),
            Probe::on_return(RMDIR).max_active(16).into(),
            Probe::at(name_of("do_rmdir")).into(),
        ]
    };
    let ended = guest.probe(Probe::at(RMDIR)).run_with(
        "walk:3,sh:/gate,walk:3,sh:/gate,walk:3",
        |handle, console| {
            console.wait_for("workload: walk", 1);
            // Only the live text shows that this is no instruction's start.
            let mut info = inside.info.clone();
            info.at = info.at.add(1);
            let live = Place::Kernel { name: "inside".to_owned(), info };
            let bad = [
                Probe::at(live),
                Probe::at(format!("{}+0x1", name_of("do_filp_open"))),
                Probe::at("asm_exc_int3"),
                Probe::at("no_such"),
                // The guest has freed it.
                Probe::at("kernel_init_freeable"),
                Probe::at(MKDIR).once().post(|_| ()),
                Probe::at(MKDIR).once().fault(|_, _| ()),
            ];
            for bad in bad {
                let mut batch = good();
                batch.push(bad.into());
                let error = handle.register_all(batch).unwrap_err();
                assert!(matches!(error, CommandError::Register(_)), "{error}");
                assert_eq!(listed(handle), [(0, 3, true)], "{error}");
            }
            let too_many = vec![Probe::at(RMDIR).into(), Probe::on_return(RMDIR).max_active(1 << 20).into()];
            let error = handle.register_all(too_many).unwrap_err();
            assert!(matches!(error, CommandError::Register(RegisterError::NoTrampolines)), "{error}");
            for command in [Command::Unregister, Command::Disable] {
                let error = handle.command(command(vec![ProbeId(0), ProbeId(99)])).unwrap_err();
                assert!(matches!(error, CommandError::Unknown(ProbeId(99))), "{error}");
            }
            console.open_gate();
            console.wait_for("workload: walk", 2);
            assert_eq!(listed(handle), [(0, 6, true)]);
            // What was refused in a batch took nothing away from the next.
            let ids = handle.register_all(good()).unwrap();
            console.open_gate();
            console.wait_for("workload: walk", 3);
            let [first, ..] = listed(handle)[..] else { panic!("no probes") };
            assert_eq!(first, (0, 9, true));
            assert_eq!(
                listed(handle)[1..].iter().map(|(id, hits, _)| (*id, *hits)).collect::<Vec<_>>(),
                [(ids[0].0, 3), (ids[1].0, 3), (ids[2].0, 3),]
            );
        },
    );
    ended.assert_in_order();
}

/// A hit in flight while its probe is removed: on two CPUs, probes come and go at the place of another and beside
/// it, of which no hit is lost.
#[test]
fn probes_come_and_go_under_hits_in_flight() {
    let Some(guest) = Guest::new() else { return };
    let beside = guest.subject.instructions("__x64_sys_getppid");
    let beside: Vec<String> = beside.into_iter().skip(1).map(|i| i.place).collect();
    let ended = guest
        .cpus(2)
        .probe(Probe::at("__x64_sys_getppid"))
        .probe(Probe::at("open_related_ns").disabled())
        .run_with(&format!("getppid:1,{UNTIL_GATE}"), |handle, console| {
            console.wait_for("workload: getppid", 1);
            for _ in 0..30 {
                let mut probes: Vec<Probe> = vec![Probe::at("__x64_sys_getppid").post(|_| ()).into()];
                probes.push(Probe::on_return("__x64_sys_getppid").into());
                probes.extend(beside.iter().map(|place| Probe::at(place.as_str()).into()));
                let ids = handle.register_all(probes).unwrap();
                // The guest is stopped by each command, and has to come on between them.
                let is_hit = |p: &ProbeReport| p.id == ids[0] && p.hits > 0;
                while !handle.list().unwrap().iter().any(is_hit) {
                    thread::sleep(Duration::from_millis(10));
                }
                handle.command(Command::Unregister(ids)).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
            console.open_gate();
        });
    ended.assert_in_order();
    // The shell asks for its parent, too.
    assert_eq!(ended.hits(0), ended.workload("done", "getppid") + 1);
    assert_eq!(ended.probe(0).missed.hits(), 0);
    assert_ne!(ended.probe(0).address, Gva(0));
}
