//! `vmm host exec`: a program of this machine inside the emulated host.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test support: what goes wrong here is a failed test"
)]

use std::env;
use std::fs;
use tests::product::{binary, command};

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
    let output = command(&binary, &env::temp_dir(), &words).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("a=b=from outside\n2"), "{said}\n{errors}");
    assert_eq!(output.status.code(), Some(0), "{said}\n{errors}");
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
        let output = command(&binary, &env::temp_dir(), &words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(says), "{said}");
    }
}
