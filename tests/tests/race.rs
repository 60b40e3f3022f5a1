//! Both orders of two places: `vmm race`.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use std::fs;
use std::path::Path;
use std::process::Output;
use tests::product::{Ended, binary, command};

const PLACES: &str = "syscall:umask,syscall:chdir";

/// A shell comes to umask, another one signals to it and comes to chdir, and the first one comes to umask again and again. Where its
/// first umask waits for chdir, the signal comes meanwhile, and otherwise when nobody minds. Neither of them needs a file: on the CPU
/// of a task that is held runs no task that would bring it.
fn script(when_early: &str) -> String {
    let spin = |rounds| format!("i=0; while [ $i -lt {rounds} ]; do i=$((i + 1)); done");
    let (long, longer) = (spin(3000), spin(10000));
    format!(
        "rm -f f; mkfifo f; exec 3<>f; trap '{when_early}' USR1
        (read x <&3; {long}; kill -USR1 $$; cd .) & echo go >&3; umask >&2; trap : USR1
        {longer}; umask >&2; {longer}; umask >&2; wait; wait"
    )
}

fn race(folder: &Path, words: &[&str]) -> Option<(Output, String)> {
    let binary = binary()?;
    let mut race = command(&binary, folder, &[&["race"], words].concat());
    let output = race.current_dir(folder).output().ended();
    let told = String::from_utf8(output.stdout.clone()).unwrap();
    println!("{told}\n{}", String::from_utf8_lossy(&output.stderr));
    Some((output, told))
}

#[test]
fn the_order_is_found_in_which_the_kernel_dies() {
    let folder = tempfile::tempdir().unwrap();
    let script = script("echo c > /proc/sysrq-trigger");
    let words =
        ["--between", PLACES, "--within=5s", "--repeat=2", "--output=kept", "--", "sh", "-c", &script];
    let Some((output, told)) = race(folder.path(), &words) else { return };
    assert_eq!(output.status.code(), Some(123));
    let last = "only in the order syscall:chdir, then syscall:umask the kernel reports a bug, or dies";
    assert_eq!(told.lines().last(), Some(last));
    assert!(told.contains("syscall:umask, then syscall:chdir: reached 2 times"));
    assert!(told.contains("2 runs of the command have ended: 2 with 0"));
    assert!(told.contains("syscall:chdir, then syscall:umask: reached once"));
    assert!(told.contains("splat, 1 times") && told.contains("sysrq"));
    for order in ["ab", "ba"] {
        assert!(fs::metadata(folder.path().join("kept").join(order)).unwrap().len() > 0);
    }
}

#[test]
fn the_order_is_found_in_which_the_command_fails() {
    let folder = tempfile::tempdir().unwrap();
    let script = script("exit 9");
    let words = ["--between", PLACES, "--within=5s", "--repeat=2", "--", "sh", "-c", &script];
    let Some((output, told)) = race(folder.path(), &words) else { return };
    assert_eq!(output.status.code(), Some(9));
    let last = "only in the order syscall:chdir, then syscall:umask the run fails";
    assert_eq!(told.lines().last(), Some(last));
}

#[test]
fn an_order_that_was_never_tried_is_no_success() {
    let folder = tempfile::tempdir().unwrap();
    let words = ["--between", PLACES, "--repeat=1", "--", "true"];
    let Some((output, told)) = race(folder.path(), &words) else { return };
    assert_eq!(output.status.code(), Some(122));
    assert_eq!(told.lines().last(), Some("neither order was ever reached: what comes of them is not known"));
}

#[test]
fn a_mistake_is_said_once_and_nothing_boots() {
    let folder = tempfile::tempdir().unwrap();
    for (words, said) in [
        (&["--between", "a", "--", "true"][..], "write two places with a comma between them"),
        (&["--between", "no_such_place,do_exit", "--", "true"], "no function `no_such_place`"),
        (&["--between", PLACES], "write it behind --"),
    ] {
        let Some((output, told)) = race(folder.path(), words) else { return };
        assert_eq!((output.status.code(), told.as_str()), (Some(2), ""));
        assert_eq!(String::from_utf8_lossy(&output.stderr).matches(said).count(), 1, "{words:?}");
    }
}
