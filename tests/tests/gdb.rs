//! The real gdb with a guest: breakpoints, steps and watchpoints, beside probes of ours.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use guest_kernels::console::{complaint, number};
use serde_json::Value;
use std::fs;
use std::path::Path;
use tests::gdb::{gdb, traced, write_symbols};
use tests::served::{Served, said, text};

/// How often the workload calls a system call that nobody else does.
const CALLS: u64 = 12;

/// A guest with these words, which stands still in front of its first instruction, beside a file with its kernel's symbols.
fn start(words: &[&str]) -> Option<Served> {
    let own = ["run", "--gdb=guest.gdb", "--gdb-wait", "--output=hits.json"];
    let guest = Served::start(&[&own, words].concat(), &["guest.gdb"])?;
    write_symbols(&guest, "vmlinux.sym");
    Some(guest)
}

/// Waits for its end: its console, and its recording.
fn end(mut guest: Served) -> (String, Vec<Value>) {
    let output = guest.end();
    let console = text(&output.stdout);
    assert!(output.status.success(), "{console}\n{}", said(&output));
    assert_eq!(complaint(&console), None);
    let recording = fs::read_to_string(guest.path("hits.json")).unwrap();
    (console, recording.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The hits of a probe, as the recording of a run that is over has them.
fn hits(recording: &[Value], probe: &str) -> u64 {
    let own = recording.iter().filter(|line| line["type"] == "probe" && line["probe"] == probe);
    own.map(|line| line["hits"].as_u64().unwrap()).sum()
}

/// The value of a line `NAME=NUMBER`, which a script has printed.
#[track_caller]
fn printed(said: &str, name: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    let digits = line.unwrap_or_else(|| panic!("no {name} in: {said}")).trim();
    let digits = digits.trim_start_matches("0x");
    u64::from_str_radix(digits, 16).unwrap()
}

/// The functions of the first stack behind `mark` that `monitor stack` shows.
fn stack<'a>(said: &'a str, mark: &str) -> Vec<&'a str> {
    let behind = said.split_once(mark).unwrap().1;
    let lines = behind.lines().skip_while(|line| !line.starts_with("cpu")).skip(1);
    let lines = lines.take_while(|line| line.starts_with("  "));
    lines.filter_map(|line| line.trim().split_once('+')).map(|(name, _)| name).collect()
}

/// Whether gdb has found the functions that we have, but for a few at which the stack changes. It leaves out what the compiler has put
/// behind a name.
#[track_caller]
fn same_stack(of_gdb: &[&str], own: &[&str]) {
    const MOST_CHANGES: usize = 4;
    let plain = |name: &&str| name.split('.').next().unwrap_or_default().to_owned();
    let own: Vec<String> = own.iter().map(plain).collect();
    let of_gdb: Vec<String> = of_gdb.iter().map(plain).collect();
    let mut left = own.iter();
    let is_in_order = of_gdb.iter().all(|name| left.any(|own| own == name));
    let is_whole = of_gdb.last() == own.last() && own.len() - of_gdb.len() <= MOST_CHANGES;
    assert!(is_in_order && is_whole && own.len() > 4, "{of_gdb:?} {own:?}");
}

/// A boot to `start_kernel`; a condition; `finish`; steps over a probe of ours, which counts what it has to; the end of the guest.
fn breaks_and_steps(cpus: &str) {
    let cmdline = format!("--cmdline=workload=open:3,getppid:{CALLS} loglevel=5");
    let probes = ["--probe=__x64_sys_getppid", "--probe=__x64_sys_getppid%return"];
    let Some(guest) = start(&[&[cpus, &cmdline], &probes[..]].concat()) else { return };
    let said = gdb(
        &guest,
        Path::new("vmlinux.sym"),
        r#"
info threads
break *start_kernel
continue
printf "early=%x\n", $pc == (unsigned long)&start_kernel
printf "paging=%x\n", ($cr0 >> 31) & 1
delete
tbreak *do_sys_openat2
continue
set $there = $pc
set $back = *(unsigned long *)$rsp
stepi
printf "alone=%x\n", $pc > $there && $pc < $there + 16
finish
printf "called=%x\n", $pc == $back
set $n = 0
break *__x64_sys_getppid if ++$n == 5
continue
printf "n=%x\n", $n
printf "there=%x\n", $pc == (unsigned long)&__x64_sys_getppid
set $back = *(unsigned long *)$rsp
set $before = $rsp
finish
printf "back=%x\n", $pc == $back && $rsp == $before + 8
bt
monitor stack
delete
break *__x64_sys_getppid
continue
while $pc < (unsigned long)&__x64_sys_getppid + 5
stepi
end
finish
printf "followed=%x\n", $pc == $back
set $m = 0
while $m < 6
continue
stepi
if $m == 0
printf "stepped=%x\n", $pc > (unsigned long)&__x64_sys_getppid && $pc < (unsigned long)&__x64_sys_getppid + 32
end
stepi
set $m = $m + 1
end
delete
continue
"#,
    );
    assert_eq!(printed(&said, "early"), 1);
    assert_eq!(printed(&said, "paging"), 1);
    assert_eq!(printed(&said, "alone"), 1, "a step from a place that has no probe but gdb's");
    assert_eq!(printed(&said, "called"), 1, "it is known who has called, behind the first instruction");
    assert_eq!((printed(&said, "n"), printed(&said, "there")), (5, 1));
    assert_eq!(printed(&said, "stepped"), 1);
    assert_eq!(printed(&said, "back"), 1);
    assert!(traced(&said, "back=1").starts_with(&["do_syscall_64"]));
    assert_eq!(printed(&said, "followed"), 1, "a call whose return is probed");
    assert!(said.contains("exited normally"), "gdb sees the end");
    let (console, recording) = end(guest);
    assert_eq!(number(&console, "getppid", "calls"), Some(CALLS), "{console}");
    for probe in ["__x64_sys_getppid", "__x64_sys_getppid%return"] {
        assert_eq!(hits(&recording, probe), CALLS, "{probe}");
    }
}

#[test]
fn one_cpu_breaks_steps_and_counts() {
    breaks_and_steps("--cpus=1");
}

#[test]
fn two_cpus_break_step_and_count() {
    breaks_and_steps("--cpus=2");
}

/// An interrupt and its stack; a variable that changes; memory and registers that are set; Ctrl-C; a guest that goes on alone.
fn watched_and_left_alone(cpus: usize) {
    let words = [&format!("--cpus={cpus}"), "--cmdline=workload=mix:60 loglevel=5", "--probe=do_sys_openat2"];
    let Some(guest) = start(&words) else { return };
    let said = gdb(
        &guest,
        Path::new("vmlinux.sym"),
        r#"
hbreak *update_process_times
continue
printf "tick=%x\n", $pc == (unsigned long)&update_process_times
bt
monitor stack
monitor stack 0
monitor tasks
delete
watch *(unsigned long *)&jiffies_64
continue
delete
set $held = *(int *)&panic_on_oops
set var *(int *)&panic_on_oops = 0x77
printf "written=%x\n", (int)panic_on_oops
set var *(int *)&panic_on_oops = $held
set $held = $r15
set $r15 = 0x1234
printf "register=%x\n", $r15
set $r15 = $held
shell touch ready
continue
printf "interrupted=%x\n", 1
info threads
monitor slide
monitor help
detach
"#,
    );
    assert_eq!(printed(&said, "tick"), 1);
    let interrupted = stack(&said, "tick=1");
    assert!(interrupted.iter().any(|name| name.starts_with("asm_sysvec_")), "{interrupted:?}");
    same_stack(&traced(&said, "tick=1"), &interrupted);
    assert!(said.contains("Old value = ") && said.contains("New value = "), "jiffies go on");
    assert_eq!((printed(&said, "written"), printed(&said, "register")), (0x77, 0x1234));
    assert!(said.contains("SIGINT"), "gdb has interrupted the guest");
    assert_eq!(printed(&said, "interrupted"), 1);
    assert!(said.contains(&format!("Thread 1.{cpus}")), "a CPU is a thread");
    assert!(said.contains("monitor probes"), "monitor has help");
    let (console, recording) = end(guest);
    let opened = number(&console, "done", "openat");
    assert_eq!(Some(hits(&recording, "do_sys_openat2")), opened, "{console}");
}

#[test]
fn one_cpu_is_watched_changed_interrupted_and_left_alone() {
    watched_and_left_alone(1);
}

#[test]
fn two_cpus_are_watched_changed_interrupted_and_left_alone() {
    watched_and_left_alone(2);
}
