//! `vmm doctor --report`: what somebody can send whose machine we have not.
#![allow(clippy::unwrap_used, reason = "what goes wrong here is a failed test")]

use std::fs;
use tests::product::{binary, command};

#[test]
fn a_report_tells_of_the_machine_and_of_guests_that_are_as_they_are_to_be() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.txt");
    let words = ["doctor", "--report", report.to_str().unwrap()];
    let output = command(&binary, folder.path(), &words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let text = fs::read_to_string(&report).unwrap();
    println!("{text}");
    let is_fit = text.contains("Guests run on this machine's KVM.");
    assert_eq!(output.status.code(), Some(if is_fit { 0 } else { 1 }), "{said}");
    assert!(!text.contains("DIFFERS"), "{text}");
    let places: Vec<_> = [
        "vendor_id: ",
        "flags: ",
        "kernel: ",
        "KVM at /dev/kvm:",
        "# Guest: a storm of traps",
        "No guest differed",
    ]
    .map(|words| text.find(words))
    .to_vec();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{places:?}\n{text}");
    assert_eq!(text.matches("as it was to be").count(), 4, "{text}");
    assert!(said.contains("vmm: guest 4 of 4: "), "{said}");
}

#[test]
fn a_kernel_that_is_none_is_a_difference_in_words() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (report, kernel) = (folder.path().join("report.txt"), folder.path().join("kernel"));
    fs::write(&kernel, "no kernel").unwrap();
    let words = ["doctor", "--kernel", kernel.to_str().unwrap(), "--report", report.to_str().unwrap()];
    let output = command(&binary, folder.path(), &words).output().unwrap();
    let text = fs::read_to_string(&report).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.matches("DIFFERS: the run ended with exit code 2").count(), 4, "{text}");
    assert_eq!(text.matches("DIFFERS").count(), 4, "{text}");
    assert!(text.contains("not a bzImage"), "{text}");
}
