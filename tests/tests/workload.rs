//! The workload's steps that only a guest can do, and what is added to a guest's files.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use tests::kernel::name_of;
use tests::product::{Run, binary, initrd_with, kernel, module, run};

const SCRIPT: &str = "\
insmod /modules/dummy.ko
insmod /modules/loop.ko
ls /sys/module | grep -x -e dummy -e loop
rmmod dummy
ls /sys/module | grep -x -e dummy
mount -t tracefs tracefs /sys/kernel/tracing
wc -l < /sys/kernel/tracing/kprobe_events
exit 7
";

/// Runs `steps` with `probes` in a guest that has a script and modules more.
fn with_files(steps: &str, probes: [&str; 2]) -> Option<Run> {
    let binary = binary()?;
    let kernel = kernel();
    let [dummy, loop_device] = ["dummy", "loop"].map(module);
    let initrd = initrd_with([
        ("modules/dummy.ko", 0o644, dummy),
        ("modules/loop.ko", 0o644, loop_device),
        ("script", 0o644, SCRIPT.into()),
    ]);
    let (kernel, initrd) = (kernel.to_str().unwrap(), initrd.path().to_str().unwrap());
    let [first, second] = probes;
    let cmdline = format!("workload={steps} loglevel=5");
    let probes = ["--probe", first, "--probe", second, "--cmdline", &cmdline];
    let run = run(&binary, &[&["--kernel", kernel, "--initrd", initrd][..], &probes].concat());
    run.assert_success();
    Some(run)
}

/// A script loads and unloads modules of this very kernel.
#[test]
fn a_script_loads_modules() {
    let Some(run) = with_files("sh:/script", ["do_init_module", "free_module"]) else { return };
    run.assert_clean_log();
    let lines: Vec<&str> = run.console.lines().map(str::trim).filter(|line| !line.starts_with('[')).collect();
    assert_eq!(lines[..3], ["dummy", "loop", "0"], "{}", run.console);
    assert!(run.console.contains("workload: sh path=/script status=7"), "{}", run.console);
    assert_eq!((run.hits("do_init_module"), run.hits("free_module")), (2, 1));
    assert_eq!(["execve", "clone", "openat"].map(|key| run.workload("done", key)), [1, 1, 0]);
}

/// One function calls itself, and the counts of steps that open, attach and die are those of the kernel.
#[test]
fn a_function_recurses_and_steps_count() {
    let opener = name_of("do_filp_open");
    // The program is not at the probe: the guest's ftrace would find our byte where it has to write.
    let steps = format!("nest:50,nest:120,try:/etc/passwd,try:/nonexistent,die:7,fentry:{opener}");
    let Some(run) = with_files(&steps, ["btf_array_show", "do_sys_openat2"]) else { return };
    run.assert_clean_log();
    assert_eq!(run.hits("btf_array_show"), 50 + 120);
    // `btf_array_show(btf, t, type_id, ...)`: the outermost type comes first, and it has the highest number.
    let ids = run.output.iter().filter(|o| o["type"] == "hit" && o["probe"] == "btf_array_show").map(|hit| {
        let id = hit["args"][2].as_str().unwrap().trim_start_matches("0x");
        u32::from_str_radix(id, 16).unwrap()
    });
    let expected = [(2..=51).rev(), (2..=121).rev()].into_iter().flatten();
    assert_eq!(ids.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert_eq!(run.workload("try path=/etc/passwd", "errno"), 0);
    assert_eq!(run.workload("try path=/nonexistent", "errno"), 2);
    assert_eq!(["exited", "paused", "reading"].map(|key| run.workload("die", key)), [3, 2, 2]);
    assert_eq!(run.workload(&format!("fentry function={opener}"), "runs"), 20);
    assert_eq!(run.workload("done", "openat"), 2 + 2 + 4 + 22);
    assert_eq!(run.hits("do_sys_openat2"), 2 + 2 + 4 + 22);
}

/// A workload that was not done is no success.
#[test]
fn a_step_that_there_is_not_fails_the_run() {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let run = run(&binary, &["--kernel", kernel.to_str().unwrap(), "--cmdline", "workload=open:3,execve:2"]);
    assert_eq!(run.code, 123, "{}", run.said);
    assert!(run.console.contains("workload: failed execve: no such step"), "{}", run.console);
    assert!(run.said.contains("Attempted to kill init"), "{}", run.said);
}
