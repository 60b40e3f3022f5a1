//! The emulated host: a program of this machine inside it, and its death.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test support: what goes wrong here is a failed test"
)]

use rustix::process::{Pid, Signal, kill_process};
use std::env;
use std::fs;
use std::io::{self, Read};
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use tests::product::{Ended, binary, command};

/// Set inside only: a file that was copied in.
const FILE: &str = "VMM_TEST_FILE";
/// Set inside only: plain text.
const TEXT: &str = "VMM_TEST_TEXT";

#[test]
fn variables_are_text_or_files_of_this_machine() {
    if let Some(path) = env::var_os(FILE) {
        let words: Vec<String> = env::args().skip(1).collect();
        print!("{}={}{}", env::var(TEXT).unwrap(), fs::read_to_string(path).unwrap(), words.len());
        return;
    }
    let Some(binary) = binary() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let (file, own) = (temporary.path().join("a file"), env::current_exe().unwrap());
    fs::write(&file, "from outside\n").unwrap();
    let (file, text) = (format!("{FILE}={}", file.display()), format!("{TEXT}=a=b"));
    let name = "variables_are_text_or_files_of_this_machine";
    let words = ["host", "exec", "--env", &text, "--file", &file, own.to_str().unwrap(), "--nocapture", name];
    let output = command(&binary, &env::temp_dir(), &words).output().ended();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("a=b=from outside\n2"), "{said}\n{errors}");
    assert_eq!(output.status.code(), Some(0), "{said}\n{errors}");
}

/// A snapshot has what the kernel's random numbers are made of.
#[test]
fn each_host_has_random_numbers_of_its_own() {
    let Some(binary) = binary() else { return };
    let numbers = || {
        let words = ["host", "exec", "/bin/busybox", "hexdump", "-n", "16", "/dev/urandom"];
        let output = command(&binary, &env::temp_dir(), &words).output().ended();
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.len() > 16);
        output.stdout
    };
    assert_ne!(numbers(), numbers());
}

#[test]
fn a_variable_without_a_name_or_a_file_that_is_not_there_is_an_error() {
    let Some(binary) = binary() else { return };
    let own = env::current_exe().unwrap();
    for (option, says) in [
        (["--env", "ALONE"], "write it as NAME=VALUE"),
        (["--file", "ALONE"], "write it as NAME=VALUE"),
        (["--file", "NAME=/nonexistent/file"], "cannot read /nonexistent/file"),
    ] {
        let words = [&["host", "exec"], &option[..], &[own.to_str().unwrap()]].concat();
        let output = command(&binary, &env::temp_dir(), &words).output().ended();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

/// The emulated host that `parent` started, once there is one. QEMU is also asked for its version, by a process of its own.
fn host_of(parent: u32) -> Pid {
    loop {
        for entry in fs::read_dir("/proc").unwrap() {
            let process = entry.unwrap().path();
            let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
            // PID (NAME) STATE PARENT ..., and a name may hold anything.
            let after = stat.rsplit(')').next().and_then(|rest| rest.split(' ').nth(2));
            let words = fs::read(process.join("cmdline")).unwrap_or_default();
            if after.is_some_and(|found| found == parent.to_string())
                && words.split(|&byte| byte == 0).any(|word| word == b"-smp")
            {
                let number = stat.split(' ').next().and_then(|pid| pid.parse().ok());
                return number.and_then(Pid::from_raw).unwrap();
            }
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until `process` catches SIGTERM: from then on its emulated host has its command.
fn wait_for_its_command(process: u32) {
    loop {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        if u64::from_str_radix(caught, 16).unwrap() & 1 << (Signal::TERM.as_raw() - 1) != 0 {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// A host that dies says nothing about the guest. Before anything was seen of that, it is started once more; afterwards its
/// death is the end, with an exit code of its own.
#[test]
fn a_host_that_dies_is_started_once_more_unless_something_was_seen() {
    let Some(binary) = binary() else { return };
    let words = ["run", "--host=emulated", "--probe=rest_init", "--cmdline=workload=open:1,idle:5"];
    for is_seen in [false, true] {
        let (mut printed, writer) = io::pipe().unwrap();
        let mut run = command(&binary, &env::temp_dir(), &words);
        let mut child = run.stdin(Stdio::null()).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(run);
        wait_for_its_command(child.id());
        let host = host_of(child.id());
        let mut text = String::new();
        while is_seen && !text.contains("workload: open") {
            let mut some = [0; 1024];
            let length = printed.read(&mut some).unwrap();
            assert!(length > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(some.get(..length).unwrap()));
        }
        kill_process(host, Signal::KILL).unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        printed.read_to_string(&mut text).unwrap();
        let code = child.wait().unwrap().code();
        assert_eq!(said.contains("is run once more"), !is_seen, "{said}");
        assert_eq!(code, Some(if is_seen { 125 } else { 0 }), "{said}");
        assert_eq!(text.matches("workload: open calls=1").count(), 1, "{text}{said}");
    }
}
