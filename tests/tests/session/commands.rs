//! Handlers cannot arm or disarm: they say what they want, and a hit may hold its vCPU until that is done.

use crate::{Notes, path_at_filp_open};
use probe_engine::probe::table::ProbeId;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tests::kernel::name_of;
use tests::linux_rig::Guest;
use vmm::probe::Probe;
use vmm::session::{Command, Outcome, ProbeState};

/// A handler that panics breaks its own probe and nothing else; what it did to the registers is undone.
#[test]
fn a_handler_that_panics_disables_its_probe() {
    let Some(guest) = Guest::new() else { return };
    let (calls, returns) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (called, returned) = (calls.clone(), returns.clone());
    let ended = guest
        .probe(Probe::at(name_of("do_filp_open")).pre(move |hit| {
            if called.fetch_add(1, Ordering::Relaxed) == 2 {
                hit.regs.rsi = 0;
                panic!("the third call");
            }
        }))
        .probe(Probe::on_return(name_of("do_filp_open")).handler(move |hit, ()| {
            if returned.fetch_add(1, Ordering::Relaxed) == 4 {
                hit.regs.rax = 0;
                panic!("the {}th return", 5);
            }
        }))
        .probe(Probe::at(name_of("do_filp_open")))
        .run("open:20");
    ended.assert_in_order();
    assert_eq!(ended.workload("open", "calls"), 20);
    assert_eq!(ended.probe(0).state, ProbeState::Broken("the third call".to_owned()));
    assert_eq!(ended.probe(1).state, ProbeState::Broken("the 5th return".to_owned()));
    assert_eq!((calls.load(Ordering::Relaxed), returns.load(Ordering::Relaxed)), (3, 5));
    assert_eq!((ended.hits(0), ended.hits(1)), (3, 5));
    assert!(ended.hits(2) >= ended.workload("done", "openat"));
    assert_eq!(ended.probe(1).outstanding, 0);
}

/// A vCPU waits until its command is done: a probe that disables itself has no second hit, and one that registers
/// another sees it stand in the very call that it is in.
#[test]
fn commands_of_handlers_are_done_before_the_vcpu_goes_on() {
    let Some(guest) = Guest::new() else { return };
    let paths = Notes::new();
    let ended = guest
        .probe(Probe::at("do_sys_openat2").pre(|hit| {
            hit.command_and_wait(Command::Disable(vec![hit.probe]));
            hit.command_and_wait(Command::Register(vec![Probe::at("no_such_function").into()]));
        }))
        .probe(Probe::at("__x64_sys_getppid").pre(|hit| hit.command(Command::Disable(vec![hit.probe]))))
        .probe({
            let paths = paths.clone();
            Probe::at("do_sys_openat2").pre(move |hit| {
                let paths = paths.clone();
                let probe =
                    Probe::at(name_of("do_filp_open")).pre(move |hit| paths.add(path_at_filp_open(hit)));
                hit.command_and_wait(Command::Register(vec![probe.into()]));
                hit.command_and_wait(Command::Unregister(vec![hit.probe]));
            })
        })
        .probe(Probe::at("do_sys_openat2"))
        .run("open:20,getppid:20000");
    ended.assert_in_order();
    let opens = ended.workload("done", "openat");
    assert_eq!((ended.hits(0), ended.hits(3)), (1, opens));
    assert_eq!(ended.probe(0).state, ProbeState::Disabled);
    assert!((1..20_000).contains(&ended.hits(1)), "{}", ended.hits(1));
    assert_eq!(ended.hits(4), opens);
    assert_eq!(paths.take().len() as u64, opens, "the call in which it was registered counts");
    assert!(ended.report.probes.iter().all(|probe| probe.id.0 != 2), "it has unregistered itself");
    let refused = &ended.report.refused;
    assert_eq!(refused.commands, 1);
    assert!(refused.first.as_ref().is_some_and(|words| words.contains("no_such_function")), "{refused:?}");
}

/// The run ends where a handler says so, and no further hit is taken.
#[test]
fn a_handler_stops_the_run() {
    let Some(guest) = Guest::new() else { return };
    let paths = Notes::new();
    let opened = paths.clone();
    let ended = guest
        .probe(Probe::at(name_of("do_filp_open")).pre(move |hit| {
            let path = path_at_filp_open(hit);
            if path == b"/etc/hostname" {
                hit.command_and_wait(Command::Stop);
            }
            opened.add(path);
        }))
        // The console has a second to print what the first step says.
        .run("try:/etc/passwd,idle:1,try:/etc/hostname,idle:600");
    assert_eq!(ended.report.end, Outcome::Stopped, "{}", ended.console);
    assert_eq!(ended.workload("try path=/etc/passwd", "errno"), 0);
    assert!(!ended.console.contains("try path=/etc/hostname"), "{}", ended.console);
    assert_eq!(paths.take().last().map(Vec::as_slice), Some(&b"/etc/hostname"[..]));
}

/// Between two directories nobody asks for modules.
const COMES_AND_GOES: &str = "\
set -e
insmod /dummy.ko
mkdir /asked
rmmod dummy
insmod /dummy.ko
rmmod dummy
mkdir /unasked
insmod /dummy.ko
rmmod dummy
insmod /dummy.ko
mkdir /asked/again
rmmod dummy
insmod /dummy.ko
";

/// Also where nothing else is wanted of modules, so that nobody has seen it being loaded.
#[test]
fn a_probe_is_armed_in_a_module_that_was_loaded_before() {
    for follows_all in [false, true] {
        let Some(guest) = Guest::new() else { return };
        let guest = if follows_all { guest.unwind() } else { guest };
        let made = AtomicU64::new(0);
        let ended = guest
            .module("dummy")
            .script(COMES_AND_GOES)
            .probe(Probe::at("do_mkdirat").pre(move |hit| {
                hit.command_and_wait(match made.fetch_add(1, Ordering::Relaxed) {
                    // One is named twice, and removed once.
                    1 => Command::Unregister(vec![ProbeId(1), ProbeId(2), ProbeId(1)]),
                    _ => Command::Register(
                        ["dummy:dummy_cleanup_module", "dummy:dummy_setup"]
                            .map(|at| Probe::at(at).into())
                            .into(),
                    ),
                });
            }))
            .run("sh:/script");
        ended.assert_in_order();
        assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
        let (refused, unread) = (&ended.report.refused, &ended.report.unread);
        assert_eq!((refused.commands, unread.len()), (0, 0), "{refused:?}, {unread:?}");
        let before = &ended.report.unregistered;
        assert_eq!((before.probes, before.hits), (2, 2 + 1), "it went twice, and came once");
        for probe in [3, 4] {
            assert_eq!(ended.hits(probe), 1);
            assert!(
                matches!(ended.probe(probe).state, ProbeState::Armed(_)),
                "{:?}",
                ended.probe(probe).state
            );
        }
    }
}
