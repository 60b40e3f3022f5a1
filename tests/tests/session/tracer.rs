//! A function is probed at its entry alone while the guest's own tracer goes on and off there: the probe moves behind
//! the call that ftrace makes of its nop, and every call is counted once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tests::linux_rig::{Console, Guest};
use vmm::probe::{Hit, Probe};
use vmm::session::{Command, Handle, Missed, ProbeReport, ProbeState};

const FUNCTION: &str = "__x64_sys_getppid";
/// What the guest does in a round, on each of two CPUs: little else than calls, so that a vCPU is mostly found in one.
const BUSY: &str = "pinned:3000";
/// The same, until the tracer is off again: where a call costs little, all of any number may be over before it is on.
const BESIDE: &str = "beside:/tmp/beside";
/// Twenty calls now and then, so that it is mostly found elsewhere.
const SPARSE: &str = "mix:3";
/// Each hit of a timer's interrupt makes the next one come sooner.
const PATIENCE: Duration = Duration::from_secs(900);
/// The length of ftrace's site, behind which the probe goes.
const FTRACE_SITE: u64 = 5;

/// Waits at the gate. Where it is told to, a tracer goes on and off beside the next step: from here, or from the script of
/// that step.
const SCRIPT: &str = "\
set -e
[ -e /sys/kernel/tracing/trace ] || mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo '*_sys_getppid' > set_ftrace_filter
if [ -e /tmp/tracer ]; then
    read state < /tmp/tracer
    while [ \"$state\" = busy ]; do read state < /tmp/tracer; done
fi
echo at the gate
read what
echo 'cd /sys/kernel/tracing' > /tmp/beside
if [ \"$what\" = beside ]; then
    echo 'echo function > current_tracer; echo nop > current_tracer' >> /tmp/beside
elif [ \"$what\" = trace ]; then
    echo busy > /tmp/tracer
    (echo function > current_tracer; echo nop > current_tracer; echo idle > /tmp/idle; mv /tmp/idle /tmp/tracer) &
fi
";

/// Lets the guest through the gate. Returns what the newest probe has seen when it comes there again.
fn round(handle: &Handle, console: &Console, what: &str, number: usize) -> ProbeReport {
    console.type_line(what);
    console.wait_for("at the gate", number + 1);
    handle.list().unwrap().pop().unwrap()
}

/// How often the function was called, as the line of a step says.
fn calls(line: &str) -> Option<u64> {
    let (key, times) = match line.trim().strip_prefix("workload: ")?.split(' ').next()? {
        "pinned" | "beside" => (" calls=", 1),
        "mix" => (" checks=", 20),
        _ => return None,
    };
    let number = line.split_once(key)?.1.split(' ').next()?;
    Some(times * number.trim().parse::<u64>().ok()?)
}

/// What the probe stands on at first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    Trap,
    Detour,
}

/// In so many `rounds` with a tracer, each with a new probe, because one that has moved stays where it is. With `beside`,
/// that function is probed as well. Returns how often it was hit.
fn counts_each_call_once(load: &str, rounds: usize, beside: Option<&str>, on: Standing) -> Option<u64> {
    let guest = Guest::new()?;
    // A shell asks for its parent when it starts.
    let (trace, by_shells) = if load == BESIDE { ("beside", 2) } else { ("trace", 1) };
    let hits = Arc::new(AtomicU64::new(0));
    let steps = format!("{}sh:/script", format!("sh:/script,{load},").repeat(rounds + 1));
    let count = {
        let hits = hits.clone();
        move |_: &mut Hit<'_>| {
            hits.fetch_add(1, Ordering::Relaxed);
        }
    };
    // All calls have the same stack pointer then: it does not tell one from another.
    let guest = guest.cpus(2).cmdline("randomize_kstack_offset=off").script(SCRIPT).patience(PATIENCE);
    let guest = if on == Standing::Detour { guest.optimize() } else { guest };
    let guest = match beside {
        Some(function) => guest.probe(Probe::at(function).pre(count)),
        None => guest,
    };
    let mut seen = Vec::new();
    let ended = guest.run_with(&steps, |handle, console| {
        console.wait_for("at the gate", 1);
        for number in 1..=rounds + 1 {
            let ids = handle.register_all(vec![Probe::at(FUNCTION).record().into()]).unwrap();
            // The first round is without a tracer.
            seen.push(round(handle, console, if number == 1 { "" } else { trace }, number));
            handle.command(Command::Unregister(ids)).unwrap();
        }
        console.type_line("");
    });
    ended.assert_in_order();
    let nop = seen[0].address;
    let behind = nop.add(FTRACE_SITE);
    let calls: Vec<u64> = ended.console.lines().filter_map(calls).collect();
    assert_eq!(calls.len(), seen.len());
    let mut wrong = Vec::new();
    for (n, (probe, calls)) in seen.iter().zip(calls).enumerate() {
        let expected = calls + by_shells;
        let at = |place| {
            let here = ended.events.iter().filter(|event| event.probe == probe.id && event.rip == place);
            here.count() as u64
        };
        let (before, after) = (at(nop), at(behind));
        println!("round {n}: {before} calls at the nop, {after} behind it, of {expected}");
        let moved = match on {
            _ if n > 0 => ProbeState::Armed(behind),
            Standing::Trap => ProbeState::Armed(nop),
            Standing::Detour => ProbeState::Optimized(nop),
        };
        let is_whole =
            before + after == probe.hits && probe.hits == expected && probe.missed == Missed::default();
        if !is_whole || probe.state != moved || before == 0 || (after == 0) != (n == 0) {
            wrong.push((n, probe));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    Some(hits.load(Ordering::Relaxed))
}

#[test]
fn a_probe_of_an_entry_alone_counts_each_call_once_under_a_tracer() {
    counts_each_call_once(SPARSE, 4, None, Standing::Trap);
}

/// An interrupt may come between the place that a probe leaves and the one that it goes to, and be hit itself.
#[test]
fn hits_in_interrupts_do_not_hide_that_a_call_was_counted() {
    let Some(hits) = counts_each_call_once(BUSY, 2, Some("hrtimer_interrupt"), Standing::Trap) else {
        return;
    };
    assert!(hits > 100, "{hits} timer interrupts");
}

/// A vCPU may be anywhere in a detour, or on its way to it, when that is taken out.
#[test]
fn a_detour_that_gives_way_to_a_tracer_counts_each_call_once() {
    counts_each_call_once(BESIDE, 2, None, Standing::Detour);
}

/// An interrupt that a detour has held off comes as soon as that has led back.
#[test]
fn hits_in_interrupts_do_not_hide_that_a_detour_has_counted_a_call() {
    counts_each_call_once(BESIDE, 4, Some("hrtimer_interrupt"), Standing::Detour);
}
