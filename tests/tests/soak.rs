//! Storms and soaks that take minutes: `cargo xtask test --long soaks` runs them.

use tests::product::{binary, run};

#[test]
fn a_million_hits_on_each_of_two_cpus() {
    let Some(binary) = binary() else { return };
    let words = ["--cpus=2", "--probe=__x64_sys_getppid", "--cmdline=workload=pinned:1000000"];
    let run = run(&binary, &words);
    run.assert_success();
    assert_eq!(run.hits("__x64_sys_getppid"), run.workload("done", "getppid"));
    assert_eq!(run.workload("done", "getppid"), 2_000_000);
}

#[test]
fn sixteen_cpus_start_and_each_takes_its_hits() {
    let Some(binary) = binary() else { return };
    let words = ["--cpus=16", "--memory=2G", "--probe=__x64_sys_getppid", "--cmdline=workload=pinned:500"];
    let run = run(&binary, &words);
    run.assert_success();
    assert_eq!(run.workload("pinned", "cpus"), 16);
    assert_eq!(run.hits("__x64_sys_getppid"), run.workload("done", "getppid"));
    for cpu in 0..16 {
        let hits = run.output.iter().filter(|o| o["type"] == "hit" && o["vcpu"] == cpu).count();
        assert!(hits >= 500, "cpu{cpu}: {hits}");
    }
}

#[test]
fn every_system_call_probed_under_the_whole_workload() {
    let Some(binary) = binary() else { return };
    for cpus in ["1", "2", "4"] {
        let words = [
            "--cpus",
            cpus,
            "--probe=__x64_sys_*",
            "--cmdline=loglevel=5 workload=open:500,fork:100,pipe:2000,walk:100,signal:2000,pinned:5000",
        ];
        let run = run(&binary, &words);
        run.assert_success();
        run.assert_clean_log();
        let done = |key| run.workload("done", key);
        assert_eq!(run.hits("__x64_sys_openat"), done("openat"), "{cpus} CPUs");
        assert_eq!(run.hits("__x64_sys_getppid"), done("getppid"), "{cpus} CPUs");
        assert_eq!(run.hits("__x64_sys_execve"), done("execve"), "{cpus} CPUs");
    }
}
