//! A guest that stands still for long.

use probe_engine::probe::table::ProbeId;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use tests::linux_rig::Guest;
use vmm::probe::{Hit, Probe};
use vmm::session::Command;

/// A handler holds its vCPU, and a command has the other one wait for that, for three times as long as the guest's
/// watchdog allows (twice its threshold, in seconds): its kernel is told, and reports no lockup.
#[test]
fn a_long_stop_is_no_lockup() {
    const WATCHDOG: &str = "watchdog_thresh=1";
    const PAUSE: Duration = Duration::from_secs(6);
    let Some(guest) = Guest::new("6.12") else { return };
    let (entered, enters) = mpsc::channel();
    let entered = Mutex::new(entered);
    let is_first = AtomicBool::new(true);
    let hold = move |_: &mut Hit<'_>| {
        if is_first.swap(false, Ordering::Relaxed) {
            entered.lock().unwrap().send(()).unwrap();
            thread::sleep(PAUSE);
        }
    };
    let ended = guest.cpus(2).cmdline(WATCHDOG).probe(Probe::at("__x64_sys_getppid").pre(hold)).run_with(
        "idle:3,pinned:2000,idle:3",
        move |handle, _| {
            enters.recv().unwrap();
            let before = Instant::now();
            handle.command(Command::Disable(vec![ProbeId(0)])).unwrap();
            assert!(before.elapsed() > PAUSE / 2, "nothing stood still: {:?}", before.elapsed());
        },
    );
    ended.assert_in_order();
    assert_eq!(ended.workload("pinned", "calls"), 4_000);
}
