//! Calls of the guest's functions that fail.
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

    /// How many calls there were, and how many have failed.
    fn counts(&self) -> (u64, u64) {
        let [end] = self.of_type("injection")[..] else { panic!("{}", self.stderr) };
        (end["calls"].as_u64().unwrap(), end["injected"].as_u64().unwrap())
    }
}

/// Runs these words of `vmm run`. `None` where no guest can be run.
fn run(words: &[&str]) -> Option<Ran> {
    let binary = binary()?;
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let output = ["--output", recording.to_str().unwrap()];
    let words = [&["run"], &output[..], words].concat();
    let output = command(&binary, folder.path(), &words).output().unwrap();
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

#[test]
fn a_system_call_fails_for_one_path_and_its_return_is_seen() {
    const FILE: &str = "filename == \"/etc/hostname\"";
    let (inject, probe) = (format!("syscall:openat=-EIO if {FILE}"), format!("r syscall:openat if {FILE}"));
    let words = ["--inject", &inject, "-p", &probe, "--", "cat", "/etc/hostname", "/etc/passwd"];
    let Some(ran) = run(&words) else { return };
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("Input/output error") && ran.stdout.contains("root:"));
    let [hit] = ran.of_type("hit")[..] else { panic!("{:?}", ran.of_type("hit")) };
    assert_eq!(
        (hit["injected"].as_str(), hit["fields"]["filename"].as_str()),
        (Some("-EIO"), Some("/etc/hostname"))
    );
    let [returned] = ran.of_type("return")[..] else { panic!() };
    assert_eq!(returned["fields"]["return"], -5);
    assert!(ran.stderr.contains("injected -EIO 1 times"));
    assert_eq!(ran.counts(), (1, 1));
}

#[test]
fn turns_are_those_of_all_functions_together() {
    let script = "for i in 1 2 3 4 5 6 7 8; do cd /proc 2>/dev/null && echo $i; done";
    let inject = "syscall:chdir=-EACCES every 3 after 1 times 2";
    let Some(ran) = run(&["--inject", inject, "--", "sh", "-c", script]) else { return };
    assert_eq!(ran.stdout, "1\n2\n3\n5\n6\n8\n");
    assert_eq!((ran.counts(), ran.of_type("hit").len()), ((8, 2), 2));
}

#[test]
fn an_allocation_fails_in_one_system_call() {
    let inject = "kmem_cache_alloc*=NULL under syscall:openat if comm == \"cat\"";
    let Some(ran) = run(&["--stack", "--inject", inject, "--", "cat", "/etc/hostname"]) else { return };
    assert!(ran.code != 0, "{}", ran.stderr);
    let hit = ran.of_type("hit")[0];
    let stack = hit["stack"].as_array().unwrap();
    assert!(
        stack
            .iter()
            .any(|frame| frame["name"].as_str().is_some_and(|name| name.starts_with("__x64_sys_openat"))),
        "{hit}"
    );
    let (calls, injected) = ran.counts();
    assert!(calls == injected && injected > 0);
    assert!(ran.of_type("splat").is_empty());
}

#[test]
fn a_run_in_which_nothing_was_injected_is_not_green() {
    let Some(ran) = run(&["--inject", "syscall:chdir=-EIO", "--", "true"]) else { return };
    assert_eq!(ran.code, 122, "{}", ran.stderr);
    assert!(ran.stderr.contains("nothing was injected, as there was no such call"), "{}", ran.stderr);
    let Some(ran) = run(&["--inject", "syscall:chdir=-EIO after 9", "--", "sh", "-c", "cd /"]) else {
        return;
    };
    assert_eq!(ran.code, 122, "{}", ran.stderr);
    assert!(ran.stderr.contains("the turn of none of 1 calls"), "{}", ran.stderr);
}

#[test]
fn functions_whose_callers_are_not_prepared_need_force() {
    for (inject, words) in [
        ("schedule_timeout=0", "in no list of functions that may fail"),
        ("kfree=NULL", "returns nothing"),
        ("kmem_cache_alloc_noprof=-ENOMEM", "gives NULL when it fails"),
        ("syscall:exit_group=-EIO", "does not return to its caller with a value"),
        ("vfs_read=-EBOGUS", "is not a value that a function returns"),
        ("vfs_rea=-EIO", "vfs_read"),
        ("dummy:dummy_dev_init=-EIO", "no type information of it"),
    ] {
        let Some(ran) = run(&["--inject", inject, "--", "true"]) else { return };
        assert_eq!(ran.code, 2, "{inject}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{inject}: {}", ran.stderr);
    }
    // One that returns nothing has no value by force as well, and one of 4 bytes none of 8.
    for (inject, words) in
        [("kfree=NULL", "returns nothing"), ("vfs_open=0x100000000", "a number of 4 bytes")]
    {
        let Some(ran) = run(&["--force", "--inject", inject, "--", "true"]) else { return };
        assert!(ran.code == 2 && ran.stderr.contains(words), "{inject}: {}", ran.stderr);
    }
}

#[test]
fn force_has_calls_fail_whose_callers_may_not_be_prepared() {
    // A file that is said to be none: it cannot be executed.
    let inject = "generic_permission=-EACCES if comm == \"sh\" times 1";
    let words = ["--force", "--inject", inject, "--", "sh", "-c", "cat /etc/hostname; cat /etc/hostname"];
    let Some(ran) = run(&words) else { return };
    assert_eq!(ran.counts().1, 1);
}
