//! Two hundred functions, and the copied instructions of some twenty, whose probes come and go while the guest works.
//!
//! Armed and disarmed every 50 ms: entry probes, return probes, probes with a post handler and probes on copied
//! instructions, on the ways of wake-ups, page faults, system calls, timers and interrupts. Beside them, and on
//! the same functions, two probes stay: what they count has to be what the guest counted. No handler may find
//! anything wrong, and no followed call may come back elsewhere.
//!
//! For twenty seconds of the guest's time, or, with `VMM_LONG` set, for two minutes.

use probe_engine::linux::glob::Glob;
use probe_engine::probe::place::in_kernel;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tests::kernel::name_of;
use tests::linux_rig::{Console, Guest, Subject};
use vmm::probe::{Hit, Probe};
use vmm::session::{Command, CommandError, Handle, Missed, ProbeReport, ProbeState};

/// How many functions are probed for a while.
const FUNCTIONS: usize = 200;
/// How long they stay, and stay away.
const PERIOD: Duration = Duration::from_millis(50);

/// Where the guest is busiest.
pub(super) const HOT: [&str; 40] = [
    "try_to_wake_up",
    "ttwu_do_activate",
    "wake_up_process",
    "default_wake_function",
    "autoremove_wake_function",
    "enqueue_task_fair",
    "dequeue_task_fair",
    "update_curr",
    "task_tick_fair",
    "pick_next_task_fair",
    "handle_mm_fault",
    "__handle_mm_fault",
    "do_anonymous_page",
    "do_wp_page",
    "vma_alloc_folio",
    "hrtimer_interrupt",
    "__hrtimer_run_queues",
    "hrtimer_start_range_ns",
    "update_process_times",
    "scheduler_tick",
    "sched_tick",
    "run_rebalance_domains",
    "rcu_sched_clock_irq",
    "handle_edge_irq",
    "handle_irq_event",
    "serial8250_interrupt",
    "serial8250_handle_irq",
    "irq_work_run_list",
    "__x64_sys_getppid",
    "do_sys_openat2",
    "__x64_sys_openat",
    "vfs_read",
    "vfs_open",
    "pipe_read",
    "pipe_write",
    "do_filp_open",
    "copy_process",
    "do_exit",
    "schedule",
    "do_nanosleep",
];

/// What else is done now and then.
const COLD: [&str; 8] = ["vfs_*", "do_*", "__x64_sys_*", "mm_*", "tick_*", "pipe_*", "exit_*", "sched_*"];

/// Where it is busy with instructions that only run from copies: searches and tests of bits, string instructions,
/// divisions, `rdtsc`, segment registers. The names of all kernels.
const COPIED: [&str; 24] = [
    "try_to_wake_up",
    "select_task_rq_fair",
    "enqueue_task_fair",
    "dequeue_task_fair",
    "update_load_avg",
    "__update_load_avg_se",
    "__switch_to",
    "switch_mm_irqs_off",
    "do_anonymous_page",
    "handle_mm_fault",
    "get_page_from_freelist",
    "__hrtimer_run_queues",
    "timekeeping_advance",
    "lapic_next_deadline",
    "pvclock_clocksource_read",
    "rcu_sched_clock_irq",
    "do_filp_open",
    "alloc_fd",
    "strncpy_from_user",
    "vfs_read",
    "pipe_write",
    "copy_process",
    "do_exit",
    "collect_signal",
];

/// The names of `FUNCTIONS` functions that can be probed, the busiest first.
fn functions(subject: &Subject) -> Vec<String> {
    let symbols = subject.kernel.symbols();
    let hot = HOT
        .iter()
        .map(|name| name_of(name))
        .filter(|name| subject.kernel.symbol(name).is_some())
        .map(|name| name.to_owned());
    let globs: Vec<Glob> = COLD.iter().map(|pattern| Glob::new(pattern).unwrap()).collect();
    let mut matching: Vec<_> = globs.iter().map(|glob| symbols.matching(glob)).collect();
    let mut seen = BTreeSet::new();
    let mut cold = Vec::new();
    // One of each pattern in turn.
    while cold.len() < FUNCTIONS {
        cold.extend(matching.iter_mut().filter_map(|matches| Some(matches.next()?.name.to_owned())));
    }
    let can = |name: &String| {
        let at = subject.kernel.symbol(name);
        at.is_some_and(|at| {
            seen.insert(at) && !is_init(subject, name) && in_kernel(at, &subject.kernel).is_ok()
        })
    };
    hot.chain(cold).filter(can).take(FUNCTIONS).collect()
}

fn is_init(subject: &Subject, name: &str) -> bool {
    subject.kernel.symbol(name).is_some_and(|at| subject.kernel.image().is_init_text(at))
}

/// The places of the instructions that run from copies in [`COPIED`].
fn copied(subject: &Subject) -> Vec<String> {
    let here =
        COPIED.iter().map(|name| name_of(name)).filter(|function| subject.kernel.symbol(function).is_some());
    let all = here.flat_map(|function| subject.instructions(function));
    all.filter(|instruction| instruction.is_copied).map(|instruction| instruction.place).collect()
}

/// The probes that come and go: kinds in turn.
fn flock(functions: &[String], handled: &Arc<AtomicU64>) -> impl Iterator<Item = Probe> {
    let probe = |(n, function): (usize, &String)| {
        let count = || {
            let handled = handled.clone();
            move || {
                handled.fetch_add(1, Ordering::Relaxed);
            }
        };
        match n % 4 {
            0 => {
                let count = count();
                Probe::at(function.as_str()).pre(move |_| count()).into()
            }
            1 => {
                let count = count();
                Probe::on_return(function.as_str()).handler(move |_, ()| count()).into()
            }
            2 => {
                let count = count();
                Probe::at(function.as_str()).post(move |_| count()).into()
            }
            _ => {
                let count = count();
                let entry = Probe::on_return(function.as_str()).entry(|hit| Some(hit.regs.rsp));
                let handler = move |hit: &mut Hit<'_>, rsp: u64| {
                    assert_eq!(hit.regs.rsp, rsp + 8, "a return is another call's");
                    count();
                };
                entry.handler(handler).max_active(64).into()
            }
        }
    };
    functions.iter().enumerate().map(probe)
}

/// Those on copied instructions: every other one has something to do behind its copy.
fn copies(places: &[String], handled: &Arc<AtomicU64>) -> impl Iterator<Item = Probe> {
    places.iter().enumerate().map(|(n, place)| {
        let handled = handled.clone();
        let count = move |_: &mut Hit<'_>| {
            handled.fetch_add(1, Ordering::Relaxed);
        };
        let probe = Probe::at(place.as_str());
        if n % 2 == 0 { probe.pre(count).into() } else { probe.post(count).into() }
    })
}

/// What `answer` says; `None` when the guest has ended, which it does at any time.
#[track_caller]
pub(super) fn unless_ended<T>(answer: Result<T, CommandError>) -> Option<T> {
    match answer {
        Ok(answer) => Some(answer),
        Err(CommandError::Ended) => None,
        Err(error) => panic!("{error}"),
    }
}

/// No handler has found anything wrong, and no call came back elsewhere.
#[track_caller]
pub(super) fn check(probes: &[ProbeReport]) {
    let is_wrong = |p: &&ProbeReport| matches!(p.state, ProbeState::Broken(_)) || p.missed.stack > 0;
    let wrong: Vec<_> = probes.iter().filter(is_wrong).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Arms and disarms until the guest has done its work. Counts how often.
fn churn(handle: &Handle, console: &Console, flock: impl Fn() -> Vec<Probe>, rounds: &mut u64) -> Option<()> {
    while !console.text().contains("workload: mix ") {
        let ids = unless_ended(handle.register_all(flock()))?;
        // Most rounds switch the same probes; then others take their places.
        for round in 0..5 {
            std::thread::sleep(PERIOD);
            let command =
                if round % 2 == 0 { Command::Disable(ids.clone()) } else { Command::Enable(ids.clone()) };
            let before = Instant::now();
            unless_ended(handle.command(command))?;
            *rounds += 1;
            assert!(before.elapsed() < Duration::from_secs(20), "a stop that takes for ever");
        }
        check(&unless_ended(handle.list())?);
        unless_ended(handle.command(Command::Unregister(ids)))?;
    }
    Some(())
}

fn storm(cpus: u8) {
    let is_long = std::env::var_os("VMM_LONG").is_some();
    let seconds = if is_long { 120 } else { 20 };
    let Some(guest) = Guest::new() else { return };
    let functions = functions(guest.subject);
    let copied = copied(guest.subject);
    assert!(functions.len() == FUNCTIONS && copied.len() > 50, "{} copies", copied.len());
    let [handled, from_copies] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let flock = || flock(&functions, &handled).chain(copies(&copied, &from_copies)).collect();
    let mut rounds = 0;
    let ended = guest
        .cpus(cpus)
        .cmdline("rcupdate.rcu_cpu_stall_timeout=300")
        .patience(Duration::from_secs(seconds * 4 + 120))
        .probe(Probe::at("__x64_sys_getppid"))
        .probe(Probe::at("do_sys_openat2"))
        .run_with(&format!("open:8,mix:{seconds}"), |handle, console| {
            console.wait_for("workload: open ", 1);
            churn(handle, console, flock, &mut rounds);
        });
    ended.assert_in_order();
    check(&ended.report.probes);
    assert!(ended.workload("mix", "rounds") > 0 && ended.workload("mix", "checks") > 0);
    let seen = |n| (ended.hits(n), ended.probe(n).missed);
    assert_eq!(seen(0), (ended.workload("done", "getppid"), Missed::default()));
    assert_eq!(seen(1), (ended.workload("done", "openat"), Missed::default()));
    let [handled, from_copies] = [handled, from_copies].map(|count| count.load(Ordering::Relaxed));
    let gone = ended.report.unregistered;
    println!(
        "{cpus} CPUs, {seconds} s: {rounds} rounds; of what came and went {} hits, {} missed; {handled} \
         handled, and {from_copies} at {} copies; getppid {}, openat {}",
        gone.hits,
        gone.missed,
        copied.len(),
        ended.hits(0),
        ended.hits(1)
    );
    assert!(handled > 1000 && from_copies > 1000, "{handled} hits handled, {from_copies} at copies");
    assert!(rounds >= 5, "{rounds} rounds: they have not been switched in turn");
}

#[test]
fn storm_on_2_cpus() {
    storm(2);
}

#[test]
fn storm_on_4_cpus() {
    storm(4);
}
