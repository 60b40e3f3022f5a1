//! Rules of `vmm guard` on a real kernel: what the shipped ones tell, a call that is denied, and a guest that is ended.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use serde_json::Value;
use std::fs;
use tests::product::{Run, binary, guard, initrd_with, kernel, module, report};

/// Denies one folder to all, and ends the guest when it is given a name.
const OWN: &str = "\
apiVersion: cilium.io/v1alpha1
kind: TracingPolicy
metadata:
  name: denied
spec:
  kprobes:
  - call: sys_chdir
    syscall: true
    message: the folder is denied
    args:
    - {index: 0, type: string, label: folder}
    selectors:
    - matchArgs:
      - {index: 0, operator: Equal, values: [/proc]}
      matchBinaries:
      - {operator: In, values: [/bin/busybox]}
      matchActions:
      - {action: Override, argError: -5}
---
apiVersion: cilium.io/v1alpha1
kind: TracingPolicy
metadata:
  name: ended
spec:
  kprobes:
  - call: sys_sethostname
    syscall: true
    args:
    - {index: 0, type: string, label: name}
    selectors:
    - matchActions:
      - {action: Sigkill}
";

/// What the guest does, whose console has time to show all of it: a program with words, a module, a program with the rights of its owner, a mount, a denied folder, and the end.
const SCRIPT: &str = "\
busybox true some words
insmod /dummy.ko
cp /bin/busybox /rights
chmod 4755 /rights
echo 'nobody:x:65534:65534::/:/bin/sh' >> /etc/passwd
start-stop-daemon -S -c nobody -x /rights
mkdir -p /place
mount -t tmpfs none /place
cd /proc || echo denied
cd /place && echo allowed
sleep 1
hostname gone
echo still here
";

/// The hits of a rule.
fn hits<'a>(run: &'a Run, rule: &str) -> Vec<&'a Value> {
    let probes: Vec<_> =
        run.of_type("registered").into_iter().filter(|probe| probe["rule"] == rule).collect();
    let is_its = |line: &&Value| probes.iter().any(|probe| probe["id"] == line["id"]);
    run.of_type("hit").into_iter().filter(is_its).collect()
}

#[test]
fn rules_tell_what_the_guest_does_deny_a_call_and_end_the_guest() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own.yaml");
    fs::write(&own, OWN).unwrap();
    let initrd =
        initrd_with([("script", 0o644, SCRIPT.as_bytes().to_vec()), ("dummy.ko", 0o644, module("dummy"))]);
    let words = [
        "--kernel",
        kernel().to_str().unwrap(),
        "--initrd",
        initrd.path().to_str().unwrap(),
        "--rules",
        "default",
        "--rules",
        own.to_str().unwrap(),
        "--append",
        "workload=sh:/script",
    ];
    let run = guard(&binary, &words);
    run.assert_code(123);
    assert!(run.said.contains("the guest was stopped by its guard"), "{}", run.said);
    let field = |line: &Value, name: &str| line["fields"][name].as_str().unwrap_or_default().to_owned();
    let one = |rule: &str, name: &str, value: &str| {
        let hits = hits(&run, rule);
        let found: Vec<_> = hits.iter().filter(|hit| field(hit, name) == value).collect();
        assert_eq!(found.len(), 1, "{rule} {name}={value} in {hits:?}\n{}", run.console);
        (*found[0]).clone()
    };
    let program = one("execution", "words", "busybox true some words");
    assert_eq!(field(&program, "program"), "/bin/busybox");
    let loaded = one("module-load", "name", "dummy");
    // The shell does that itself.
    assert_eq!(field(&loaded, "words"), "sh /script");
    let root = hits(&run, "becomes-root");
    assert!(
        root.iter().any(|hit| hit["fields"]["old_euid"] == 65534 && hit["fields"]["new_euid"] == 0),
        "{root:?}\n{}",
        run.console
    );
    let mounted = one("mount", "at", "/place");
    assert_eq!(field(&mounted, "kind"), "tmpfs");
    let denied = one("denied", "folder", "/proc");
    assert_eq!(denied["injected"], "-5");
    assert!(run.console.contains("denied") && run.console.contains("allowed"), "{}", run.console);
    let ended = one("ended", "name", "gone");
    assert_eq!(run.of_type("hit").last().unwrap()["id"], ended["id"], "nothing is told after it");
    assert!(!run.console.contains("still here"), "{}", run.console);
    // None of them lies where the guest could reach its notes.
    let stood = run.of_type("probe");
    assert!(stood.iter().all(|probe| probe["trapped"].is_string()), "{stood:?}");
    // Each is an event for other programs.
    let recording = folder.path().join("rules.json");
    fs::write(&recording, run.output.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let events = String::from_utf8(report(&binary, &recording, &["--format", "ocsf"])).unwrap();
    let events: Vec<Value> = events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let event = events.iter().find(|event| event["finding_info"]["types"][0] == "rule: module-load").unwrap();
    let attack = &event["finding_info"]["attacks"][0]["sub_technique"];
    assert_eq!(
        (&attack["uid"], &attack["name"]),
        (&"T1547.006".into(), &"Kernel Modules and Extensions".into())
    );
    assert_eq!(
        (&event["severity"], &event["evidences"][0]["process"]["name"]),
        (&"High".into(), &loaded["task"]["comm"])
    );
    let text = String::from_utf8(report(&binary, &recording, &[])).unwrap();
    assert!(
        text.contains(
            "module-load: (do_init_module) name=\"dummy\" words=\"sh /script\"; a kernel module is loaded"
        ),
        "{text}"
    );
}
