//! Two hundred probes that come and go while the guest works.
//!
//! Armed and disarmed every 50 ms: entry probes, return probes, probes with a post handler and probes on copied
//! instructions, on the ways of wake-ups, page faults, system calls, timers and interrupts. Beside them, and on
//! the same functions, two probes stay: what they count has to be what the guest counted.
//!
//! For twenty seconds of the guest's time, or, with `VMM_LONG` set, for two minutes.

use probe_engine::linux::glob::Glob;
use probe_engine::probe::place::in_kernel;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tests::linux_rig::{Console, Guest, Subject};
use vmm::probe::Probe;
use vmm::session::{Command, Handle};

/// How many probes come and go.
const PROBES: usize = 200;
/// How long they stay, and stay away.
const PERIOD: Duration = Duration::from_millis(50);

/// Where the guest is busiest.
const HOT: [&str; 40] = [
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

/// The names of `PROBES` functions that can be probed, the busiest first.
fn functions(subject: &Subject) -> Vec<String> {
    let symbols = subject.kernel.symbols();
    let hot = HOT.iter().filter(|name| subject.kernel.symbol(name).is_some()).map(|name| (*name).to_owned());
    let globs: Vec<Glob> = COLD.iter().map(|pattern| Glob::new(pattern).unwrap()).collect();
    let mut matching: Vec<_> = globs.iter().map(|glob| symbols.matching(glob)).collect();
    let mut seen = BTreeSet::new();
    let mut cold = Vec::new();
    // One of each pattern in turn.
    while cold.len() < PROBES {
        cold.extend(matching.iter_mut().filter_map(|matches| Some(matches.next()?.name.to_owned())));
    }
    let can = |name: &String| {
        let at = subject.kernel.symbol(name);
        at.is_some_and(|at| {
            seen.insert(at) && !is_init(subject, name) && in_kernel(at, &subject.kernel).is_ok()
        })
    };
    hot.chain(cold).filter(can).take(PROBES).collect()
}

fn is_init(subject: &Subject, name: &str) -> bool {
    subject.kernel.symbol(name).is_some_and(|at| subject.kernel.image().is_init_text(at))
}

/// The probes that come and go: kinds in turn.
fn flock(functions: &[String], handled: &Arc<AtomicU64>) -> Vec<Probe> {
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
                Probe::at(function.as_str()).pre(move |_| count())
            }
            1 => {
                let count = count();
                Probe::on_return(function.as_str()).handler(move |_, ()| count()).into()
            }
            2 => {
                let count = count();
                Probe::at(function.as_str()).post(move |_| count())
            }
            _ => {
                let count = count();
                let entry = Probe::on_return(function.as_str()).entry(|hit| Some(hit.regs.rsp));
                let handler = move |hit: &mut vmm::probe::Hit<'_>, rsp: u64| {
                    assert_eq!(hit.regs.rsp, rsp + 8, "a return is another call's");
                    count();
                };
                entry.handler(handler).max_active(64).into()
            }
        }
    };
    functions.iter().enumerate().map(probe).collect()
}

/// Arms and disarms until the guest has done its work. Returns how often.
fn churn(handle: &Handle, console: &Console, functions: &[String], handled: &Arc<AtomicU64>) -> u32 {
    let mut rounds = 0;
    while !console.text().contains("workload: mix ") {
        let Ok(ids) = handle.register(flock(functions, handled)) else { break };
        // Most rounds switch the same probes; then others take their places.
        for round in 0..5 {
            std::thread::sleep(PERIOD);
            let command =
                if round % 2 == 0 { Command::Disable(ids.clone()) } else { Command::Enable(ids.clone()) };
            let before = Instant::now();
            if handle.command(command).is_err() {
                return rounds;
            }
            rounds += 1;
            assert!(before.elapsed() < Duration::from_secs(20), "a stop that takes for ever");
        }
        if handle.command(Command::Unregister(ids)).is_err() {
            break;
        }
    }
    rounds
}

fn storm(kernel: &str, cpus: u8) {
    let is_long = std::env::var_os("VMM_LONG").is_some();
    let seconds = if is_long { 120 } else { 20 };
    let Some(guest) = Guest::new(kernel) else { return };
    let functions = functions(guest.subject);
    assert_eq!(functions.len(), PROBES);
    let handled = Arc::new(AtomicU64::new(0));
    let mut rounds = 0;
    let ended = guest
        .cpus(cpus)
        .cmdline("rcupdate.rcu_cpu_stall_timeout=300")
        .patience(Duration::from_secs(seconds * 4 + 120))
        .probe(Probe::at("__x64_sys_getppid"))
        .probe(Probe::at("do_sys_openat2"))
        .run_with(&format!("open:8,mix:{seconds}"), |handle, console| {
            console.wait_for("workload: open ", 1);
            rounds = churn(handle, console, &functions, &handled);
        });
    ended.assert_in_order();
    assert!(ended.workload("mix", "rounds") > 0 && ended.workload("mix", "checks") > 0);
    let seen = |n| ended.hits(n) + ended.probe(n).missed.hits();
    assert_eq!(seen(0), ended.workload("done", "getppid"));
    assert_eq!(seen(1), ended.workload("done", "openat"));
    let handled = handled.load(Ordering::Relaxed);
    assert!(handled > 1000 && rounds > 20, "{handled} hits handled in {rounds} rounds");
    let gone = ended.report.unregistered;
    println!(
        "{kernel}, {cpus} CPUs, {seconds} s: {rounds} rounds; of what came and went {} hits, {} missed, {handled} \
         handled; getppid {}, openat {}",
        gone.hits,
        gone.missed,
        seen(0),
        seen(1)
    );
}

#[test]
fn storm_6_12_on_2_cpus() {
    storm("6.12", 2);
}

#[test]
fn storm_6_1_on_2_cpus() {
    storm("6.1", 2);
}

#[test]
fn storm_6_12_on_4_cpus() {
    storm("6.12", 4);
}
