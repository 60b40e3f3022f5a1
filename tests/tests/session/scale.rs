//! Ten thousand probes, armed and disarmed in one stop of the guest each.

use probe_engine::linux::glob::Glob;
use probe_engine::probe::place::{Place, in_kernel};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tests::linux_rig::Guest;
use vmm::probe::Probe;
use vmm::session::{Command, ProbeState};

const PROBES: usize = 10_000;

/// How long it takes is printed; that it is one stop each is the session's design.
#[test]
fn ten_thousand_probes_are_armed_and_disarmed() {
    let Some(guest) = Guest::new() else { return };
    let kernel = &guest.subject.kernel;
    let mut last = None;
    let places: Vec<Place> = kernel
        .symbols()
        .matching(&Glob::new("*").unwrap())
        // The fewest hits: what is busy is of no interest here. Init text is gone by now.
        .filter(|symbol| !symbol.name.starts_with("__") && !kernel.image().is_init_text(symbol.at))
        .filter(|symbol| last.replace(symbol.at) != Some(symbol.at))
        .filter_map(|symbol| {
            let info = in_kernel(symbol.at, kernel).ok().filter(|info| info.ftrace.is_some())?;
            Some(Place::Kernel { name: symbol.name.to_owned(), info })
        })
        .collect();
    // From the end: drivers and libraries more than what every tick runs.
    let places = &places[places.len() - PROBES..];
    let took = Mutex::new([Duration::ZERO; 2]);
    let ended = guest.run_with("open:4,sh:/gate,open:4", |handle, console| {
        console.wait_for("workload: open ", 1);
        let begin = Instant::now();
        let ids = handle
            .register_all(places.iter().cloned().map(|place| Probe::at(place).into()).collect())
            .unwrap();
        let armed = begin.elapsed();
        assert_eq!(ids.len(), PROBES);
        let states = handle.list().unwrap();
        let standing = states.iter().filter(|probe| matches!(probe.state, ProbeState::Armed(_))).count();
        assert_eq!(standing, PROBES);
        let begin = Instant::now();
        handle.command(Command::Unregister(ids)).unwrap();
        *took.lock().unwrap() = [armed, begin.elapsed()];
        assert!(handle.list().unwrap().is_empty());
        console.open_gate();
    });
    ended.assert_in_order();
    let [armed, disarmed] = took.into_inner().unwrap();
    println!("{PROBES} probes registered and armed in {armed:?}, disarmed and unregistered in {disarmed:?}");
}
