//! `vmm coverage`: every function that ftrace could trace is armed one-shot from early boot on, and the guest does
//! not notice.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use probe_engine::addr::Gva;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::in_kernel;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::process::Command;
use tests::kernel::name_of;
use tests::product::{Ended, Run, binary, coverage, initrd_with, kernel};
use tests::recording::header;

/// What the guest's kprobes allow and we do not: a CPU that is started runs it before it can take a trap.
const LEFT_ALONE: [&str; 1] = ["load_current_idt"];

/// The functions that stay when the guest has booted, and that we would probe at one of ftrace's sites, by the kernel's
/// file. Of several names of one function it is the first, as in the guest's own list.
fn traceable(kernel: &Kernel) -> Vec<&str> {
    let addresses: BTreeSet<Gva> = kernel.symbols().text().map(|symbol| symbol.at).collect();
    let stay = addresses.into_iter().filter(|at| !kernel.image().is_init_text(*at));
    let traceable = stay.filter(|at| in_kernel(*at, kernel).is_ok_and(|info| info.ftrace.is_some()));
    traceable.map(|at| kernel.symbols().function_at(at).unwrap().symbol.name).collect()
}

/// The functions that ran, in order of their first calls. What the table says adds up.
fn functions(run: &Run) -> Vec<&str> {
    let of = |kind: &str| run.output.iter().filter(|o| o["type"] == kind).collect::<Vec<_>>();
    let functions = of("function");
    assert!(functions.is_sorted_by_key(|o| o["time_ns"].as_u64().unwrap()));
    let places: HashSet<_> = functions.iter().map(|o| o["address"].as_str().unwrap()).collect();
    assert_eq!(places.len(), functions.len(), "each is there once");
    let end = run.output.last().unwrap();
    let sum = |key: &str| of("prefix").iter().map(|o| o[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("ran"), sum("armed")), (end["ran"].as_u64().unwrap(), end["armed"].as_u64().unwrap()));
    assert_eq!(end["ran"], functions.len());
    assert!(run.said.contains("\nall "), "{}", run.said);
    functions.into_iter().map(|o: &Value| o["function"].as_str().unwrap()).collect()
}

/// All functions, with two CPUs: the boot and the workload go as without, and what must have run has run.
#[test]
fn a_boot_of() {
    let Some(binary) = binary() else { return };
    let cmdline = "--cmdline=workload=open:20,fork:5,pipe:50,walk:10,signal:20,pinned:100 loglevel=5";
    let run = coverage(&binary, &["--cpus=2", cmdline]);
    run.assert_success();
    run.assert_clean_log();
    assert_eq!(run.workload("open", "calls"), 20);
    assert_eq!(run.workload("fork", "calls"), 5);
    assert_eq!(run.workload("pipe", "read"), 100);
    assert_eq!(run.workload("walk", "rmdir"), 10);
    assert_eq!(run.workload("signal", "handled"), 20);
    assert_eq!(run.workload("pinned", "calls"), 200);
    let ran = functions(&run);
    let at = |name: &str| ran.iter().position(|function| *function == name);
    // The kernel unpacks directories, its first program opens files, and `walk` alone removes a directory.
    let boot = ["rest_init", "kernel_init", "vfs_mkdir", "do_sys_openat2", "vfs_rmdir"];
    let moments = boot.map(|name| at(name).unwrap_or_else(|| panic!("{name} has not run")));
    assert!(moments.is_sorted(), "{boot:?} ran as numbers {moments:?}");
    for function in
        ["vfs_mkdir", "vfs_rmdir", name_of("pipe_write"), "kernel_clone", "do_exit", "free_initmem"]
    {
        assert!(at(function).is_some(), "{function} has run");
    }
    for function in ["panic", "vfs_fallocate", "load_current_idt"] {
        assert_eq!(at(function), None, "{function} has not run, or is not probed");
    }
    let armed = run.output.last().unwrap()["armed"].as_u64().unwrap();
    assert!(ran.len() > 3_000, "{} of {armed}", ran.len());
}

/// The guest's own ftrace finds the bytes that it expects: where a probe was, and where one still is.
#[test]
fn the_guests_ftrace_works_on_the_same_functions() {
    const SCRIPT: &str = "\
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo 'vfs_*' > set_ftrace_filter
echo function > current_tracer
cat /etc/passwd > /dev/null
echo nop > current_tracer
echo function > current_tracer
cat /etc/passwd > /dev/null
grep -q vfs_read trace && echo traced
echo nop > current_tracer
exit 5
";
    let Some(binary) = binary() else { return };
    let initrd = initrd_with([("script", 0o644, SCRIPT.into())]);
    let guest = ["--initrd", initrd.path().to_str().unwrap(), "--cmdline=workload=sh:/script loglevel=5"];
    let run = coverage(&binary, &[&["--cpus=2"][..], &guest].concat());
    run.assert_success();
    run.assert_clean_log();
    assert!(run.console.lines().any(|line| line.trim() == "traced"), "{}", run.console);
    assert!(run.console.contains("workload: sh path=/script status=5"), "{}", run.console);
    assert!(functions(&run).contains(&"vfs_read"));
}

/// Armed are the functions that the guest's own ftrace has sites of, but for those that its kprobes refuse as well.
#[test]
fn what_is_armed_is_what_the_guests_ftrace_can_trace() {
    /// Prints how many functions there were at boot and are left, and in what these differ from those in a file. Names are
    /// there as often as functions that share them.
    const SCRIPT: &str = "\
mount -t tracefs tracefs /sys/kernel/tracing
mount -t debugfs debugfs /sys/kernel/debug
dmesg | sed -n 's/.*ftrace: allocating \\([0-9]*\\) entries.*/ftrace: booted \\1/p'
cut -d' ' -f1 /sys/kernel/tracing/available_filter_functions > /theirs
cut -f2 /sys/kernel/debug/kprobes/blacklist > /blacklist
only() { awk 'FNR == NR { n[$0]++; next } n[$0]-- <= 0' $1 $2; }
only /ours /theirs > /missing
echo ftrace: left $(wc -l < /theirs)
awk 'FNR == NR { n[$0]++; next } { print \"ftrace:\", (n[$0] ? \"refused\" : \"missing\"), $0 }' /blacklist /missing
only /theirs /ours | sed 's/^/ftrace: unknown /'
";
    let Some(binary) = binary() else { return };
    let kernel = Kernel::read(&fs::read(kernel()).unwrap(), None).unwrap();
    let names: String = traceable(&kernel).iter().map(|name| format!("{name}\n")).collect();
    let initrd = initrd_with([("script", 0o644, SCRIPT.into()), ("ours", 0o644, names.into())]);
    let guest = ["--initrd", initrd.path().to_str().unwrap(), "--cmdline=workload=sh:/script loglevel=5"];
    let run = coverage(&binary, &guest);
    run.assert_success();
    run.assert_clean_log();
    let said = |kind: &str| -> Vec<&str> {
        let lines = run.console.lines().filter_map(|line| line.trim().strip_prefix("ftrace: "));
        lines.filter_map(|line| line.strip_prefix(kind)).map(str::trim).collect()
    };
    let number = |kind: &str| said(kind)[0].parse::<u64>().unwrap();
    let (booted, left, refused) = (number("booted"), number("left"), said("refused").len() as u64);
    let armed = run.output.last().unwrap()["armed"].as_u64().unwrap();
    println!(
        "{booted} functions, {left} when the guest has booted; its kprobes refuse {refused}; {armed} armed"
    );
    assert!(said("unknown").is_empty(), "the guest's ftrace does not know {:?}", said("unknown"));
    assert!(said("missing").iter().all(|name| LEFT_ALONE.contains(name)), "not armed: {:?}", said("missing"));
    assert_eq!(armed, booted - refused - said("missing").len() as u64);
}

/// What ran until then is not lost with the guest.
#[test]
fn a_guest_that_panics_leaves_what_has_run() {
    let Some(binary) = binary() else { return };
    let run = coverage(&binary, &["vfs_*", "panic", "--cmdline=workload=open:3,panic"]);
    assert_eq!(run.code, 123, "{}", run.said);
    let ran = functions(&run);
    assert!(ran.contains(&"vfs_read") && ran.contains(&"vfs_open"), "{ran:?}");
    assert_eq!(run.output.last().unwrap()["end"], "the guest panicked: sysrq triggered crash");
}

/// Two recordings that nobody has to run for.
#[test]
fn two_runs_are_compared() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let record = |name: &str, functions: &[&str]| {
        let line = |name: &&str| json!({ "type": "function", "time_ns": 1, "guest_ns": null, "vcpu": 0, "function": name, "address": "0x8" });
        let lines: Vec<String> = [header()]
            .into_iter()
            .chain(functions.iter().map(line))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(folder.path().join(name), lines.concat()).unwrap();
    };
    record("old", &["vfs_read", "pipe_read", "pipe_\u{1b}[2J"]);
    record("new", &["vfs_read", "vfs_write"]);
    record("none", &[]);
    let diff = |second: &str| {
        let mut command = Command::new(&binary);
        command.args(["coverage", "--diff", "old", second]).current_dir(&folder).output().ended()
    };
    let output = diff("new");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert_eq!(
        text,
        "only in old: 2\n  pipe      2  pipe_?[2J pipe_read\nonly in new: 1\n  vfs      1  vfs_write\nin both: 1\n"
    );
    let output = diff("none");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("none has no functions"), "{said}");
}

#[test]
fn a_tracefile_takes_debugging_information() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output =
        tests::product::command(&binary, folder.path(), &["coverage", "--format=lcov"]).output().ended();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout), (Some(2), Vec::new()), "{said}");
    assert!(said.contains("takes debugging information") && said.contains("--symbols"), "{said}");
}
