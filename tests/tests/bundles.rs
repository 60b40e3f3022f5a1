//! `--bundle` and `vmm replay` with guests.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use tests::product::{Ended, binary, command};

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs `vmm` with these words in `folder`, and fails the test unless it ends with `code`.
#[track_caller]
fn vmm(binary: &Path, folder: &Path, words: &[&str], code: i32) -> Output {
    let output = command(binary, folder, words).current_dir(folder).output().ended();
    assert_eq!(output.status.code(), Some(code), "{words:?}\n{}", said(&output));
    output
}

fn manifest(bundle: &Path) -> Value {
    serde_json::from_slice(&fs::read(bundle.join("bundle.json")).unwrap()).unwrap()
}

#[test]
fn a_replay_elsewhere_has_the_files_of_the_run_and_comes_to_the_same() {
    let Some(binary) = binary() else { return };
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |path: &str| here.path().join(path);
    fs::write(at("input"), "what is read\n").unwrap();
    fs::write(at("other"), "what is seen\n").unwrap();
    let probe = r#"p do_sys_openat2 if filename ~ "*put" || filename ~ "/etc/host*""#;
    let work = "ls; cat input /etc/hostname; test -s other && exit 3";
    let run = vmm(&binary, here.path(), &["run", "--bundle", "made", "-p", probe, "--", "sh", "-c", work], 3);
    assert!(said(&run).contains("the bundle is in made"), "{}", said(&run));
    let bundle = at("made");
    for name in ["kernel", "modules", "recording.json", "console", "root/etc/hostname"] {
        assert!(bundle.join(name).exists(), "{name}");
    }
    let kept = |path: &str| bundle.join("root").join(at(path).strip_prefix("/").unwrap());
    assert_eq!(fs::read(kept("input")).unwrap(), b"what is read\n");
    assert_eq!(fs::read(kept("other")).unwrap(), [0; 13]);
    // A bundle is not overwritten.
    vmm(&binary, here.path(), &["run", "--bundle", "made", "--", "true"], 2);
    let moved = there.path().join("moved");
    assert!(Command::new("cp").arg("-a").args([&bundle, &moved]).status().unwrap().success());
    let files = ["input", "other"].map(|name| fs::remove_file(at(name)));
    assert!(files.iter().all(Result::is_ok));
    let replay = vmm(&binary, there.path(), &["replay", "moved", "-o", "again.json"], 0);
    assert_eq!(String::from_utf8_lossy(&replay.stdout), String::from_utf8_lossy(&run.stdout));
    let words = said(&replay);
    assert!(words.contains("the verdict is the same: exit code 3, no splat"), "{words}");
    assert!(words.contains("the order is the same, of 2 hits"), "{words}");
    assert!(there.path().join("again.json").exists());

    // It is found that the run came to something else.
    let mut other = manifest(&moved);
    other["verdict"]["exit_code"] = 0.into();
    fs::write(moved.join("bundle.json"), other.to_string()).unwrap();
    let words = said(&vmm(&binary, there.path(), &["replay", "moved"], 1));
    assert!(words.contains("the verdict differs: exit code 3, no splat; it was exit code 0"), "{words}");
    // And that a file is another one.
    let input = moved.join("root").join(at("input").strip_prefix("/").unwrap());
    fs::write(input, "what was not read\n").unwrap();
    let words = said(&vmm(&binary, there.path(), &["replay", "moved"], 2));
    assert!(words.contains("SHA-256"), "{words}");
}

#[test]
fn a_guest_of_its_own_and_a_seed_are_kept() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let words =
        ["shake", "do_sys_openat2", "--bundle", "made", "--append", "workload=open:5", "-o", "hits.json"];
    vmm(&binary, folder.path(), &words, 0);
    let bundle = folder.path().join("made");
    assert!(manifest(&bundle)["seed"].is_u64());
    assert!(bundle.join("initrd").exists() && !bundle.join("root").exists());
    assert_eq!(
        fs::read(bundle.join("recording.json")).unwrap(),
        fs::read(folder.path().join("hits.json")).unwrap()
    );
    fs::remove_file(folder.path().join("hits.json")).unwrap();
    let words = said(&vmm(&binary, folder.path(), &["replay", "made"], 0));
    assert!(words.contains("the verdict is the same: exit code 0, no splat"), "{words}");
    assert!(!folder.path().join("hits.json").exists());
}

/// Has the hits of `probe` come before all others of a recording, or after them.
fn reorder(recording: &Path, probe: &str, is_first: bool) {
    let text = fs::read_to_string(recording).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut hits: Vec<&mut Value> = lines.iter_mut().filter(|line| line["type"] == "hit").collect();
    let mut times: Vec<u64> = hits.iter().map(|hit| hit["time_ns"].as_u64().unwrap()).collect();
    times.sort_unstable();
    hits.sort_by_key(|hit| (hit["probe"] == probe) != is_first);
    hits.iter_mut().zip(times).for_each(|(hit, time)| hit["time_ns"] = time.into());
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    fs::write(recording, lines.join("\n") + "\n").unwrap();
}

/// Two tasks come to two places, and either comes first when that is the order.
#[test]
fn either_order_is_imposed_whichever_comes_by_itself() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let race = "(umask >/dev/null) & (cd /proc) & wait";
    let words = ["run", "--cpus", "2", "--bundle", "made", "-p", "syscall:umask", "-p", "syscall:chdir"];
    vmm(&binary, folder.path(), &[&words[..], &["--", "sh", "-c", race]].concat(), 0);
    let replays = if std::env::var_os("VMM_LONG").is_some() { 10 } else { 1 };
    for is_first in [true, false] {
        reorder(&folder.path().join("made/recording.json"), "syscall:chdir", is_first);
        for _ in 0..replays {
            let words = said(&vmm(&binary, folder.path(), &["replay", "made"], 0));
            assert!(words.contains("the order is the same, of 3 hits"), "{words}");
            assert!(words.contains("the order was imposed: 3 of 3 hits came in it"), "{words}");
        }
    }
    let free =
        command(&binary, folder.path(), &["replay", "made", "--free"]).current_dir(folder.path()).output();
    assert!(!said(&free.unwrap()).contains("imposed"));
}
