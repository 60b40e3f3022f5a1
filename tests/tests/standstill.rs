//! Guests that do not come to an end by themselves, and readers that stand still.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};
use tests::product::{binary, command, initrd_with, kernel, run};

/// A first process that waits for ever: what was seen until then is told, and where the CPUs stood.
#[test]
fn a_guest_that_takes_too_long_is_ended() {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let words = ["--kernel", kernel.to_str().unwrap(), "--cpus=2", "--timeout=25", "--probe=rest_init"];
    let run = run(&binary, &[&words[..], &["--cmdline", "workload=open:3,idle:100000"]].concat());
    assert_eq!(run.code, 124, "{}", run.said);
    let (_, after) = run.said.split_once("the guest was ended after ").unwrap();
    let (seconds, _) = after.split_once(" s (--timeout)").unwrap();
    assert!(seconds.parse::<u64>().unwrap() >= 25, "{}", run.said);
    for cpu in ["cpu0 at 0x", "cpu1 at 0x"] {
        assert!(run.said.contains(cpu), "{}", run.said);
    }
    assert_eq!(run.hits("rest_init"), 1);
    assert_eq!(run.output.last().unwrap()["end"], "timed out");
}

/// `halt` leaves all CPUs with interrupts off, and the power on.
#[test]
fn a_guest_that_halts_has_died() {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let initrd = initrd_with([("script", 0o644, b"halt -f\n".to_vec())]);
    let words = ["--kernel", kernel.to_str().unwrap(), "--initrd", initrd.path().to_str().unwrap()];
    let more = ["--cpus=2", "--probe=rest_init", "--cmdline", "workload=sh:/script loglevel=6"];
    let run = run(&binary, &[&words[..], &more].concat());
    assert_eq!(run.code, 123, "{}", run.said);
    assert!(
        run.said.contains("the guest has halted for good without switching the machine off"),
        "{}",
        run.said
    );
    assert_eq!(run.said.matches(", halted").count(), 2, "{}", run.said);
    assert!(run.console.contains("System halted"), "{}", run.console);
    assert_eq!(run.hits("rest_init"), 1);
}

/// `vmm run 2>&1 | less`: whoever stops reading does not keep a signal away.
#[test]
fn a_reader_that_stands_still_does_not_make_it_deaf() {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let temporary = tempfile::tempdir().unwrap();
    let words = ["run", "--kernel", kernel.to_str().unwrap(), "--probe=vfs_*", "--timeout=0"];
    let words = [&words[..], &["--cmdline", "workload=mix:100000"]].concat();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut run = command(&binary, temporary.path(), &words);
    run.stdin(Stdio::null()).stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = run.spawn().unwrap();
    drop(run);
    // It is armed, and then nobody reads: a pipe is soon full, and so is what waits for it.
    let mut seen = String::new();
    while !seen.contains(" cpu0 ") {
        let mut some = [0; 1024];
        let length = reader.read(&mut some).unwrap();
        assert!(length > 0, "{seen}");
        seen.push_str(&String::from_utf8_lossy(&some[..length]));
    }
    thread::sleep(Duration::from_secs(10));
    assert!(child.try_wait().unwrap().is_none(), "{seen}");
    let told = Instant::now();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    // Half a second here; on a busy machine whoever is deaf is told from whoever is slow.
    while child.try_wait().unwrap().is_none() {
        if told.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("it is deaf");
        }
        thread::sleep(Duration::from_millis(10));
    }
    println!("it ended {} ms after the signal", told.elapsed().as_millis());
    assert_eq!(child.wait().unwrap().code(), Some(128 + Signal::TERM.as_raw()));
}
