//! Guests that do not come to an end by themselves.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use tests::product::{binary, initrd_with, kernel, run};

/// A first process that waits for ever: what was seen until then is told, and where the CPUs stood.
#[test]
fn a_guest_that_takes_too_long_is_ended() {
    let Some(binary) = binary() else { return };
    let kernel = kernel();
    let words = ["--kernel", kernel.to_str().unwrap(), "--cpus=2", "--timeout=25", "--probe=rest_init"];
    let run = run(&binary, &[&words[..], &["--cmdline", "workload=open:3,idle:100000"]].concat());
    assert_eq!(run.code, 124, "{}", run.said);
    assert!(run.said.contains("the guest was ended after 25 s (--timeout)"), "{}", run.said);
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
