//! `vmm profile` on real kernels: where the time is spent, all of it.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use std::fs;
use tests::broken_module::{Bug, broken, spinning};
use tests::product::{Run, binary, initrd_with, kernel, profile, report, run};

/// How many periods the samples stand for of which this is true.
fn periods(run: &Run, is: impl Fn(&Value) -> bool) -> u64 {
    let samples = run.output.iter().filter(|line| line["type"] == "sample" && is(line));
    samples.map(|sample| sample["periods"].as_u64().unwrap()).sum()
}

/// Whether the sample's innermost frame is in `function`.
fn runs(sample: &Value, function: &str) -> bool {
    sample["stack"][0]["name"].as_str().is_some_and(|name| name.starts_with(&format!("{function}+")))
}

fn line<'a>(run: &'a Run, kind: &str) -> &'a Value {
    run.output.iter().find(|line| line["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {}", run.said))
}

/// The periods of all kinds are the time that the guest ran, of all its CPUs.
#[track_caller]
fn assert_all_told(run: &Run, cpus: u64) {
    let (header, sampled) = (line(run, "header"), line(run, "sampled"));
    let of = |kind: &str| sampled[kind].as_u64().unwrap();
    let sum: u64 = ["taken", "idle", "outside", "own", "stopped", "lost"].map(of).iter().sum();
    let told = sum * header["period_ns"].as_u64().unwrap();
    let ran = line(run, "end")["ran_ns"].as_u64().unwrap() * cpus;
    // On a busy machine the CPUs' threads begin later than the run.
    let late = cpus * 300_000_000;
    assert!(told.abs_diff(ran) < ran / 50 + late, "{told} ns of {ran}: {sampled}");
    assert_eq!(of("taken"), periods(run, |_| true), "{sampled}");
}

fn words<'a>(initrd: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--kernel", kernel().to_str().unwrap(), "--initrd", initrd][..], more].concat()
}

/// Whether `function` is on the sample's stack.
fn is_under(sample: &Value, function: &str) -> bool {
    let frames = sample["stack"].as_array().unwrap();
    frames
        .iter()
        .any(|frame| frame["name"].as_str().is_some_and(|name| name.starts_with(&format!("{function}+"))))
}

/// A module's init goes through a loop with interrupts off, its exit through as long a one with interrupts on, in which the guest
/// is interrupted. How long each took is told by probes on their returns.
#[test]
fn a_function_with_interrupts_off_has_its_share() {
    const MASKED: &str = "dummy_init_module";
    const OPEN: &str = "dummy_cleanup_module";
    let Some(binary) = binary() else { return };
    let script = "set -e\nfor n in 1 2 3 4 5 6 7 8 9 10; do insmod /dummy.ko; rmmod dummy; done\n";
    let initrd = initrd_with([("dummy.ko", 0o644, spinning(15_000_000)), ("script", 0o644, script.into())]);
    let probes = [MASKED, OPEN].map(|function| format!("dummy:{function}%return"));
    let more =
        ["--profile=499", "--probe", &probes[0], "--probe", &probes[1], "--append", "workload=sh:/script"];
    let run = run(&binary, &words(initrd.path().to_str().unwrap(), &more));
    run.assert_success();
    assert_eq!(run.workload("sh path=/script", "status"), 0, "{}", run.console);
    assert_all_told(&run, 1);
    let took = |probe: &str| -> u64 {
        let returns = run.output.iter().filter(|line| line["type"] == "return" && line["probe"] == probe);
        returns.map(|hit| hit["duration_ns"].as_u64().unwrap()).sum()
    };
    let (masked, open) = (took(&probes[0]), took(&probes[1]));
    let of = |function: &str| periods(&run, |sample| is_under(sample, function));
    let (sampled, others) = (of(MASKED), of(OPEN));
    let share = |part: u64, other: u64| 100.0 * part as f64 / (part + other) as f64;
    let (told, is) = (share(sampled, others), share(masked, open));
    println!("{told:.1} % of {} periods, and {is:.1} % of the time", sampled + others);
    assert!(
        sampled + others > 50 && (told - is).abs() <= 3.0,
        "{told:.1} % of the samples, {is:.1} % of the time"
    );
    let is_anothers = |sample: &Value| runs(sample, MASKED) && sample["task"]["comm"] == "init";
    assert_eq!(periods(&run, is_anothers), 0, "it is insmod that runs it");
}

#[test]
fn a_guest_that_hangs_is_sampled_and_one_that_waits_is_idle() {
    let Some(binary) = binary() else { return };
    let script = "insmod /loop.ko\n";
    let initrd =
        initrd_with([("loop.ko", 0o644, broken(Bug::Endless, b"loops")), ("script", 0o644, script.into())]);
    let more = ["--cpus", "2", "--timeout", "60", "--append", "workload=sh:/script"];
    let run = profile(&binary, &words(initrd.path().to_str().unwrap(), &more));
    run.assert_code(124);
    assert_all_told(&run, 2);
    let sampled = line(&run, "sampled");
    let hangs = periods(&run, |sample| runs(sample, "dummy_init_module"));
    let taken = sampled["taken"].as_u64().unwrap();
    assert!(taken >= hangs && hangs > 100, "{hangs}: {sampled}");
    assert!(sampled["idle"].as_u64().unwrap() > hangs / 2, "{sampled}");
}

#[test]
fn samples_are_taken_beside_probes_and_reported() {
    let Some(binary) = binary() else { return };
    let initrd = initrd_with([]);
    let folder = tempfile::tempdir().unwrap();
    let more = ["--profile=199", "--probe", "do_sys_openat2", "--append", "workload=open:20,pipe:2000"];
    let run = run(&binary, &words(initrd.path().to_str().unwrap(), &more));
    run.assert_success();
    assert_eq!(run.hits("do_sys_openat2"), 20);
    assert_all_told(&run, 1);
    let in_kernel = |sample: &Value| sample["stack_end"] == "user" && is_under(sample, "do_syscall_64");
    assert!(periods(&run, in_kernel) > 0, "system calls are seen, with who made them");
    let recording = folder.path().join("samples.json");
    let lines: String = run.output.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&recording, lines).unwrap();
    let taken = line(&run, "sampled")["taken"].as_u64().unwrap();
    let folded = String::from_utf8(report(&binary, &recording, &["--format", "folded"])).unwrap();
    let sum: u64 = folded.lines().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sum, taken, "the flame graph is of samples alone");
    let text = String::from_utf8(report(&binary, &recording, &[])).unwrap();
    assert!(text.contains("do_sys_openat2(") && text.contains("    self   total  function\n"), "{text}");
}
