//! Files that a command leaves as it likes, and whoever is left of the command.

use super::*;
use crate::dropped::StreamReader;
use rustix::fs::{CWD, mkfifoat};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

/// A path with its kind, what came of it, and its bytes.
type SentFile = (String, FileKind, Sent, Vec<u8>);

/// What is sent of a folder, in order, and whether there is more.
fn sent(folder: &Path) -> (Vec<SentFile>, bool) {
    let mut changes = Changes::default();
    changes.add("run", folder.to_str().unwrap()).unwrap();
    let mut sender = Sender::to(Vec::new());
    sender.all(&changes).unwrap();
    let (mut files, mut open, mut bytes, mut end) = (Vec::new(), None, Vec::new(), None);
    let read = StreamReader::default().read(&sender.out, |part| {
        match part {
            Part::Begin(file) => open = Some(file.clone()),
            Part::Bytes(more) => bytes.extend_from_slice(more),
            Part::Sent(sent) => {
                let file: LeftFile = open.take().unwrap();
                let path = String::from_utf8(file.path).unwrap();
                files.push((path, file.kind, sent, std::mem::take(&mut bytes)));
            }
            Part::End { has_more } => end = Some(has_more),
        }
        Ok(())
    });
    read.unwrap();
    (files, end.unwrap())
}

#[test]
fn what_lies_there_is_sent_and_nothing_is_followed() {
    let all = tempfile::tempdir().unwrap();
    let at = |path: &str| all.path().join(path);
    fs::create_dir_all(at("x/y/empty")).unwrap();
    fs::write(at("x/y/dropped"), vec![7; 3 * PIECE]).unwrap();
    fs::write(at("motd"), "changed").unwrap();
    symlink("/etc/shadow", at("shadow")).unwrap();
    symlink("/etc", at("x/folder")).unwrap();
    mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
    File::create(at("sparse")).unwrap().set_len(MOST_OF_A_FILE + 1).unwrap();
    fs::set_permissions(at("motd"), fs::Permissions::from_mode(0o4755)).unwrap();
    let (mut files, has_more) = sent(all.path());
    files.sort_by(|one, other| one.0.cmp(&other.0));
    let expected = [
        ("run/motd", FileKind::Regular, Sent::Whole, b"changed".to_vec()),
        ("run/pipe", FileKind::Fifo, Sent::Whole, vec![]),
        ("run/shadow", FileKind::Link, Sent::Whole, b"/etc/shadow".to_vec()),
        ("run/sparse", FileKind::Regular, Sent::TooLarge, vec![]),
        ("run/x/folder", FileKind::Link, Sent::Whole, b"/etc".to_vec()),
        ("run/x/y/dropped", FileKind::Regular, Sent::Whole, vec![7; 3 * PIECE]),
    ];
    assert_eq!(files, expected.map(|(path, kind, sent, bytes)| (path.to_owned(), kind, sent, bytes)));
    assert!(!has_more);
}

#[test]
fn what_was_there_before_is_told_as_changed() {
    let all = tempfile::tempdir().unwrap();
    let at = |path: &str| all.path().join(path);
    for folder in ["upper/etc", "lower/etc"] {
        fs::create_dir_all(at(folder)).unwrap();
        fs::write(at(folder).join("motd"), "words").unwrap();
    }
    fs::write(at("upper/motd"), "words").unwrap();
    let mut changes = Changes::default();
    let path = |name: &str| at(name).to_str().unwrap().to_owned();
    changes.add_overlay(&path("upper"), &path("lower")).unwrap();
    let mut sender = Sender::to(Vec::new());
    sender.all(&changes).unwrap();
    let mut files = Vec::new();
    let read = StreamReader::default().read(&sender.out, |part| {
        if let Part::Begin(file) = part {
            files.push((file.path.clone(), file.is_new));
        }
        Ok(())
    });
    read.unwrap();
    files.sort();
    assert_eq!(files, [(b"etc/motd".to_vec(), false), (b"motd".to_vec(), true)]);
}

#[test]
fn what_costs_nothing_comes_behind_what_has_contents() {
    let all = tempfile::tempdir().unwrap();
    let at = |path: &str| all.path().join(path);
    for n in 0..20 {
        File::create(at(&format!("{n}-sparse"))).unwrap().set_len(1 << 20).unwrap();
        File::create(at(&format!("{n}-empty"))).unwrap();
        fs::create_dir(at(&format!("{n}"))).unwrap();
        fs::write(at(&format!("{n}/payload")), "payload").unwrap();
    }
    let (files, has_more) = sent(all.path());
    let kind = |name: &str| files.iter().map(|file| file.0.ends_with(name)).collect::<Vec<_>>();
    let block = |at: usize| (0..60).map(|n| n / 20 == at).collect::<Vec<_>>();
    assert_eq!((kind("/payload"), kind("-sparse"), kind("-empty")), (block(0), block(1), block(2)));
    assert!(!has_more);
}

#[test]
fn no_number_of_links_keeps_a_file_from_being_sent() {
    let all = tempfile::tempdir().unwrap();
    let folder = all.path().join("z");
    fs::create_dir(&folder).unwrap();
    (0..MOST_FILES).for_each(|n| symlink("x", all.path().join(n.to_string())).unwrap());
    fs::write(folder.join("payload"), "payload").unwrap();
    let (files, has_more) = sent(all.path());
    assert_eq!(files[0].3, b"payload");
    assert!(has_more && files.len() == MOST_FILES);
}

#[test]
fn no_more_names_are_sent_than_whoever_reads_takes() {
    let all = tempfile::tempdir().unwrap();
    let target = "t".repeat(4000);
    let links = MOST_OF_NAMES / (target.len() + "run/1000".len());
    (1000..1000 + links + 10).for_each(|n| symlink(&target, all.path().join(n.to_string())).unwrap());
    let (files, has_more) = sent(all.path());
    assert_eq!((files.len(), has_more), (links, true));
}

#[test]
fn what_is_too_deep_is_not_sent_and_that_is_said() {
    let all = tempfile::tempdir().unwrap();
    let mut folder = all.path().to_owned();
    for _ in 0..DEEPEST + 2 {
        folder.push("d");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("f"), "").unwrap();
    }
    let (files, has_more) = sent(all.path());
    assert!(files.len() > DEEPEST - 5 && files.len() < DEEPEST && has_more, "{}", files.len());
}

/// Is there where this test is process 1, and sees at `/proc` others than there are.
const AS_PROCESS_1: &str = "VMM_TEST_AS_PROCESS_1";

#[test]
fn everybody_else_is_ended_whatever_is_at_proc() {
    if env::var_os(AS_PROCESS_1).is_some() {
        let mut other = Command::new("sleep").arg("10").spawn().unwrap();
        end_others();
        assert_eq!(other.wait().unwrap().signal(), Some(libc::SIGKILL));
        return;
    }
    let alone = || {
        let mut alone = Command::new("unshare");
        alone.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
        alone
    };
    // Not everybody may be.
    if alone().arg("true").status().is_ok_and(|status| status.success()) {
        let name = "host::agent::changes::tests::everybody_else_is_ended_whatever_is_at_proc";
        let mut test = alone();
        test.arg(env::current_exe().unwrap()).args(["--exact", name]).env(AS_PROCESS_1, "");
        let output = test.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{output:?}");
    }
}
