//! Watches that come, go and are switched while the guest runs.

use super::after;
use probe_engine::probe::table::ProbeId;
use tests::host::fit;
use tests::linux_rig::Guest;
use vmm::probe::Probe;
use vmm::session::{Command, CommandError, ProbeState, RegisterError};

/// Each of the four that a CPU can watch at most, and one more.
const WATCHES: [&str; 5] =
    ["panic_on_oops:4:w", "panic_timeout:4:w", "panic_on_warn:4:w", "panic_print:8:w", "jiffies:8:w"];
/// Writes the first twice and the second once.
const SCRIPT: &str = "\
echo 1 > /proc/sys/kernel/panic_on_oops
echo 0 > /proc/sys/kernel/panic_on_oops
echo -1 > /proc/sys/kernel/panic
";

/// A watch is registered disabled, enabled, disabled and unregistered while the guest runs; one more than there are
/// debug registers is refused, also in a batch, and there is room again when one has gone.
#[test]
fn watches_come_and_go_and_one_too_many_is_refused() {
    let Some(guest) = Guest::new() else { return };
    let most = fit().unwrap().delivery.watches();
    let steps = "sh:/script,sh:/gate,sh:/script,sh:/gate,sh:/script,sh:/gate,sh:/script,sh:/gate,sh:/script";
    let first = Probe::watch(WATCHES[0]).disabled();
    let watch = |place: &&str| -> Probe { Probe::watch(*place).into() };
    let ended = guest.script(SCRIPT).probe(first).run_with(steps, |handle, console| {
        let after = |runs| after(handle, console, "workload: sh path=/script", runs);
        assert_eq!(after(1), [(0, 0, false)]);
        assert_eq!(handle.list().unwrap()[0].state, ProbeState::Disabled);
        handle.register_all(WATCHES[1..most].iter().map(watch).collect()).unwrap();
        for batch in [vec![watch(&WATCHES[most])], vec![Probe::at("vfs_mkdir").into(), watch(&WATCHES[most])]]
        {
            let error = handle.register_all(batch).unwrap_err();
            let too_many = RegisterError::TooManyWatches(most).to_string();
            assert!(matches!(&error, CommandError::Register(e) if e.to_string() == too_many), "{error}");
        }
        let [a, b] = [0, 1].map(ProbeId);
        handle.command(Command::Enable(vec![a])).unwrap();
        assert_eq!(after(2)[..2], [(0, 2, true), (1, 1, true)]);
        handle.command(Command::Disable(vec![a])).unwrap();
        assert_eq!(after(3)[..2], [(0, 2, false), (1, 2, true)]);
        handle.command(Command::Unregister(vec![a, b])).unwrap();
        let ids = handle.register_all(WATCHES[..2].iter().map(watch).collect()).unwrap();
        let again = |all: Vec<(u32, u64, bool)>| all[most - 2..].to_vec();
        assert_eq!(again(after(4)), [(ids[0].0, 2, true), (ids[1].0, 1, true)]);
        handle.command(Command::Arm(false)).unwrap();
        assert_eq!(again(after(5)), [(ids[0].0, 2, false), (ids[1].0, 1, false)]);
    });
    ended.assert_in_order();
}
