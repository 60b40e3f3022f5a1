//! By which lines reports begin.

use super::frame::{SplatFrame, SplatTask};
use super::kind::SplatKind;
use super::line::{frame, number, source_line};

/// A line with which a report begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Title {
    pub(super) kind: SplatKind,
    /// Without addresses and the like.
    pub(super) text: String,
    pub(super) task: Option<SplatTask>,
    pub(super) cpu: Option<u32>,
    /// The line of the source that it names.
    pub(super) at: Option<String>,
    /// The function that it names.
    pub(super) function: Option<SplatFrame>,
    /// Whether it says how a fault is handled that a line before it may have told of.
    pub(super) is_die: bool,
}

/// What may stand before a title: the name of the part of the kernel that reports.
const PREFIXES: &[&str] = &["watchdog: ", "NMI watchdog: ", "rcu: ", "traps: "];

/// How titles begin that say all by that, the longer one first.
const BEGINNINGS: &[(&str, SplatKind)] = &[
    ("Kernel panic - not syncing", SplatKind::Panic),
    ("BUG: KASAN: ", SplatKind::Kasan),
    ("BUG: KFENCE: ", SplatKind::Kfence),
    ("BUG: KCSAN: ", SplatKind::Kcsan),
    ("BUG: KMSAN: ", SplatKind::Kmsan),
    ("UBSAN: ", SplatKind::Ubsan),
    ("BUG: kernel NULL pointer dereference", SplatKind::Oops),
    ("BUG: unable to handle ", SplatKind::Oops),
    ("BUG: stack guard page was hit", SplatKind::Oops),
    ("BUG: TASK stack guard page was hit", SplatKind::Oops),
    ("BUG: IRQ stack guard page was hit", SplatKind::Oops),
    ("kernel BUG at ", SplatKind::Oops),
    ("PANIC: double fault", SplatKind::Oops),
    ("BUG: soft lockup", SplatKind::SoftLockup),
    ("Watchdog detected hard LOCKUP", SplatKind::HardLockup),
    ("BUG: workqueue lockup", SplatKind::Workqueue),
    ("BUG: scheduling while atomic", SplatKind::Atomic),
    ("BUG: sleeping function called from invalid context", SplatKind::Atomic),
    ("BUG: using ", SplatKind::Atomic),
    ("BUG: spinlock ", SplatKind::Locks),
    ("BUG: rwlock ", SplatKind::Locks),
    ("BUG: Bad ", SplatKind::Memory),
    ("BUG: non-zero pgtables_bytes", SplatKind::Memory),
    ("BUG: MAX_", SplatKind::Lockdep),
    ("BUG: Invalid wait context", SplatKind::Lockdep),
    ("[ BUG: ", SplatKind::Lockdep),
    ("WARNING: possible ", SplatKind::Lockdep),
    ("WARNING: inconsistent lock state", SplatKind::Lockdep),
    ("WARNING: suspicious RCU usage", SplatKind::Lockdep),
    ("WARNING: lock held when returning to user space", SplatKind::Lockdep),
    ("WARNING: bad unlock balance detected", SplatKind::Lockdep),
    ("WARNING: bad contention detected", SplatKind::Lockdep),
    ("WARNING: held lock freed", SplatKind::Lockdep),
    ("WARNING: Nested lock was not taken", SplatKind::Lockdep),
    ("INFO: possible ", SplatKind::Lockdep),
    ("INFO: suspicious RCU usage", SplatKind::Lockdep),
    ("INFO: trying to register non-static key", SplatKind::Lockdep),
    ("unregister_netdevice: waiting for ", SplatKind::Netdevice),
];

/// How faults are told of, each with a number of the fault behind it (`[#1]`).
const FAULTS: &[&str] = &[
    "Oops: ",
    "general protection fault",
    "invalid opcode",
    "divide error",
    "stack segment",
    "segment not present",
    "invalid TSS",
    "alignment check",
    "bounds",
    "int3",
    "control protection fault",
    "coprocessor segment overrun",
];

/// What `line` is the title of; `None` for most lines.
pub(super) fn title(line: &str) -> Option<Title> {
    let line = PREFIXES.iter().find_map(|prefix| line.strip_prefix(prefix)).unwrap_or(line).trim_end();
    if is_of_task(line) {
        return None;
    }
    if let Some(warning) = warning(line) {
        return Some(warning);
    }
    let plain = |kind| Title {
        kind,
        text: without_addresses(line),
        task: None,
        cpu: None,
        at: line.split_once(" at ").and_then(|(_, place)| source_line(place)),
        function: None,
        is_die: false,
    };
    if let Some((_, kind)) = BEGINNINGS.iter().find(|(beginning, _)| line.starts_with(beginning)) {
        let mut title = plain(*kind);
        match kind {
            SplatKind::SoftLockup => {
                // soft lockup - CPU#0 stuck for 22s! [comm:pid]
                title.cpu = line.split_once("CPU#").and_then(|(_, rest)| Some(number(rest)?.0));
                let named = line.split_once("! [").and_then(|(_, rest)| rest.strip_suffix(']'));
                title.task = named.and_then(|named| task(named, ':'));
                title.text = "BUG: soft lockup".to_owned();
            }
            SplatKind::HardLockup => {
                title.cpu = line.split_once(" on cpu ").and_then(|(_, rest)| Some(number(rest)?.0));
                title.text = "Watchdog detected hard LOCKUP".to_owned();
            }
            SplatKind::Atomic => {
                // scheduling while atomic: comm/pid/0x00000002, and code: comm/pid
                let named = line.rsplit_once(": ").map(|(_, named)| named);
                let named = named.map(|named| named.rsplit_once("/0x").map_or(named, |(named, _)| named));
                title.task = named.and_then(|named| task(named, '/'));
                if let Some((head, _)) = line.rsplit_once(": ").filter(|_| title.task.is_some()) {
                    title.text = without_addresses(head);
                }
            }
            SplatKind::Ubsan => {
                title.at = line.split_once(" in ").and_then(|(_, place)| source_line(place));
            }
            _ => {}
        }
        return Some(title);
    }
    let is_fault = FAULTS.iter().any(|beginning| line.starts_with(beginning)) && line.contains("[#");
    if is_fault {
        let text = line.split(" [#").next().unwrap_or(line);
        let text = text.strip_prefix("Oops: Oops").map_or(text.to_owned(), |rest| format!("Oops{rest}"));
        // An error code is no part of it.
        let text = text
            .rsplit_once(": ")
            .filter(|(_, code)| code.len() == 4)
            .map_or(text.as_str(), |(text, _)| text);
        return Some(Title { is_die: true, text: without_addresses(text), ..plain(SplatKind::Oops) });
    }
    if let Some(rest) = line.strip_prefix("INFO: task ") {
        let (named, _) = rest.split_once(" blocked ")?;
        let task = task(named, ':')?;
        let text = format!(
            "INFO: task {} blocked{}",
            task.comm,
            rest.strip_prefix(named)?.strip_prefix(" blocked")?
        );
        return Some(Title { text, task: Some(task), ..plain(SplatKind::HungTask) });
    }
    if line.starts_with("INFO: rcu") && line.contains("stall") {
        return Some(Title { text: line.trim_end_matches(':').to_owned(), ..plain(SplatKind::RcuStall) });
    }
    // WARNING: HARDIRQ-safe -> HARDIRQ-unsafe lock order detected
    if line.starts_with("WARNING: ") && line.ends_with(" lock order detected") {
        return Some(plain(SplatKind::Lockdep));
    }
    // BUG kmalloc-8 (Not tainted): Redzone overwritten
    if line.starts_with("BUG ") && line.contains("ainted") && line.contains("): ") {
        return Some(plain(SplatKind::Memory));
    }
    line.starts_with("BUG: ").then(|| plain(SplatKind::General))
}

/// `WARNING: CPU: 0 PID: 137 at kernel/a.c:12 f+0x1/0x2`, and since 6.19 `WARNING: kernel/a.c:12 at f+0x1/0x2, CPU#0: sh/137`.
fn warning(line: &str) -> Option<Title> {
    let rest = line.strip_prefix("WARNING: ")?;
    let (cpu, task, at, function) = match rest.strip_prefix("CPU: ") {
        Some(rest) => {
            let (cpu, rest) = number(rest)?;
            let (_, rest) = number(rest.strip_prefix(" PID: ")?)?;
            let place = rest.strip_prefix(" at ")?;
            let (at, function) = place.split_once(' ').unwrap_or(("", place));
            (Some(cpu), None, source_line(at), frame(function))
        }
        None => {
            let (place, who) = rest.split_once(", CPU#")?;
            let (at, function) = place.split_once(" at ").unwrap_or(("", place));
            let (cpu, named) = number(who)?;
            let named = named.strip_prefix(": ").and_then(|named| self::task(named, '/'));
            (Some(cpu), named, source_line(at), frame(function))
        }
    };
    let text = match &function {
        Some(function) => format!("WARNING in {}", function.source_name()),
        None => "WARNING".to_owned(),
    };
    Some(Title { kind: SplatKind::Warning, text, task, cpu, at, function, is_die: false })
}

/// What a report is about that is of this `kind` by its title, by what it says besides.
pub(super) fn refined(kind: SplatKind, message: &str, at: Option<&str>) -> SplatKind {
    let is_in = |file: &str| at.is_some_and(|at| at.split(':').next() == Some(file));
    match kind {
        SplatKind::Warning | SplatKind::Oops
            if is_in("lib/refcount.c") || message.starts_with("refcount_t: ") =>
        {
            SplatKind::Refcount
        }
        SplatKind::Warning | SplatKind::Oops
            if is_in("lib/list_debug.c")
                || (message.starts_with("list_") && message.contains("corruption")) =>
        {
            SplatKind::Memory
        }
        SplatKind::Warning if is_in("kernel/locking/lockdep.c") => SplatKind::Lockdep,
        SplatKind::Warning if message.starts_with("DEBUG_LOCKS_WARN_ON") => SplatKind::Locks,
        kind => kind,
    }
}

/// `comm` and `pid` with this sign between them. A name may have the sign as well.
fn task(named: &str, sign: char) -> Option<SplatTask> {
    let (comm, pid) = named.rsplit_once(sign)?;
    Some(SplatTask { comm: comm.to_owned(), pid: pid.parse().ok()? })
}

/// Whether the line begins with the name of a task that the kernel speaks of, which may look like a title:
/// `comm[137]: segfault at 0`, `comm (137) used greatest stack depth`, `comm: page allocation failure`.
fn is_of_task(line: &str) -> bool {
    /// Bytes of a name.
    const COMM: usize = 16;
    let closes = |at: usize, open: &str, close: char| {
        let inside = line.get(at + open.len()..);
        inside.and_then(number).is_some_and(|(_, rest)| rest.starts_with(close))
    };
    [("[", ']'), (" (", ')'), ("/", ':')]
        .iter()
        .any(|(open, close)| line.find(open).is_some_and(|at| at < COMM && closes(at, open, *close)))
        || line.find(": page allocation failure").is_some_and(|at| at < COMM)
}

/// `text` without addresses, offsets in functions, and line numbers of hexadecimal digits.
fn without_addresses(text: &str) -> String {
    let mut words = Vec::new();
    for word in text.split_whitespace() {
        let (word, sign) = match word.strip_suffix([':', ',', '.', '!']) {
            Some(plain) => (plain, word.get(plain.len()..).unwrap_or_default()),
            None => (word, ""),
        };
        let digits = word.strip_prefix("0x").unwrap_or(word);
        let is_address = digits.len() >= 8 && digits.chars().all(|c| c.is_ascii_hexdigit());
        match (is_address || word.starts_with("pfn:"), frame(word)) {
            (true, _) => {}
            (false, Some(frame)) => words.push(format!("{}{sign}", frame.source_name())),
            (false, None) => words.push(format!("{word}{sign}")),
        }
    }
    // Nothing is left behind these.
    for tail in ["probably for non-canonical address", "at address", "for address", "address", "by"] {
        let words_of_tail = tail.split(' ').count();
        if words.len() > words_of_tail {
            let start = words.len() - words_of_tail;
            let last = words.get(start..).unwrap_or_default().join(" ");
            if last.trim_end_matches(':') == tail {
                words.truncate(start);
            }
        }
    }
    words.join(" ").trim_end_matches([',', ':']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_told_from_other_lines() {
        for (line, kind, text) in [
            (
                "Kernel panic - not syncing: sysrq triggered crash",
                "panic",
                "Kernel panic - not syncing: sysrq triggered crash",
            ),
            (
                "BUG: kernel NULL pointer dereference, address: 0000000000000010",
                "oops",
                "BUG: kernel NULL pointer dereference",
            ),
            (
                "BUG: unable to handle page fault for address: ffffa0ff80000000",
                "oops",
                "BUG: unable to handle page fault",
            ),
            (
                "general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#1] SMP",
                "oops",
                "general protection fault",
            ),
            (
                "Oops: general protection fault, probably for non-canonical address 0xdead000000000100: 0000 [#1] SMP",
                "oops",
                "Oops: general protection fault",
            ),
            ("Oops: Oops: 0002 [#1] PREEMPT SMP NOPTI", "oops", "Oops"),
            ("divide error: 0000 [#1] SMP", "oops", "divide error"),
            ("kernel BUG at mm/slub.c:448!", "oops", "kernel BUG at mm/slub.c:448!"),
            (
                "WARNING: CPU: 0 PID: 137 at kernel/a.c:12 do_it.cold+0x1/0x2 [m]",
                "warning",
                "WARNING in do_it",
            ),
            ("WARNING: kernel/a.c:12 at do_it+0x1/0x2 [m], CPU#0: a/b/137", "warning", "WARNING in do_it"),
            (
                "WARNING: possible circular locking dependency detected",
                "lockdep",
                "WARNING: possible circular locking dependency detected",
            ),
            (
                "WARNING: SOFTIRQ-safe -> SOFTIRQ-unsafe lock order detected",
                "lockdep",
                "WARNING: SOFTIRQ-safe -> SOFTIRQ-unsafe lock order detected",
            ),
            ("[ BUG: Invalid wait context ]", "lockdep", "[ BUG: Invalid wait context ]"),
            (
                "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
                "rcu-stall",
                "INFO: rcu_preempt detected stalls on CPUs/tasks",
            ),
            (
                "rcu: INFO: rcu_sched self-detected stall on CPU",
                "rcu-stall",
                "INFO: rcu_sched self-detected stall on CPU",
            ),
            (
                "watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [kworker/0:1:12]",
                "soft-lockup",
                "BUG: soft lockup",
            ),
            (
                "watchdog: Watchdog detected hard LOCKUP on cpu 0",
                "hard-lockup",
                "Watchdog detected hard LOCKUP",
            ),
            (
                "INFO: task kworker/0:1:12 blocked for more than 120 seconds.",
                "hung-task",
                "INFO: task kworker/0:1 blocked for more than 120 seconds.",
            ),
            (
                "BUG: KASAN: slab-out-of-bounds in f+0x1/0x2 [m]",
                "kasan",
                "BUG: KASAN: slab-out-of-bounds in f [m]",
            ),
            (
                "BUG: KFENCE: use-after-free read in f+0x1/0x2",
                "kfence",
                "BUG: KFENCE: use-after-free read in f",
            ),
            (
                "UBSAN: array-index-out-of-bounds in lib/a.c:1:2",
                "ubsan",
                "UBSAN: array-index-out-of-bounds in lib/a.c:1:2",
            ),
            ("BUG: Bad page state in process sh  pfn:1234", "memory", "BUG: Bad page state in process sh"),
            (
                "BUG kmalloc-8 (Not tainted): Redzone overwritten",
                "memory",
                "BUG kmalloc-8 (Not tainted): Redzone overwritten",
            ),
            ("BUG: scheduling while atomic: a/b/137/0x00000002", "atomic", "BUG: scheduling while atomic"),
            (
                "BUG: sleeping function called from invalid context at a/b.c:5",
                "atomic",
                "BUG: sleeping function called from invalid context at a/b.c:5",
            ),
            (
                "BUG: using smp_processor_id() in preemptible [00000000] code: a/12",
                "atomic",
                "BUG: using smp_processor_id() in preemptible [00000000] code",
            ),
            ("BUG: spinlock bad magic on CPU#0, sh/137", "locks", "BUG: spinlock bad magic on CPU#0, sh/137"),
            (
                "BUG: workqueue lockup - pool cpus=0 node=0 stuck for 31s!",
                "workqueue",
                "BUG: workqueue lockup - pool cpus=0 node=0 stuck for 31s!",
            ),
            (
                "unregister_netdevice: waiting for lo to become free. Usage count = 2",
                "netdevice",
                "unregister_netdevice: waiting for lo to become free. Usage count = 2",
            ),
            ("BUG: something new", "general", "BUG: something new"),
        ] {
            let found = title(line).map(|title| (title.kind.name(), title.text));
            assert_eq!(found, Some((kind, text.to_owned())), "{line}");
        }
    }

    #[test]
    fn most_lines_are_no_titles() {
        for line in [
            "",
            "loading out-of-tree module taints kernel.",
            "Disabling lock debugging due to kernel taint",
            "WARNING: no such thing",
            "INFO: lockdep is turned off.",
            "debug: BUG: no",
            "sysrq: Show backtrace of all active CPUs",
            "invalid opcode in a script",
            "Oops",
            // Names of tasks.
            "BUG: KASAN: x[137]: segfault at 0 ip 0000000000401000",
            "BUG: Bad (137) used greatest stack depth: 12 bytes left",
            "BUG: x: page allocation failure: order:1",
            "BUG: x/137: potentially unexpected fatal signal 11.",
        ] {
            assert_eq!(title(line), None, "{line}");
        }
    }

    #[test]
    fn a_title_names_who_and_where() {
        let of = |line| {
            let title = title(line).unwrap();
            (title.cpu, title.task.map(|task| (task.comm, task.pid)), title.at)
        };
        let named = |comm: &str, pid| Some((comm.to_owned(), pid));
        let at = |line: &str| Some(line.to_owned());
        assert_eq!(
            of("WARNING: kernel/a.c:12 at f+0x1/0x2, CPU#3: a/b/137"),
            (Some(3), named("a/b", 137), at("kernel/a.c:12"))
        );
        assert_eq!(
            of("watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [kworker/0:1:12]"),
            (Some(1), named("kworker/0:1", 12), None)
        );
        assert_eq!(of("kernel BUG at mm/slub.c:448!").2, at("mm/slub.c:448"));
        assert_eq!(of("BUG: scheduling while atomic: a/b/137/0x00000002").1, named("a/b", 137));
        assert_eq!(
            of("BUG: sleeping function called from invalid context at a/b.c:5"),
            (None, None, at("a/b.c:5"))
        );
    }

    #[test]
    fn what_a_report_says_besides_makes_its_kind() {
        let of = |message, at| refined(SplatKind::Warning, message, at).name();
        assert_eq!(of("refcount_t: underflow; use-after-free.", None), "refcount");
        assert_eq!(of("", Some("lib/list_debug.c:3")), "memory");
        assert_eq!(of("list_del corruption. x", None), "memory");
        assert_eq!(of("other", Some("kernel/a.c:3")), "warning");
    }
}
