//! Storms and soaks that take minutes: `cargo xtask test --long soaks` runs them. Each is run with probes that are traps,
//! and with probes that are detours.
#![allow(clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use tests::product::{Run, binary, run};

/// How probes stand with `--optimize=off` and `--optimize=require`.
const WAYS: [(&str, &str); 2] = [("--optimize=off", "armed"), ("--optimize=require", "[OPTIMIZED]")];

/// Each hit was one of `calls`, none was missed, and the probe stood as it should.
fn assert_seen(run: &Run, function: &str, state: &str, calls: u64) {
    let probe = run.probe(function);
    assert_eq!((&probe["state"], &probe["missed"]), (&state.into(), &0.into()), "{probe}");
    assert_eq!(run.hits(function), calls, "{function}, {state}");
}

#[test]
fn a_million_hits_on_each_of_two_cpus() {
    let Some(binary) = binary() else { return };
    for (way, state) in WAYS {
        let words = ["--cpus=2", way, "--probe=__x64_sys_getppid", "--cmdline=workload=pinned:1000000"];
        let run = run(&binary, &words);
        run.assert_success();
        assert_eq!(run.workload("done", "getppid"), 2_000_000);
        assert_seen(&run, "__x64_sys_getppid", state, 2_000_000);
    }
}

#[test]
fn sixteen_cpus_start_and_each_takes_its_hits() {
    let Some(binary) = binary() else { return };
    for (way, state) in WAYS {
        let probe = "--probe=__x64_sys_getppid";
        let words = ["--cpus=16", "--memory=2G", way, probe, "--cmdline=workload=pinned:500"];
        let run = run(&binary, &words);
        run.assert_success();
        assert_eq!(run.workload("pinned", "cpus"), 16);
        assert_seen(&run, "__x64_sys_getppid", state, run.workload("done", "getppid"));
        for cpu in 0..16 {
            let hits = run.output.iter().filter(|o| o["type"] == "hit" && o["vcpu"] == cpu).count();
            assert!(hits >= 500, "cpu{cpu}: {hits}");
        }
    }
}

/// Some of these cannot be detours: those are chosen by `auto`.
#[test]
fn every_system_call_probed_under_the_whole_workload() {
    let Some(binary) = binary() else { return };
    for (way, state) in [("--optimize=off", "armed"), ("--optimize=auto", "[OPTIMIZED]")] {
        for cpus in ["1", "2", "4"] {
            let workload = "open:500,fork:100,pipe:2000,walk:100,signal:2000,pinned:5000";
            let cmdline = format!("--cmdline=loglevel=5 workload={workload}");
            let run = run(&binary, &["--cpus", cpus, way, "--probe=__x64_sys_*", &cmdline]);
            run.assert_success();
            run.assert_clean_log();
            for call in ["openat", "getppid", "execve"] {
                assert_seen(&run, &format!("__x64_sys_{call}"), state, run.workload("done", call));
            }
        }
    }
}
