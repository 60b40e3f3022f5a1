//! Calls of the guest's functions that fail.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use tests::product::{Run, binary, run, run_in_vain};

/// How many calls there were, and how many have failed.
#[track_caller]
fn counts(run: &Run) -> (u64, u64) {
    let [end] = run.of_type("injection")[..] else { panic!("{}", run.said) };
    (end["calls"].as_u64().unwrap(), end["injected"].as_u64().unwrap())
}

#[test]
fn a_system_call_fails_for_one_path_and_its_return_is_seen() {
    let Some(binary) = binary() else { return };
    const FILE: &str = "filename == \"/etc/hostname\"";
    let (inject, probe) = (format!("syscall:openat=-EIO if {FILE}"), format!("r syscall:openat if {FILE}"));
    let words = ["--inject", &inject, "-p", &probe, "--", "cat", "/etc/hostname", "/etc/passwd"];
    let ran = run(&binary, &words);
    assert_eq!(ran.code, 1);
    assert!(ran.said.contains("Input/output error") && ran.console.contains("root:"));
    let [hit] = ran.of_type("hit")[..] else { panic!("{:?}", ran.of_type("hit")) };
    assert_eq!(
        (hit["injected"].as_str(), hit["fields"]["filename"].as_str()),
        (Some("-EIO"), Some("/etc/hostname"))
    );
    let [returned] = ran.of_type("return")[..] else { panic!() };
    assert_eq!(returned["fields"]["return"], -5);
    assert!(ran.said.contains("injected -EIO once"));
    assert_eq!(counts(&ran), (1, 1));
}

#[test]
fn turns_are_those_of_all_functions_together() {
    let Some(binary) = binary() else { return };
    let script = "for i in 1 2 3 4 5 6 7 8; do cd /proc 2>/dev/null && echo $i; done";
    let inject = "syscall:chdir=-EACCES every 3 after 1 times 2";
    let ran = run(&binary, &["--inject", inject, "--", "sh", "-c", script]);
    assert_eq!(ran.console, "1\n2\n3\n5\n6\n8\n");
    assert_eq!((counts(&ran), ran.of_type("hit").len()), ((8, 2), 2));
}

#[test]
fn an_allocation_fails_in_one_system_call() {
    let Some(binary) = binary() else { return };
    let inject = "kmem_cache_alloc*=NULL under syscall:openat if comm == \"cat\"";
    let ran = run(&binary, &["--stack", "--inject", inject, "--", "cat", "/etc/hostname"]);
    assert!(ran.code != 0, "{}", ran.said);
    let hit = ran.of_type("hit")[0];
    let stack = hit["stack"].as_array().unwrap();
    assert!(
        stack
            .iter()
            .any(|frame| frame["name"].as_str().is_some_and(|name| name.starts_with("__x64_sys_openat"))),
        "{hit}"
    );
    let (calls, injected) = counts(&ran);
    assert!(calls == injected && injected > 0);
    assert!(ran.of_type("splat").is_empty());
}

#[test]
fn a_run_in_which_nothing_was_injected_is_not_green() {
    let Some(binary) = binary() else { return };
    let ran = run(&binary, &["--inject", "syscall:chdir=-EIO", "--", "true"]);
    assert_eq!(ran.code, 122, "{}", ran.said);
    assert!(ran.said.contains("nothing was injected, as there was no such call"), "{}", ran.said);
    let ran = run(&binary, &["--inject", "syscall:chdir=-EIO after 9", "--", "sh", "-c", "cd /"]);
    assert_eq!(ran.code, 122, "{}", ran.said);
    assert!(ran.said.contains("it was not the turn of the only call"), "{}", ran.said);
}

#[test]
fn functions_whose_callers_are_not_prepared_need_force() {
    let Some(binary) = binary() else { return };
    for (inject, words) in [
        ("schedule_timeout=0", "in no list of functions that may fail"),
        ("kfree=NULL", "returns nothing"),
        ("kmem_cache_alloc_noprof=-ENOMEM", "gives NULL when it fails"),
        ("syscall:exit_group=-EIO", "does not return to its caller with a value"),
        ("vfs_read=-EBOGUS", "is not a value that a function returns"),
        ("vfs_rea=-EIO", "vfs_read"),
        ("dummy:dummy_dev_init=-EIO", "no type information of it"),
    ] {
        let ran = run_in_vain(&binary, &["--inject", inject, "--", "true"]);
        assert!(ran.said.contains(words), "{inject}: {}", ran.said);
    }
    // One that returns nothing has no value by force as well, and one of 4 bytes none of 8.
    for (inject, words) in
        [("kfree=NULL", "returns nothing"), ("vfs_open=0x100000000", "a number of 4 bytes")]
    {
        let ran = run_in_vain(&binary, &["--force", "--inject", inject, "--", "true"]);
        assert!(ran.said.contains(words), "{inject}: {}", ran.said);
    }
}

#[test]
fn force_has_calls_fail_whose_callers_may_not_be_prepared() {
    let Some(binary) = binary() else { return };
    // A file that is said to be none: it cannot be executed.
    let inject = "generic_permission=-EACCES if comm == \"sh\" times 1";
    let words = ["--force", "--inject", inject, "--", "sh", "-c", "cat /etc/hostname; cat /etc/hostname"];
    let ran = run(&binary, &words);
    assert_eq!(counts(&ran).1, 1);
}
