//! Commands in the guest, as a user runs them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};
use std::thread;
use tests::product::{binary, command};

/// What `vmm run` with these `options` says and ends with, when `words` run in the guest and read `input`.
fn run(options: &[&str], words: &[&str], input: &[u8]) -> Option<Output> {
    let (binary, temporary) = (binary()?, tempfile::tempdir().unwrap());
    let mut command = command(&binary, temporary.path(), &[&["run"], options].concat());
    if !words.is_empty() {
        command.arg("--").args(words);
    }
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut stdin, input) = (child.stdin.take().unwrap(), input.to_vec());
    // A command may end without reading everything.
    let fed = thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    fed.join().unwrap();
    Some(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Names and contents of all files below `path`.
fn contents(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let bytes = if path.is_dir() {
            contents(&path).iter().flat_map(|file| file.1.clone()).collect()
        } else {
            fs::read(&path).unwrap()
        };
        all.push((path.display().to_string(), bytes));
    }
    all.sort();
    all
}

#[test]
fn a_command_has_our_files_our_streams_and_a_code_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(at("kept")).unwrap();
    fs::create_dir(at("written")).unwrap();
    fs::write(at("kept/file"), "as it was").unwrap();
    let before = contents(&folder.path().join("kept"));
    let script = format!(
        "cat /etc/passwd; cat; echo to stderr >&2; pwd; \
         echo changed > {kept}/file; echo new > {kept}/new; rm -rf /etc/default; touch /etc/new; \
         cat {kept}/file; echo stays > {written}/new; exit 7",
        kept = at("kept"),
        written = at("written")
    );
    let options = ["--probe", "do_sys_openat2", "--rwdir", &at("written")];
    let input: Vec<u8> = (0..300_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    let Some(output) = run(&options, &["sh", "-c", &script], &input) else { return };
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    let passwd = fs::read("/etc/passwd").unwrap();
    let here = std::env::current_dir().unwrap();
    let after = format!("{}\nchanged\n", here.display());
    assert!(
        output.stdout == [passwd, input, after.into_bytes()].concat(),
        "{} bytes, and:\n{stderr}",
        output.stdout.len()
    );
    assert!(stderr.contains("to stderr\n"), "{stderr}");
    assert!(stderr.contains("filename=\"/etc/passwd\""), "{stderr}");
    assert_eq!(contents(&folder.path().join("kept")), before);
    assert!(!Path::new("/etc/new").exists());
    assert_eq!(fs::read_to_string(at("written/new")).unwrap(), "stays\n");
}

#[test]
fn a_command_that_a_signal_ends_or_that_is_none_says_so() {
    let Some(output) = run(&[], &["sh", "-c", "kill -9 $$"], b"") else { return };
    assert_eq!(output.status.code(), Some(137), "{}", text(&output.stderr));
    let output = run(&[], &["no-such-program", "word"], b"").unwrap();
    assert_eq!(output.status.code(), Some(127));
    let stderr = text(&output.stderr);
    assert!(stderr.contains("vmm: no-such-program cannot be run: No such file or directory"), "{stderr}");
}

#[test]
fn what_cannot_be_is_said_before_the_boot() {
    let cases: [(&[&str], &[&str], &str); 5] = [
        (&["--root", "/nowhere"], &["true"], "cannot share /nowhere: No such file or directory"),
        (&["--rwdir", "/etc/passwd"], &["true"], "cannot share /etc/passwd: Not a directory"),
        (&["--rwdir", "/"], &["true"], "which is the kernel's: name a folder below"),
        (&["--rwdir", "/tmp"], &[], "are for a command in the guest"),
        (&["--initrd", "x"], &["true"], "has an initramfs of its own"),
    ];
    for (options, words, expected) in cases {
        let Some(output) = run(options, words, b"") else { return };
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
}
