//! A suite on three series of kernels comes to the same verdicts again and again: some 270 guests, with `VMM_LONG`
//! set.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use tests::cases::{CaseVerdict, UNRECORDED, file, keep_from_recording, verdicts};
use tests::kernel::is_default;
use tests::product::{Ended, binary, command};

/// The kernels of the suite.
const KERNELS: [&str; 3] = ["debian:6.1", "debian:6.12", "debian:7"];
/// The cases in the order of their names, and what comes of each.
const CASES: [(&str, &str); 8] = [
    ("a guest that dies fails", "failed"),
    ("a module that nobody loads leaves it open", "inconclusive"),
    ("quick: a forbidden hit fails", "failed"),
    ("quick: a name that is not there is refused", "passed"),
    ("quick: files are opened in order", "passed"),
    (NEWER, "passed"),
    (UNRECORDED, "infrastructure"),
    ("what is called takes no longer than its caller", "passed"),
];
/// The case that 6.1 lacks a function for.
const NEWER: &str = "quick: what only newer kernels have is skipped on others";

/// The product, where such tests are wanted.
fn long() -> Option<PathBuf> {
    binary().filter(|_| std::env::var_os("VMM_LONG").is_some() && is_default())
}

/// What should come of the cases with this in their names.
fn expected(part: &str) -> Vec<CaseVerdict> {
    let of = |kernel: &'static str| {
        CASES.iter().filter(|(name, _)| name.contains(part)).map(move |(name, verdict)| CaseVerdict {
            kernel: kernel.to_owned(),
            name: (*name).to_owned(),
            verdict: if (kernel, *name) == ("debian:6.1", NEWER) { "skipped" } else { verdict }.to_owned(),
        })
    };
    KERNELS.into_iter().flat_map(of).collect()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn two_machines_come_to_the_verdicts_of_the_whole() {
    let Some(binary) = long() else { return };
    let folder = tempfile::tempdir().unwrap();
    let results = ["1", "2"].map(|index| folder.path().join(index));
    let parts = ["1", "2"].map(|index| {
        let output = folder.path().join(index);
        for (kernel, number) in KERNELS.iter().zip([7, 15, 23]) {
            keep_from_recording(&output, number, kernel);
        }
        let (file, output) = (file("series.toml"), output.display().to_string());
        let words = [
            "test",
            file.to_str().unwrap(),
            "--jobs=1",
            "--shard=auto",
            "--format=json",
            "--output",
            &output,
        ];
        let mut part = command(&binary, folder.path(), &words);
        // As GitLab has it.
        part.env("CI_NODE_INDEX", index).env("CI_NODE_TOTAL", "2").stdout(Stdio::piped());
        part.spawn().unwrap()
    });
    let parts = parts.map(|part| part.wait_with_output().ended());
    let run: Vec<usize> = parts.iter().map(|part| verdicts(part).len()).collect();
    assert_eq!(run, [12, 12]);
    let mut merge = Command::new(&binary);
    let merged = merge.args(["test", "--format=json", "--merge"]).args(&results).output().unwrap();
    println!("{}", String::from_utf8_lossy(&merged.stdout));
    assert_eq!(merged.status.code(), Some(1), "{}", said(&merged));
    assert_eq!(verdicts(&merged), expected(""));
}

#[test]
fn its_quick_half_comes_to_the_same_verdicts_twenty_times() {
    let Some(binary) = long() else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = file("series.toml");
    for time in 1..=20 {
        let words = ["test", file.to_str().unwrap(), "quick:", "--format=json"];
        let output = command(&binary, folder.path(), &words).output().ended();
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert_eq!(verdicts(&output), expected("quick:"), "time {time}: {}", said(&output));
        println!("time {time}: the same verdicts of 12 cases");
    }
}
