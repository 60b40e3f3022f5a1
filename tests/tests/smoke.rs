//! The least that a kernel must do, in nine guests: CI runs them for each kernel that is not tested in full.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use tests::broken_module::{Bug, broken};
use tests::kernel::under_test;
use tests::product::{Ended, Run, binary, command, initrd_with, json_lines, module, run};

const OPEN: &str = "do_sys_openat2";

/// Runs a guest with these words that ends in order and has nothing to complain about.
fn run_in_order(words: &[&str]) -> Option<Run> {
    let run = run(&binary()?, words);
    println!("{}: {}", under_test(), words.join(" "));
    run.assert_success();
    run.assert_clean_log();
    Some(run)
}

/// The system call by which programs open files, as an event.
const EVENT: &str = "raw_syscalls:sys_enter";

/// An entry, its return and the system call's event are counted as often as the workload calls, and stand in this way.
fn counts_opens(words: &[&str], state: &str) -> Option<Run> {
    let probes = [
        "--probe=do_sys_openat2",
        "--probe=do_sys_openat2%return",
        "--probe=t raw_syscalls:sys_enter if id == 257",
    ];
    let cmdline = ["--cmdline=workload=open:30,walk:5,fork:3 loglevel=5"];
    let run = run_in_order(&[words, &probes, &cmdline].concat())?;
    let opened = run.workload("done", "openat");
    assert!(opened >= 35, "{opened}");
    assert_eq!([run.hits(OPEN), run.returns(OPEN), run.hits(EVENT)], [opened; 3]);
    assert_eq!(run.probe(OPEN)["state"], state);
    assert_eq!(run.probe(EVENT)["state"], state);
    assert_eq!(run.probe("do_sys_openat2%return")["state"], state);
    Some(run)
}

#[test]
fn opens_are_counted_with_their_callers_on_1_cpu() {
    let Some(run) = counts_opens(&["--stack"], "armed") else { return };
    for hit in run.output.iter().filter(|o| o["type"] == "hit" && o["probe"] == OPEN) {
        let frames = hit["stack"].as_array().unwrap().iter();
        let callers: Vec<_> = frames.filter_map(|frame| frame["name"].as_str()?.split('+').next()).collect();
        assert_eq!(callers.first(), Some(&OPEN), "{callers:?}");
        assert!(callers.contains(&"do_syscall_64"), "{callers:?}");
    }
}

#[test]
fn opens_are_counted_by_detours_on_2_cpus() {
    counts_opens(&["--cpus=2", "--optimize=require"], "[OPTIMIZED]");
}

#[test]
fn opens_are_counted_by_traps_on_2_cpus() {
    counts_opens(&["--cpus=2", "--optimize=off"], "armed");
}

/// The kernel's own decompressor chooses where it runs.
#[test]
fn opens_are_counted_in_a_kernel_that_unpacks_itself() {
    counts_opens(&["--boot=bzimage"], "[OPTIMIZED]");
}

/// The guest's tracer wants the text where probes count, and gives it back.
#[test]
fn a_tracer_comes_and_goes_beside_probes_that_count() {
    const SCRIPT: &str = "\
set -e
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing
echo vfs_rmdir vfs_mkdir > set_ftrace_filter
for _ in 1 2 3 4 5; do
    echo function > current_tracer
    mkdir /tmp/directory
    rmdir /tmp/directory
    echo nop > current_tracer
done
";
    let initrd = initrd_with([("script", 0o644, SCRIPT.into())]);
    let steps = "--cmdline=workload=walk:20,sh:/script,walk:20 loglevel=5";
    let words = ["--initrd", initrd.path().to_str().unwrap(), "--cpus=2", "--count=vfs_*", steps];
    let Some(run) = run_in_order(&words) else { return };
    assert_eq!(run.workload("sh path=/script", "status"), 0, "{}", run.console);
    assert_eq!(run.probe("vfs_rmdir")["hits"], 20 + 5 + 20, "{}", run.said);
    assert_eq!(run.probe("vfs_rmdir")["missed"], 0);
}

/// Probes in a module, of its init and of what stays, with a load, an unload, and a load again.
#[test]
fn a_modules_probes_come_and_go_with_it() {
    const SCRIPT: &str = "\
set -e
insmod /dummy.ko
rmmod dummy
insmod /dummy.ko
";
    let initrd = initrd_with([("dummy.ko", 0o644, module("dummy")), ("script", 0o644, SCRIPT.into())]);
    let [init, setup, back] =
        ["dummy:dummy_init_module", "dummy:dummy_dev_init", "dummy:dummy_dev_init%return"];
    let words = ["--initrd", initrd.path().to_str().unwrap(), "--cpus=2", "--probe", init, "--probe", setup];
    let cmdline = ["--probe", back, "--cmdline=workload=sh:/script loglevel=5"];
    let Some(run) = run_in_order(&[&words[..], &cmdline].concat()) else { return };
    assert_eq!(run.workload("sh path=/script", "status"), 0, "{}", run.console);
    assert_eq!([run.hits(init), run.hits(setup), run.returns("dummy:dummy_dev_init")], [2; 3]);
    assert_eq!(
        (&run.probe(init)["state"], &run.probe(setup)["state"]),
        (&"[GONE]".into(), &"[OPTIMIZED]".into())
    );
}

/// A fault in a module and a panic, with the calls that lead to the first. The console shows neither.
#[test]
fn reports_of_the_kernel_are_read() {
    let Some(binary) = binary() else { return };
    let script = "insmod /null.ko\necho c > /proc/sysrq-trigger\n";
    let broken = broken(Bug::NullPointer, b"nulls");
    let initrd = initrd_with([("null.ko", 0o644, broken), ("script", 0o644, script.into())]);
    let steps = "--cmdline=workload=sh:/script quiet loglevel=0";
    let words =
        ["--initrd", initrd.path().to_str().unwrap(), "--probe=load_module", "--probe=do_init_module"];
    let run = run(&binary, &[&words[..], &["--recent=2", steps]].concat());
    run.assert_code(123);
    let of = |kind: &str| run.output.iter().filter(|line| line["type"] == kind).collect::<Vec<_>>();
    let [oops, panic] = of("splat")[..] else { panic!("{}", run.said) };
    let begins = |splat: &Value, with: &str| splat["fingerprint"].as_str().unwrap().starts_with(with);
    assert!(begins(oops, "oops:dummy_init_module,do_one_initcall,do_init_module,"), "{oops}");
    assert!(begins(panic, "panic:") && panic["title"] == "Kernel panic - not syncing: sysrq triggered crash");
    let hits: Vec<_> = of("hit").iter().map(|hit| (hit["probe"].clone(), hit["recent"].clone())).collect();
    assert_eq!(hits, [("load_module".into(), 1.into()), ("do_init_module".into(), 1.into())], "{}", run.said);
}

#[test]
fn every_function_is_counted() {
    let Some(run) = run_in_order(&["--count=*", "--cmdline=workload=getppid:1000 loglevel=5"]) else {
        return;
    };
    let probes = || run.output.iter().filter(|line| line["type"] == "probe");
    let optimized = probes().filter(|line| line["state"] == "[OPTIMIZED]").count();
    let called = probes().filter(|line| line["hits"] != 0).count();
    println!("{optimized} functions are counted by detours, {called} are called");
    assert!(optimized > 20_000 && called > 3_000, "{optimized} {called}");
    let asked = run.probe("__do_sys_getppid")["hits"].as_u64().unwrap();
    assert!((1000..1010).contains(&asked), "{asked}");
}

/// A command's own hits are seen, by the guest's clock; a kernel whose drivers are modules is refused without them.
#[test]
fn a_command_runs_and_is_seen() {
    let (Some(binary), temporary) = (binary(), tempfile::tempdir().unwrap()) else { return };
    // A folder where a kernel without an overlay has one in memory.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    std::fs::write(folder.path().join("here"), "and here\n").unwrap();
    let printed = [&std::fs::read("/etc/passwd").unwrap()[..], b"and here\n"].concat();
    let run = |options: &[&str]| {
        let words = [&["run", "--cpus=2"], options, &["--", "cat", "/etc/passwd", "here"]].concat();
        command(&binary, temporary.path(), &words).current_dir(folder.path()).output().ended()
    };
    let output = run(&["--format=json", "--probe=do_sys_openat2"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains(std::str::from_utf8(&printed).unwrap()), "{stderr}");
    let lines = json_lines(&output.stdout);
    let (header, end) = (&lines[0], lines.last().unwrap());
    assert_eq!((&header["command"][0], &end["type"]), (&"cat".into(), &"end".into()), "{stderr}");
    let hits: Vec<&Value> = lines.iter().filter(|line| line["type"] == "hit").collect();
    assert!(hits.iter().all(|hit| hit["task"]["comm"] == "cat" && hit["guest_ns"].is_u64()), "{stderr}");
    assert!(hits.iter().any(|hit| hit["fields"]["filename"] == "/etc/passwd"), "{stderr}");
    let empty = tempfile::tempdir().unwrap();
    let output = run(&["--modules", empty.path().to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert_eq!(output.stdout, printed),
        code => assert!(code == Some(2) && stderr.contains("built without CONFIG_"), "{stderr}"),
    }
}
