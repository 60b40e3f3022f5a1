//! Each call of a function that a command makes fails once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use serde_json::Value;
use std::fs;
use tests::product::{binary, command};

/// What a run has left.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
    lines: Vec<Value>,
}

impl Ran {
    fn of_type<'a>(&'a self, name: &str) -> Vec<&'a Value> {
        self.lines.iter().filter(|line| line["type"] == name).collect()
    }
}

/// Runs these words of `vmm run`. `None` where no guest can be run.
fn run(words: &[&str]) -> Option<Ran> {
    let binary = binary()?;
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let output = ["--output", recording.to_str().unwrap()];
    let words = [&["run"], &output[..], words].concat();
    let output = command(&binary, folder.path(), &words).env("LC_ALL", "C").output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let lines = fs::read_to_string(recording).unwrap_or_default();
    let ran = Ran {
        code: output.status.code().unwrap(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
        lines: lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
    };
    println!("{}\n{}", ran.stdout, ran.stderr);
    Some(ran)
}

/// All allocations of a system call fail, one after the other, and the guest stays well.
#[test]
fn each_allocation_of_openat_fails_once() {
    let words = ["--fail-nth", "kmem_cache_alloc*=NULL under syscall:openat", "--", "cat", "/etc/hostname"];
    let Some(ran) = run(&words) else { return };
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let runs = ran.of_type("fail_nth");
    let calls = runs[0]["calls"].as_u64().unwrap();
    assert!(runs[0]["nth"].is_null() && runs[0]["exit_code"] == 0 && calls >= 3, "{runs:?}");
    let failed: Vec<u64> =
        runs.iter().filter(|run| run["injected"] == true).map(|run| run["nth"].as_u64().unwrap()).collect();
    assert_eq!(failed, (1..=failed.len() as u64).collect::<Vec<_>>());
    // The first run allocates what is kept for the others.
    assert!((3..=calls).contains(&(failed.len() as u64)), "{runs:?}");
    assert_eq!(ran.of_type("hit").len(), failed.len());
    assert!(ran.of_type("splat").is_empty());
    assert!(ran.stderr.contains("no failure was more than the command's; one guest"), "{}", ran.stderr);
    assert!(ran.stderr.contains("call 1 failed: kmem_cache_alloc"), "{}", ran.stderr);
    assert!(runs.iter().any(|run| run["exit_code"] == 1), "{runs:?}");
}

/// A pointer to nothing is taken for a name: the kernel faults, and the next guest goes on behind that call.
#[test]
fn a_call_whose_failure_the_kernel_does_not_survive_is_named() {
    let inject = "getname_flags*=0x1000 under syscall:chdir";
    let words = ["--force", "--fail-nth", inject, "--", "sh", "-c", "cd /proc"];
    let Some(ran) = run(&words) else { return };
    assert_eq!(ran.code, 123, "{}", ran.stderr);
    assert!(ran.stderr.contains("after call 1 had failed (getname_flags"), "{}", ran.stderr);
    // The compiler may have made two functions of one: each takes a guest, and so does the run without a failure.
    assert!(ran.stderr.contains("; 2 guests") || ran.stderr.contains("; 3 guests"), "{}", ran.stderr);
    assert!(!ran.of_type("splat").is_empty());
}

#[test]
fn a_command_without_such_calls_is_not_green() {
    let Some(ran) = run(&["--fail-nth", "syscall:chdir=-EIO", "--", "true"]) else { return };
    assert_eq!(ran.code, 122, "{}", ran.stderr);
    let Some(ran) = run(&["--fail-nth", "syscall:chdir=-EIO every 2", "--", "true"]) else { return };
    assert!(ran.code == 2 && ran.stderr.contains("are for --inject"), "{}", ran.stderr);
}

#[test]
fn a_case_fails_where_a_call_that_fails_is_too_much_for_the_kernel() {
    const CASES: &str = r#"
[[test]]
name = "names"
run = "cd /proc"
fail_nth = "syscall:chdir=-EIO"
[[test]]
name = "is never called"
run = "true"
fail_nth = "syscall:chdir=-EIO"
"#;
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cases = folder.path().join("cases.toml");
    fs::write(&cases, CASES).unwrap();
    let words = ["test", cases.to_str().unwrap()];
    let output = command(&binary, folder.path(), &words).env("LC_ALL", "C").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(125));
    assert!(said.contains("passed          names"), "{said}");
    assert!(said.contains("inconclusive    is never called"), "{said}");
}
