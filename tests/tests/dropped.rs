//! Files that a command leaves in its guest, as `vmm guard --keep-files` keeps them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tests::product::{Ended, binary, command, guard, kernel, report};

/// All files below `folder`: their paths, each with its mode and its contents.
fn files(folder: &Path) -> BTreeMap<String, (u32, Vec<u8>)> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(open) = folders.pop() {
        for entry in fs::read_dir(open).unwrap() {
            let path = entry.unwrap().path();
            let metadata = fs::symlink_metadata(&path).unwrap();
            if metadata.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            found.insert(name, (metadata.mode(), fs::read(&path).unwrap()));
        }
    }
    found
}

#[test]
fn files_that_a_sample_leaves_are_kept_and_nothing_else_is_touched() {
    let Some(binary) = binary() else { return };
    let ours = tempfile::tempdir().unwrap();
    let at = |name: &str| ours.path().join(name);
    fs::write(at("gone"), "stays").unwrap();
    fs::write(at("changed"), "before").unwrap();
    fs::create_dir(at("anew")).unwrap();
    fs::write(at("anew/gone"), "stays").unwrap();
    let here = ours.path().to_str().unwrap();
    let motd = fs::read("/etc/motd").ok();
    // A folder that is not there on this machine.
    let x = format!("/tmp/{}-x", ours.path().file_name().unwrap().to_str().unwrap());
    let script = format!(
        "mkdir {x} && echo payload > {x}/dropped && chmod 4755 {x}/dropped && echo motd > /etc/motd \
         && ln -s /etc/shadow {x}/shadow && mkfifo {x}/pipe && mknod {x}/null c 1 3 && truncate -s 1T {x}/sparse \
         && printf named > \"$(printf '{x}/\\033[2J')\" && echo quick > /dev/shm/quick && echo after > {here}/changed \
         && rm -r {here}/gone {here}/anew && mkdir {here}/anew && echo new > {here}/anew/new \
         && printf long > \"{x}/$(printf '\\377%.0s' $(seq 64))\" && {{ setsid sleep 1000 & exit 3; }}"
    );
    let kept = at("kept");
    let words = ["--kernel", kernel().to_str().unwrap(), "--keep-files", kept.to_str().unwrap()];
    let run = guard(&binary, &[&words[..], &["--", "sh", "-c", &script]].concat());
    run.assert_code(3);
    let (x, here) = (&x[1..], &here[1..]);
    // The recording has a line for each.
    let told: BTreeMap<&str, &Value> =
        run.of_type("dropped").into_iter().map(|line| (line["path"].as_str().unwrap(), line)).collect();
    let line = |path: String| told.get(&*path).unwrap_or_else(|| panic!("no {path} in {told:?}"));
    // A name that is too long with its escapes keeps no file from being kept.
    let long = format!("{x}/{}", "\\xff".repeat(64));
    let by_number = format!("\\file-{}", line(long.clone())["number"]);
    assert!(run.said.contains(&format!("{long} is kept as {by_number}: File name too long")), "{}", run.said);
    let regular = |bytes: &str| (0o100600, bytes.as_bytes().to_vec());
    let expected = [
        (format!("{x}/dropped"), regular("payload\n")),
        (format!("{x}/\\x1b[2J"), regular("named")),
        ("etc/motd".to_owned(), regular("motd\n")),
        ("dev/shm/quick".to_owned(), regular("quick\n")),
        (format!("{here}/changed"), regular("after\n")),
        (format!("{here}/anew/new"), regular("new\n")),
        (by_number, regular("long")),
    ];
    assert_eq!(files(&kept), expected.into(), "{}", run.said);
    assert!(run.said.contains("7 files of the guest's are in "), "{}", run.said);
    // What is on this machine is as it was.
    assert_eq!(fs::read("/etc/motd").ok(), motd);
    assert_eq!(fs::read_to_string(at("gone")).unwrap(), "stays");
    assert_eq!(fs::read_to_string(at("anew/gone")).unwrap(), "stays");
    assert_eq!(fs::read_to_string(at("changed")).unwrap(), "before");
    assert!(!Path::new("/").join(x).exists() && !Path::new("/dev/shm/quick").exists());
    let dropped = line(format!("{x}/dropped"));
    let digest = "d4e4877bac978b7952f0d544fc52ebff5411d351d129f1f056fa43f11da9af2b";
    assert_eq!((&dropped["mode"], &dropped["size"]), (&"4755".into(), &8.into()), "{dropped}");
    for (path, is_new) in [(format!("{x}/dropped"), true), (format!("{here}/changed"), false)] {
        assert_eq!(line(path.clone())["new"], is_new, "{path}");
    }
    assert_eq!((&dropped["sha256"], &dropped["kept"]), (&digest.into(), &true.into()), "{dropped}");
    for (name, kind) in [("shadow", "link"), ("pipe", "fifo"), ("null", "device"), ("sparse", "file")] {
        let line = line(format!("{x}/{name}"));
        assert_eq!((&line["kind"], &line["kept"]), (&kind.into(), &false.into()), "{line}");
    }
    assert_eq!(line(format!("{x}/shadow"))["target"], "/etc/shadow");
    assert_eq!(line(format!("{x}/sparse"))["why"], "larger than 256 MiB");
    // A folder that was made anew hides what was in the one before.
    for removed in ["gone", "anew"] {
        assert_eq!(line(format!("{here}/{removed}"))["kind"], "removed");
    }
    let [end] = run.of_type("dropped_end")[..] else { panic!("{}", run.said) };
    assert_eq!(
        (&end["files"], &end["kept"], &end["failure"]),
        (&13.into(), &7.into(), &Value::Null),
        "{end}"
    );
    // And a report shows them.
    let recording = at("recording");
    let lines: String = run.output.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&recording, lines).unwrap();
    let text = String::from_utf8(report(&binary, &recording, &[])).unwrap();
    assert!(text.contains(&format!("DROPPED: {x}/shadow: a link to /etc/shadow\n")), "{text}");
    assert!(text.contains(&format!("DROPPED: {here}/changed: changed, 6 bytes, mode ")), "{text}");
    assert!(text.contains("dropped: 13 files, of which 7 are kept\n"), "{text}");
}

#[test]
fn what_a_guest_leaves_that_dies_is_lost_and_that_is_said() {
    let Some(binary) = binary() else { return };
    let ours = tempfile::tempdir().unwrap();
    let kept = ours.path().join("kept");
    let words = ["--kernel", kernel().to_str().unwrap(), "--keep-files", kept.to_str().unwrap()];
    let script = "echo lost > /tmp/lost; echo c > /proc/sysrq-trigger; sleep 100";
    let run = guard(&binary, &[&words[..], &["--scan", "never", "--", "sh", "-c", script]].concat());
    run.assert_code(123);
    assert!(files(&kept).is_empty(), "{}", run.said);
    let [end] = run.of_type("dropped_end")[..] else { panic!("{}", run.said) };
    assert_eq!(end["files"], 0);
    let why = "the guest has ended, or was ended, before it had sent all";
    assert_eq!(end["failure"], why, "{end}");
    assert!(run.said.contains(&format!("NOT TO THE END: {why}")), "{}", run.said);
}

#[test]
fn a_folder_that_has_something_in_it_gets_nothing() {
    let Some(binary) = binary() else { return };
    let ours = tempfile::tempdir().unwrap();
    fs::write(ours.path().join("file"), "").unwrap();
    let folder = ours.path().to_str().unwrap();
    let refused = |words: &[&str]| {
        let temporary = tempfile::tempdir().unwrap();
        let words = [&["guard", "--kernel", kernel().to_str().unwrap()], words].concat();
        let output = command(&binary, temporary.path(), &words).output().ended();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        said
    };
    let said = refused(&["--keep-files", folder, "--", "true"]);
    assert!(said.contains("is not empty: name a new folder"), "{said}");
    let below = format!("{folder}/new");
    let said = refused(&["--rwdir", folder, "--keep-files", &below, "--", "true"]);
    assert!(said.contains("is in --rwdir"), "{said}");
    let said = refused(&["--keep-files", &below]);
    assert!(said.contains("<CMD>"), "{said}");
}
