//! Each call of a function that a command makes fails once.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use std::fs;
use tests::product::{Ended, binary, command, run, run_in_vain};

/// All allocations of a system call fail, one after the other, and the guest stays well.
#[test]
fn each_allocation_of_openat_fails_once() {
    let Some(binary) = binary() else { return };
    let words = ["--fail-nth", "kmem_cache_alloc*=NULL under syscall:openat", "--", "cat", "/etc/hostname"];
    let ran = run(&binary, &words);
    assert_eq!(ran.code, 0, "{}", ran.said);
    let runs = ran.of_type("fail_nth");
    let calls = runs[0]["calls"].as_u64().unwrap();
    assert!(runs[0]["nth"].is_null() && runs[0]["exit_code"] == 0 && calls >= 3, "{runs:?}");
    let failed: Vec<u64> =
        runs.iter().filter(|run| run["injected"] == true).map(|run| run["nth"].as_u64().unwrap()).collect();
    for run in runs.iter().filter(|run| !run["nth"].is_null()) {
        let is_made = run["calls"].as_u64().unwrap() >= run["nth"].as_u64().unwrap();
        assert_eq!(run["injected"] == true, is_made, "{runs:?}");
    }
    // What the kernel has kept of earlier runs saves it a call now and then.
    assert!(failed.len() as u64 * 4 >= calls * 3, "{runs:?}");
    assert!((1..=failed.len() as u64).eq(failed.iter().copied()), "{runs:?}");
    assert!(ran.said.contains("and none was missed"), "{}", ran.said);
    assert_eq!(ran.of_type("hit").len(), failed.len());
    assert!(ran.of_type("splat").is_empty());
    assert!(ran.said.contains("no failure was more than the command's; one guest"), "{}", ran.said);
    assert!(ran.said.contains("call 1 failed: kmem_cache_alloc"), "{}", ran.said);
    assert!(runs.iter().any(|run| run["exit_code"] == 1), "{runs:?}");
}

/// A pointer to nothing is taken for a name: the kernel faults, and the next guest goes on behind that call.
#[test]
fn a_call_whose_failure_the_kernel_does_not_survive_is_named() {
    let Some(binary) = binary() else { return };
    let inject = "getname_flags*=0x1000 under syscall:chdir";
    let words = ["--force", "--fail-nth", inject, "--", "sh", "-c", "cd /proc"];
    let ran = run(&binary, &words);
    assert_eq!(ran.code, 123, "{}", ran.said);
    assert!(ran.said.contains("after call 1 had failed (getname_flags"), "{}", ran.said);
    // The compiler may have made two functions of one: each takes a guest, and so does the run without a failure.
    assert!(ran.said.contains("; 2 guests") || ran.said.contains("; 3 guests"), "{}", ran.said);
    assert!(!ran.of_type("splat").is_empty());
}

#[test]
fn a_command_without_such_calls_is_not_green() {
    let Some(binary) = binary() else { return };
    let ran = run(&binary, &["--fail-nth", "syscall:chdir=-EIO", "--", "true"]);
    assert_eq!(ran.code, 122, "{}", ran.said);
    let ran = run_in_vain(&binary, &["--fail-nth", "syscall:chdir=-EIO every 2", "--", "true"]);
    assert!(ran.said.contains("are for --inject"), "{}", ran.said);
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
    let output = command(&binary, folder.path(), &words).output().ended();
    let said = String::from_utf8_lossy(&output.stdout);
    println!("{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(125));
    assert!(said.contains("passed          names"), "{said}");
    assert!(said.contains("inconclusive    is never called"), "{said}");
}
