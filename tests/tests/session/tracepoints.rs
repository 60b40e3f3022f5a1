//! Tracepoints that are switched on and off while the guest runs.

use probe_engine::addr::Gva;
use probe_engine::capture::typed::Expand;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::plan::Action;
use probe_engine::request::Definitions;
use std::time::{Duration, Instant};
use tests::linux_rig::{Console, Guest};
use vmm::probe::{Probe, Where};
use vmm::session::{Command, Handle, ProbeState};

/// Longer than any call here takes, on a busy machine too.
const LONG: Duration = Duration::from_secs(60);

/// Probes at all that this means, whose hits are counted.
fn probes(kernel: &Kernel, definition: &str) -> Vec<Probe> {
    let (btf, debug) = (kernel.btf().unwrap(), DebugInfo::of(kernel));
    let mut definitions = Definitions::of(kernel, Some(&btf), &debug, Expand::Small);
    definitions.read(definition).unwrap();
    let found = definitions.finish().probes.into_iter();
    found
        .map(|mut asked| {
            asked.plan.action = Action::Count;
            Probe::of_plan(asked.place, asked.plan)
        })
        .collect()
}

/// Which tracepoints call anybody, or are switched on, in a kernel that is where it was linked.
fn switched_on(handle: &Handle, kernel: &Kernel) -> Vec<String> {
    let btf = kernel.btf().unwrap();
    let member = |path| btf.member("tracepoint", path)?.offset();
    let funcs = member("funcs").unwrap();
    // The key of those since 6.13 is one that is off at first.
    let enabled = member("key.enabled.counter").or_else(|| member("key.key.enabled.counter")).unwrap();
    let names = kernel.symbols().text().filter_map(|symbol| symbol.name.strip_prefix("__traceiter_"));
    let all: Vec<(String, Gva)> = names
        .filter_map(|name| {
            Some((name.to_owned(), kernel.symbols().address_of(&format!("__tracepoint_{name}"))?))
        })
        .collect();
    assert!(all.len() > 600);
    let read = move |worker: &mut vmm::session::Worker<'_>| {
        let is_on = |at: Gva| {
            worker.memory.read_u64(at.add(funcs)).unwrap() != 0
                || worker.memory.read_u32(at.add(enabled)).unwrap() != 0
        };
        let on = all.iter().filter(|(_, at)| is_on(*at)).map(|(name, _)| name.clone()).collect();
        vmm::session::Next::Done(on)
    };
    handle.errand(LONG, read).unwrap()
}

/// So long, under load: all are switched on and off again. The guest is as before.
fn on_and_off(cpus: u8, time: Duration, steps: &str) {
    let Some(guest) = Guest::new() else { return };
    let kernel = &guest.subject.kernel;
    let load = |handle: &Handle, console: &Console| {
        console.wait_for("workload: open", 1);
        assert_eq!(switched_on(handle, kernel), Vec::<String>::new());
        let begun = Instant::now();
        let (mut rounds, mut hits) = (0, 0);
        while rounds < 2 || begun.elapsed() < time {
            let all = probes(kernel, "t *");
            let count = all.len();
            let ids = handle.register_all(all).unwrap();
            assert!(count > 600 && ids.len() == count);
            assert!(switched_on(handle, kernel).len() >= count);
            let removed = handle.unregister_all(ids).unwrap();
            hits += removed.iter().map(|probe| probe.hits).sum::<u64>();
            let stood = removed
                .iter()
                .filter(|probe| matches!(probe.state, ProbeState::Armed(_) | ProbeState::Optimized(_)));
            assert_eq!(stood.count(), count);
            rounds += 1;
        }
        assert_eq!(switched_on(handle, kernel), Vec::<String>::new());
        println!("{rounds} rounds, {hits} hits");
        assert!(hits > 0);
        console.open_gate();
    };
    guest
        .cmdline("nokaslr")
        .cpus(cpus)
        .optimize()
        .patience(20 * LONG)
        .run_with(&format!("open:1,{steps},sh:/gate"), load)
        .assert_in_order();
}

#[test]
fn all_are_switched_on_and_off_under_load() {
    on_and_off(2, Duration::ZERO, "mix:5");
}

#[test]
fn all_are_switched_on_and_off_for_a_minute() {
    if std::env::var_os("VMM_LONG").is_none() {
        return println!("skipped: VMM_LONG is not set");
    }
    for cpus in [1, 4] {
        on_and_off(cpus, LONG, "mix:60");
    }
}

/// One that is registered, disabled, enabled and unregistered sees what comes in between.
#[test]
fn events_are_seen_as_long_as_a_probe_is_there() {
    let Some(guest) = Guest::new() else { return };
    let definition = || {
        Probe::at(Where::Definition(
            "t raw_syscalls:sys_enter id if id == 110 && comm == \"init\"".to_owned(),
        ))
    };
    let steps = "getppid:10,sh:/gate,getppid:20,sh:/gate,getppid:40,sh:/gate,getppid:80,sh:/gate,getppid:160";
    let ended = guest.cpus(2).probe(definition()).run_with(steps, |handle, console| {
        let round = |number: usize| console.wait_for("workload: getppid", number);
        round(1);
        let first = handle.list().unwrap()[0].id;
        let second = handle.register(definition()).unwrap();
        console.open_gate();
        round(2);
        handle.command(Command::Disable(vec![first, second])).unwrap();
        console.open_gate();
        round(3);
        handle.command(Command::Enable(vec![second])).unwrap();
        console.open_gate();
        round(4);
        let removed = handle.unregister(second).unwrap();
        assert_eq!(removed.hits, 20 + 80);
        handle.command(Command::Enable(vec![first])).unwrap();
        console.open_gate();
    });
    ended.assert_in_order();
    assert_eq!(ended.hits(0), 10 + 20 + 160);
}

/// The guest's perf and BPF watch the same tracepoint. Whoever comes first, and whoever goes first, all count what comes while they are
/// there.
#[test]
fn perf_and_bpf_of_the_guest_come_and_go_beside_probes() {
    const STOP: &str = "echo stopped here\nread line\n";
    let Some(guest) = Guest::new() else { return };
    let definition = "t raw_syscalls:sys_enter id if id == 110 && comm == \"init\"";
    let steps = format!("{}sh:/script,getppid:160", "sh:/script,watched:/script,".repeat(4));
    let ended = guest.cpus(2).script(STOP).run_with(&steps, |handle, console| {
        let mut stops = 0;
        let mut next_stop = || {
            stops += 1;
            console.wait_for("stopped here", stops);
        };
        let register = || Some(handle.register(Probe::at(Where::Definition(definition.to_owned()))).unwrap());
        next_stop();
        for (comes_first, goes_first, expected) in
            [(false, true, 40), (true, true, 20 + 40), (false, false, 40 + 80), (true, false, 20 + 40 + 80)]
        {
            let mut probe = if comes_first { register() } else { None };
            console.open_gate();
            next_stop();
            probe = probe.or_else(register);
            console.open_gate();
            next_stop();
            let mut unregister = || probe.take().map(|id| handle.unregister(id).unwrap().hits);
            let mut hits = if goes_first { unregister() } else { None };
            console.open_gate();
            next_stop();
            hits = hits.or_else(unregister);
            assert_eq!(hits, Some(expected), "comes first: {comes_first}, goes first: {goes_first}");
        }
        console.open_gate();
    });
    ended.assert_in_order();
    let watched = ended.console.matches("watched calls=140 perf=140 bpf=140").count();
    assert_eq!(watched, 4, "{}", ended.console);
}
