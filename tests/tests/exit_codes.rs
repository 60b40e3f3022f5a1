//! The exit codes that `vmm run --help` lists, each by a run that ends with it, and what `--quiet` leaves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use rustix::process::{Signal, kill_process};
use std::fs;
use std::io::Read;
use std::process::{Output, Stdio};
use tests::product::{Ended, binary, child, command, json_lines};

/// In a module that nobody loads. A command that names the module might.
const PENDING: &str = "--probe=dummy:dummy_xmit";

/// What `vmm run` with these words comes to.
fn run(words: &[&str]) -> Option<Output> {
    let (binary, temporary) = (binary()?, tempfile::tempdir().unwrap());
    Some(command(&binary, temporary.path(), &[&["run"], words].concat()).output().ended())
}

/// Fails the test unless each of these runs ends with its code, and says this.
#[track_caller]
fn check(cases: &[(i32, &str, &[&str])]) {
    for (code, says, words) in cases {
        let Some(output) = run(words) else { return };
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{words:?}: {said}");
        assert!(said.contains(says), "{words:?}: {said}");
    }
}

#[test]
fn a_run_that_cannot_be_started_ends_with_2() {
    check(&[
        (2, "unexpected argument", &["--no-such-option"]),
        (2, "has no function `do_sys_opena2`", &["--probe=do_sys_opena2", "--", "true"]),
        (2, "there is no module `no_such_module`", &["--probe=no_such_module:f", "--", "true"]),
    ]);
}

#[test]
fn a_command_that_cannot_be_run_ends_as_in_a_shell() {
    check(&[
        (127, "vmm: no-such-program cannot be run: No such file or directory", &["--", "no-such-program"]),
        (128 + 9, "", &["--", "sh", "-c", "kill -9 $$"]),
    ]);
}

/// The command's own failure wins.
#[test]
fn a_probe_that_never_stood_ends_a_good_run_with_122() {
    let says = "vmm: dummy:dummy_xmit: never armed";
    check(&[
        (122, says, &[PENDING, "--", "true", "dummy"]),
        (3, says, &[PENDING, "--", "sh", "-c", "exit 3", "dummy"]),
    ]);
}

#[test]
fn a_guest_that_dies_ends_with_123_and_one_that_takes_too_long_with_124() {
    check(&[
        (123, "vmm: the guest panicked", &["--append=workload=panic"]),
        (124, "vmm: the guest was ended after", &["--timeout=1", "--", "sleep", "1000"]),
    ]);
}

#[test]
fn a_host_that_dies_ends_with_125() {
    let (Some(binary), temporary) = (binary(), tempfile::tempdir().unwrap()) else { return };
    let words = ["run", "--host=emulated", "--", "sh", "-c", "echo begun; sleep 1000"];
    let mut run = command(&binary, temporary.path(), &words);
    let mut running = run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut begun = [0; 6];
    running.stdout.take().unwrap().read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"begun\n");
    kill_process(child(running.id(), &["qemu-system"]).unwrap(), Signal::KILL).unwrap();
    let output = running.wait_with_output().ended();
    assert_eq!(output.status.code(), Some(125), "{}", String::from_utf8_lossy(&output.stderr));
}

/// What is left is what was asked for.
#[test]
fn a_quiet_run_that_is_good_says_nothing() {
    let Some(output) = run(&["--quiet", "--", "cat", "/etc/passwd"]) else { return };
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!((output.status.code(), output.stdout), (Some(0), fs::read("/etc/passwd").unwrap()));
    let output = run(&["--quiet", "--format=json", "--probe=do_sys_openat2", "--", "true"]).unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let lines = json_lines(&output.stdout);
    assert!(lines.iter().any(|line| line["type"] == "hit"), "{lines:?}");
    assert_eq!((output.status.code(), &lines.last().unwrap()["type"]), (Some(0), &"end".into()));
}
