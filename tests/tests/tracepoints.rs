//! Tracepoints: event by event what the guest's own tracefs has of them, whoever has switched them on first.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use std::collections::BTreeMap;
use tests::kernel::under_test;
use tests::product::{Ended, Run, binary, command, host_module, initrd_with, module, run};

/// A tracepoint; what is read there of ours, an argument or a field of the event, and what that is called in the line of tracefs,
/// where a value is compared as well.
type Row = (&'static str, &'static str, &'static str);

/// All kernels have them.
const ROWS: &[Row] = &[
    ("sched:sched_switch", "next_pid", "next_pid"),
    ("sched:sched_wakeup", "pid", "pid"),
    ("sched:sched_waking", "prio", "prio"),
    ("sched:sched_wakeup_new", "pid", "pid"),
    ("sched:sched_process_fork", "child_pid", "child_pid"),
    ("sched:sched_process_exec", "old_pid", "old_pid"),
    ("sched:sched_process_exit", "p->pid", "pid"),
    ("sched:sched_process_wait", "", ""),
    ("sched:sched_stat_runtime", "runtime", "runtime"),
    ("raw_syscalls:sys_enter", "id", "NR"),
    ("raw_syscalls:sys_exit", "ret", ""),
    ("kmem:kmalloc", "bytes_alloc", "bytes_alloc"),
    ("kmem:kfree", "", ""),
    ("kmem:kmem_cache_alloc", "", ""),
    ("kmem:kmem_cache_free", "", ""),
    ("kmem:mm_page_alloc", "migratetype", "migratetype"),
    ("kmem:mm_page_free", "order", "order"),
    ("kmem:mm_page_free_batched", "", ""),
    ("kmem:rss_stat", "", ""),
    ("task:task_newtask", "oom_score_adj", "oom_score_adj"),
    ("task:task_rename", "", ""),
    ("signal:signal_generate", "pid", "pid"),
    ("signal:signal_deliver", "sig", "sig"),
    ("timer:timer_start", "", ""),
    ("timer:hrtimer_start", "", ""),
    ("timer:hrtimer_cancel", "", ""),
    ("timer:hrtimer_expire_entry", "", ""),
    ("irq:softirq_raise", "vec_nr", "vec"),
    ("irq:softirq_entry", "vec_nr", "vec"),
    ("irq:softirq_exit", "vec_nr", "vec"),
    ("irq_vectors:local_timer_entry", "vector", "vector"),
    ("irq_vectors:local_timer_exit", "vector", "vector"),
    ("exceptions:page_fault_user", "error_code", ""),
    ("exceptions:page_fault_kernel", "error_code", ""),
    ("rcu:rcu_utilization", "", ""),
    ("maple_tree:ma_op", "", ""),
    ("maple_tree:ma_read", "", ""),
    ("maple_tree:ma_write", "", ""),
    ("mmap:vm_unmapped_area", "", ""),
    ("filemap:mm_filemap_add_to_page_cache", "", ""),
    ("pagemap:mm_lru_insertion", "", ""),
    ("x86_fpu:x86_fpu_regs_deactivated", "", ""),
    ("x86_fpu:x86_fpu_regs_activated", "", ""),
    ("percpu:percpu_alloc_percpu", "size", "size"),
    ("percpu:percpu_free_percpu", "", ""),
    ("workqueue:workqueue_queue_work", "", ""),
    ("workqueue:workqueue_activate_work", "", ""),
    ("mmap_lock:mmap_lock_acquire_returned", "", ""),
    ("mmap_lock:mmap_lock_released", "", ""),
];
/// So many of them at least have events.
const MOST: usize = 30;

/// What the subject does is the same in both orders: a program of a name of its own.
const SUBJECT: &str = r#"
cp "$(readlink -f /bin/sh)" /tmp/subject
/tmp/subject -c 'for n in 1 2 3; do (read line < /etc/passwd; cd /etc; echo *); done | while read line; do :; done; trap : USR1; kill -USR1 $$; (exit 3) & wait; echo done > /tmp/note' || true
"#;

/// By the pid of a task and the name of an event: its values, in their order.
type Seen = BTreeMap<(String, u64), Vec<String>>;

/// `subject-7 [000] ..... 1.234567: EVENT: WORDS`
fn theirs(console: &str) -> Seen {
    let trace = console.split("the trace begins").nth(1).unwrap().split("the trace ends").next().unwrap();
    let mut seen = Seen::new();
    for line in trace.lines().filter(|line| line.trim_start().starts_with("subject-")) {
        let (head, rest) = line.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let (event, words) = rest.split_once(": ").unwrap_or_else(|| panic!("{line}"));
        let task = head.split_whitespace().next().unwrap();
        let pid = task.rsplit_once('-').unwrap().1.parse().unwrap();
        let (tracepoint, _, key) = *ROWS.iter().find(|row| row.0.ends_with(&format!(":{event}"))).unwrap();
        let value = match key {
            "" => String::new(),
            "NR" => words.split(' ').nth(1).unwrap().to_owned(),
            key => {
                let value =
                    words.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
                value.unwrap_or_else(|| panic!("{key}: {line}")).to_owned()
            }
        };
        seen.entry((tracepoint.to_owned(), pid)).or_default().push(value);
    }
    seen
}

fn ours(run: &Run) -> Seen {
    let mut seen = Seen::new();
    for hit in run.of_type("hit") {
        let tracepoint = hit["probe"].as_str().unwrap();
        let key = ROWS.iter().find(|row| row.0 == tracepoint).unwrap().2;
        let value = match &hit["fields"]["value"] {
            _ if key.is_empty() => String::new(),
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let pid = hit["task"]["pid"].as_u64().unwrap();
        seen.entry((tracepoint.to_owned(), pid)).or_default().push(value);
    }
    seen
}

/// The guest runs `script`, whose events it records itself, and both are compared.
fn agrees(script: &str, append: &str) {
    let Some(binary) = binary() else { return };
    let probes: String = ROWS
        .iter()
        .map(|(tracepoint, value, _)| match *value {
            "" => format!("t {tracepoint} if COMM == \"subject\"\n"),
            value => format!("t {tracepoint} value={value} if COMM == \"subject\"\n"),
        })
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let definitions = folder.path().join("probes");
    std::fs::write(&definitions, probes).unwrap();
    let definitions = format!("--probes={}", definitions.to_str().unwrap());
    let words = [definitions, format!("--append={append}"), "--cpus=2".to_owned(), "--scope=boot".to_owned()];
    let words = words.iter().map(String::as_str).chain(["--", "sh", "-ec", script]);
    // A report of the kernel's would end it with another code.
    let run = run(&binary, &words.collect::<Vec<_>>());
    run.assert_success();
    let (theirs, ours) = (theirs(&run.console), ours(&run));
    let mut wrong = Vec::new();
    let mut events = BTreeMap::new();
    for key in theirs.keys().chain(ours.keys()) {
        let [their, our] = [&theirs, &ours].map(|seen| seen.get(key).cloned().unwrap_or_default());
        *events.entry(key.0.as_str()).or_insert(0) = their.len();
        if their != our {
            let differ = their.iter().zip(&our).position(|(their, our)| their != our);
            wrong.push(format!("{key:?}: {} and {} events, from {differ:?}", their.len(), our.len()));
        }
    }
    wrong.dedup();
    println!("{} tracepoints with events, {} differ", events.len(), wrong.len());
    assert!(wrong.is_empty() && events.len() >= MOST, "{events:?}\n{}", wrong.join("\n"));
}

/// The names of all, as the guest's files have them.
fn files() -> String {
    ROWS.iter().map(|(tracepoint, ..)| tracepoint.replace(':', "/")).collect::<Vec<_>>().join(" ")
}

#[test]
fn events_are_the_guests_own_where_its_tracefs_comes_later() {
    let files = files();
    agrees(
        &format!(
            "\
[ -e /sys/kernel/tracing/trace ] || mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo 8192 > buffer_size_kb
for event in {files}; do
    echo 'COMM == \"subject\"' > events/$event/filter
    echo 1 > events/$event/enable
done
{SUBJECT}
echo 0 > events/enable
echo the trace begins
cat trace
echo the trace ends
"
        ),
        "quiet",
    );
}

/// The kernel switches its own events on before anything of ours runs there.
#[test]
fn events_are_the_guests_own_where_its_tracefs_comes_first() {
    /// 7.2 dies of these so early (a null pointer in `trace_event_raw_event_mmap_lock`), with probes and without.
    const LATER: &str = "mmap_lock";
    let names = ROWS.iter().map(|(tracepoint, ..)| *tracepoint);
    let names: Vec<_> = names.filter(|name| !name.starts_with(LATER)).collect();
    let append = format!("trace_buf_size=8M trace_event={}", names.join(","));
    agrees(
        &format!(
            "\
[ -e /sys/kernel/tracing/trace ] || mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo 0 > tracing_on
echo > trace
for event in {files}; do
    echo 'COMM == \"subject\"' > events/$event/filter
    case $event in {LATER}/*) echo 1 > events/$event/enable;; esac
done
echo 1 > tracing_on
{SUBJECT}
echo 0 > tracing_on
echo the trace begins
cat trace
echo the trace ends
",
            files = files()
        ),
        &append,
    );
}

/// Each system call is one event, on detours and on traps.
#[test]
fn system_calls_are_counted() {
    let Some(binary) = binary() else { return };
    for optimize in ["--optimize=require", "--optimize=off"] {
        let probes = ["-pt raw_syscalls:sys_enter if id == 110", "-pt raw_syscalls:sys_exit ret if ret == 1"];
        let cmdline = "--cmdline=workload=getppid:1000 loglevel=5";
        let run = run(&binary, &[probes[0], probes[1], "--cpus=2", optimize, cmdline]);
        run.assert_success();
        run.assert_clean_log();
        assert_eq!(run.hits("raw_syscalls:sys_enter"), 1000);
        assert!(run.hits("raw_syscalls:sys_exit") > 0);
    }
}

/// Who opens the device, writes to it and closes it starts a watchdog twice and stops it: events of a module, which the guest's own tracefs
/// sees as well for a while.
#[test]
fn a_modules_events_are_those_of_tracefs() {
    let Some(binary) = binary() else { return };
    const SCRIPT: &str = "\
set -e
[ -e /sys/kernel/tracing/trace ] || mount -t tracefs tracefs /sys/kernel/tracing
events=/sys/kernel/tracing/events/watchdog/enable
insmod /watchdog.ko
insmod /softdog.ko
echo V > /dev/watchdog
echo 1 > $events
for i in 1 2 3; do echo V > /dev/watchdog; done
echo 0 > $events
echo V > /dev/watchdog
grep -o 'watchdog_st[a-z]*: .*err=0' /sys/kernel/tracing/trace | sed 's/^/seen /'
rmmod softdog
rmmod watchdog
insmod /watchdog.ko
insmod /softdog.ko
echo V > /dev/watchdog
";
    let watchdog = module("watchdog");
    if !has_events(&watchdog) {
        return println!("skipped: the watchdogs of {} have no tracepoints", under_test());
    }
    let initrd = initrd_with([
        ("watchdog.ko", 0o644, watchdog),
        ("softdog.ko", 0o644, module("softdog")),
        ("script", 0o644, SCRIPT.into()),
    ]);
    let initrd = format!("--initrd={}", initrd.path().to_str().unwrap());
    let probes = ["start", "stop"].map(|what| format!("-pt watchdog:watchdog_{what} err=$arg2:s32"));
    let cmdline = "--cmdline=workload=sh:/script loglevel=5";
    let words = [&initrd, "--cpus=2", cmdline, "--allow-pending", &probes[0], &probes[1]];
    let run = run(&binary, &words);
    assert_eq!(run.workload("sh path=/script", "status"), 0, "{}", run.console);
    run.assert_success();
    run.assert_clean_log();
    // Six times in all, and three times while tracefs was on.
    for (what, each) in [("start", 2), ("stop", 1)] {
        let probe = format!("watchdog:watchdog_{what}");
        assert_eq!(run.hits(&probe), 6 * each as u64, "{probe}");
        let events: Vec<_> = run.of_type("hit").into_iter().filter(|hit| hit["probe"] == probe).collect();
        assert!(events.len() == 6 * each && events.iter().all(|hit| hit["fields"]["err"] == 0), "{events:?}");
        let seen = run.console.matches(&format!("seen watchdog_{what}: ")).count();
        assert_eq!(seen, 3 * each, "{}", run.console);
    }
}

/// Whether a module has tracepoints of its own.
fn has_events(module: &[u8]) -> bool {
    module.windows(b"__tracepoints_ptrs".len()).any(|bytes| bytes == b"__tracepoints_ptrs")
}

/// A module that goes with its tracepoints switched on would have the kernel complain: they are switched off before.
#[test]
fn a_modules_tracepoints_come_and_go_with_it() {
    let Some(binary) = binary() else { return };
    const SCRIPT: &str = "\
set -e
insmod /irqbypass.ko
for round in 1 2; do insmod /kvm.ko; rmmod kvm; done
insmod /kvm.ko
";
    let initrd = initrd_with([
        ("irqbypass.ko", 0o644, host_module("irqbypass")),
        ("kvm.ko", 0o644, host_module("kvm")),
        ("script", 0o644, SCRIPT.into()),
    ]);
    let initrd = format!("--initrd={}", initrd.path().to_str().unwrap());
    let probes = ["-pt kvm:kvm_entry", "-pt kvm:kvm_msi_set_irq", "-pt kvm:kvm_nothing"];
    let cmdline = "--cmdline=workload=sh:/script loglevel=5";
    let words = [&initrd, "--cpus=2", cmdline, "--allow-pending", probes[0], probes[1], probes[2]];
    let run = run(&binary, &words);
    assert_eq!(run.workload("sh path=/script", "status"), 0, "{}", run.console);
    run.assert_clean_log();
    // Because of `kvm_nothing`.
    run.assert_code(122);
    let state = |probe: &str| run.probe(probe)["state"].as_str().unwrap().to_owned();
    for probe in ["kvm:kvm_entry", "kvm:kvm_msi_set_irq"] {
        assert_eq!((state(probe), run.hits(probe)), ("[OPTIMIZED]".to_owned(), 0));
    }
    assert!(
        state("kvm:kvm_nothing").contains("no tracepoint")
            || run.said.contains("no tracepoint `kvm_nothing`"),
        "{}",
        run.said
    );
}

#[test]
fn what_the_guest_can_notice_is_said_and_tracepoints_are_listed() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = |words: &[&str]| {
        let output = command(&binary, folder.path(), words).output().ended();
        assert!(output.status.success(), "{words:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = output(&["run", "--dry-run", "-p", "t sched:sched_process_*", "-p", "t somewhere:something"]);
    assert!(text.contains("t     sched:sched_process_exit "), "{text}");
    assert!(
        text.contains("t     somewhere:something ") && text.contains("pending (module somewhere)"),
        "{text}"
    );
    assert!(text.contains(" tracepoints are switched on\n"), "{text}");
    let text = output(&["list", "--kind", "tracepoints", "-v", "sched:sched_switch"]);
    assert!(text.starts_with("sched:sched_switch (bool preempt, struct task_struct *prev, "), "{text}");
    assert!(text.contains("        char prev_comm[16]\n"), "{text}");
    let all = output(&["list", "--kind", "tracepoints", "--format", "json"]);
    assert!(all.lines().count() > 600, "{}", all.lines().count());
}
