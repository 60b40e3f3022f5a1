//! `vmm doctor`: where guests run, what confines this program, and what somebody can send whose machine we have not.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what goes wrong here is a failed test")]

use serde_json::Value;
use std::fs;
use tests::product::{Ended, binary, command};

#[test]
fn a_report_tells_of_the_machine_and_of_guests_that_are_as_they_are_to_be() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let report = folder.path().join("report.txt");
    let words = ["doctor", "--report", report.to_str().unwrap()];
    let output = command(&binary, folder.path(), &words).output().ended();
    let said = String::from_utf8_lossy(&output.stderr);
    let text = fs::read_to_string(&report).unwrap();
    println!("{text}");
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!text.contains("DIFFERS"), "{text}");
    let places: Vec<_> = [
        "vendor_id: ",
        "flags: ",
        "kernel: ",
        "This machine's KVM, /dev/kvm:",
        "The emulated host, QEMU ",
        "Guests run ",
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
    let output = command(&binary, folder.path(), &words).output().ended();
    let text = fs::read_to_string(&report).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_eq!(text.matches("DIFFERS: the run ended with exit code 2").count(), 4, "{text}");
    assert_eq!(text.matches("DIFFERS").count(), 4, "{text}");
    assert!(text.contains("not a bzImage"), "{text}");
}

/// What `vmm doctor` says of the hosts that `words` name, for people and as JSON, and its exit code, which is the same.
fn both(words: &[&str]) -> Option<(String, Value, Option<i32>)> {
    let binary = binary()?;
    let folder = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let words = [&["doctor"], words, more].concat();
        let output = command(&binary, folder.path(), &words).output().ended();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("{said}");
        (String::from_utf8(output.stdout).unwrap(), output.status.code())
    };
    let ((text, code), (json, other)) = (run(&[]), run(&["--json"]));
    println!("{text}\n{json}");
    assert_eq!(code, other);
    Some((text, serde_json::from_str(&json).unwrap(), code))
}

#[test]
fn both_hosts_are_tested_and_the_verdict_comes_last() {
    let Some((text, json, code)) = both(&[]) else { return };
    let hosts = json["hosts"].as_array().unwrap();
    let names: Vec<_> = hosts.iter().map(|host| host["host"].as_str().unwrap()).collect();
    assert_eq!(names, ["kvm", "emulated"]);
    // The tests' own machine has it, or most of them could not run.
    assert_eq!((&hosts[1]["fit"], &json["fit"], code), (&Value::from(true), &Value::from(true), Some(0)));
    assert_eq!(hosts[1]["contract"]["breakpoint"]["ok"], true);
    assert_eq!(text.lines().last(), json["verdict"].as_str());
    assert!(text.lines().last().unwrap().starts_with("Guests run "), "{text}");
    for host in hosts {
        let row =
            |name: &str| host["rows"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        assert_eq!(row("seccomp")["result"], "in force", "{host}");
        assert!(row("Landlock")["ok"].is_boolean(), "{host}");
    }
    // Debian's kernel has both.
    let landlock = hosts[1]["rows"].as_array().unwrap().iter().find(|row| row["name"] == "Landlock").unwrap();
    assert_eq!(landlock["ok"], true);
}

#[test]
fn one_host_is_tested_where_one_is_named() {
    for (host, other) in [("kvm", "The emulated host"), ("emulated", "This machine's KVM")] {
        let Some((text, json, code)) = both(&["--host", host]) else { return };
        let hosts = json["hosts"].as_array().unwrap();
        assert_eq!((hosts.len(), &hosts[0]["host"]), (1, &Value::from(host)));
        assert_eq!(
            (json["fit"].as_bool(), code),
            (hosts[0]["fit"].as_bool(), Some(i32::from(json["fit"] == false)))
        );
        assert!(!text.contains(other), "{text}");
    }
}
