//! Calls of a kernel's functions that fail.

use probe_engine::probe::inject::{Inject, InjectionId, Turns};
use probe_engine::probe::table::ProbeId;
use tests::linux_rig::{Ended, Guest};
use vmm::events::What;
use vmm::probe::Probe;
use vmm::session::InjectionReport;

const ID: InjectionId = InjectionId(3);
const ENOMEM: u64 = 12_u64.wrapping_neg();
const EFAULT: u64 = 14_u64.wrapping_neg();

fn fail(value: u64, turns: Turns, under: bool) -> Inject {
    Inject::Fail { injection: ID, value, turns, under }
}

fn values(ended: &Ended, probe: u32) -> Vec<u64> {
    let of = ended.events.iter().filter(|event| event.probe == ProbeId(probe));
    of.filter_map(|event| match event.what {
        What::Return { value, .. } => Some(value),
        _ => None,
    })
    .collect()
}

/// Return probes see what the caller gets, whichever was registered first.
#[test]
fn a_system_call_fails_and_its_return_is_seen() {
    let Some(guest) = Guest::new() else { return };
    let ended = guest
        .script("mkdir /first; mkdir /second; [ ! -d /first ] && [ -d /second ]\n")
        .probe(Probe::on_return("__x64_sys_mkdir").record())
        .probe(Probe::at("__x64_sys_mkdir").injecting(fail(ENOMEM, Turns::only(1), false)).record())
        .probe(Probe::on_return("__x64_sys_mkdir").record())
        .probe(Probe::at("__x64_sys_mkdir").record())
        .run("sh:/script");
    ended.assert_in_order();
    assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
    assert_eq!((ended.hits(1), ended.hits(3)), (1, 2));
    assert_eq!((values(&ended, 0), values(&ended, 2)), (vec![ENOMEM, 0], vec![ENOMEM, 0]));
    assert_eq!(ended.report.injections, [InjectionReport { injection: ID, calls: 2, injected: 1 }]);
}

/// The same function is called by all system calls that take a path, and fails in one of them.
#[test]
fn only_calls_below_another_one_fail() {
    let Some(guest) = Guest::new() else { return };
    let ended = guest
        .script("mkdir /first; cat /script >/dev/null && [ ! -d /first ]\n")
        .probe(Probe::at("strncpy_from_user").injecting(fail(EFAULT, Turns::default(), true)).record())
        .probe(Probe::on_return("__x64_sys_mkdir").injecting(Inject::Under { injection: ID }))
        .run("sh:/script");
    ended.assert_in_order();
    assert_eq!(ended.workload("sh path=/script", "status"), 0, "{}", ended.console);
    assert_eq!((ended.hits(0), ended.hits(1)), (1, 1));
    assert_eq!(ended.report.injections, [InjectionReport { injection: ID, calls: 1, injected: 1 }]);
}

#[test]
fn what_fails_no_call_is_refused() {
    let Some(guest) = Guest::new() else { return };
    let ended = guest.run_with("open:1", |handle, _| {
        let refused = |probe: Probe| {
            let error = handle.register(probe).unwrap_err().to_string();
            assert!(error.contains("calls fail where a function is entered"), "{error}");
        };
        let all = fail(0, Turns::default(), false);
        refused(Probe::on_return("__x64_sys_mkdir").injecting(all).into());
        refused(Probe::at("__x64_sys_mkdir").once().injecting(all).into());
        refused(Probe::at("__x64_sys_mkdir").injecting(Inject::Under { injection: ID }).into());
        refused(Probe::watch("panic_on_oops:4:w").injecting(all).into());
    });
    ended.assert_in_order();
}
