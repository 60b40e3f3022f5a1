//! What a guest does for us with functions of its own kernel: files that it shows, and a program that it runs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use std::collections::HashSet;
use std::path::Path;
use tests::product::{Ended, Run, binary, command, initrd_with, run, run_in_vain};

/// The guest lives for so many seconds.
fn idle(seconds: u32) -> String {
    format!("--append=workload=idle:{seconds} loglevel=5")
}

/// A guest with a long file, and a script that makes another one, which is told of what it is given.
fn asked(binary: &Path, words: &[&str]) -> Run {
    let lines: String = (0..20_000).map(|n| format!("line {n}\n")).collect();
    let script = b"#!/bin/sh\necho \"noted $1 $HOME\" > /note\nexit 3\n";
    let initrd = initrd_with([("long", 0o644, lines.into_bytes()), ("make", 0o755, script.to_vec())]);
    run(binary, &[&["--initrd", initrd.path().to_str().unwrap()], words].concat())
}

#[test]
fn a_guest_runs_a_program_and_shows_files() {
    let Some(binary) = binary() else { return };
    let words = ["--exec=/make something", "--cat=/note", "--cat", "/long", "--cpus=2", &idle(8)];
    let run = asked(&binary, &words);
    run.assert_code(3);
    run.assert_clean_log();
    let lines: HashSet<&str> = run.console.lines().collect();
    assert!((0..20_000).all(|n| lines.contains(format!("line {n}").as_str())));
    assert!(run.console.contains("noted something /\n"), "{}", run.console);
    assert!(
        run.said.contains("--exec /make something: ") && run.said.contains("exit code 3"),
        "{}",
        run.said
    );
}

/// What the kernel itself has in `/proc`, once the guest has mounted that.
#[test]
fn a_file_without_a_disk_is_shown() {
    let Some(binary) = binary() else { return };
    let run = asked(&binary, &["--cat=/proc/version", &idle(5)]);
    run.assert_success();
    assert!(run.console.contains("Linux version "), "{}", run.console);
}

#[test]
fn what_the_guest_never_had_is_said() {
    let Some(binary) = binary() else { return };
    for words in ["--cat=/nowhere/at/all", "--exec=/nowhere/at/all"] {
        let run = asked(&binary, &[words, &idle(2)]);
        run.assert_code(122);
        assert!(run.said.contains("/nowhere/at/all: ") && run.said.contains("No such file"), "{}", run.said);
    }
}

#[test]
fn what_a_guest_can_notice_is_named_and_can_be_refused() {
    let Some(binary) = binary() else { return };
    let refused = run_in_vain(&binary, &["--assist=off", "--cat=/proc/version", &idle(1)]);
    assert!(
        refused.said.contains("--cat /proc/version is done by the guest's own kernel"),
        "{}",
        refused.said
    );
    let refused = run_in_vain(&binary, &["--cat=/proc/version", "--", "true"]);
    assert!(refused.said.contains("cannot be used with"), "{}", refused.said);
    let folder = tempfile::tempdir().unwrap();
    let words = ["run", "--dry-run", "-p", "vfs_read", "--exec=/bin/true", "--cat=/proc/version"];
    let output = command(&binary, folder.path(), &words).output().ended();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("notice: --exec '/bin/true', --cat /proc/version\n"), "{text}");
}
