//! No run of a case that passes fails: five hundred guests, with `VMM_LONG` set.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Output;
use tests::cases::verdicts;
use tests::kernel::is_default;
use tests::product::{Ended, binary, command};

#[test]
fn none_of_500_runs_of_a_case_that_passes_fails() {
    if std::env::var_os("VMM_LONG").is_none() || !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = many(&binary, folder.path());
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let verdicts = verdicts(&output);
    for case in &verdicts {
        *counts.entry(case.verdict.clone()).or_default() += 1;
    }
    println!("{counts:?}");
    assert_eq!(verdicts.len(), 500);
    let is_wrong = |verdict: &&String| !["passed", "infrastructure"].contains(&verdict.as_str());
    assert_eq!(counts.keys().find(is_wrong), None, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        counts.get("passed").is_some_and(|passed| *passed >= 475),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// One case by 500 names: its hits are counted, with values and in order.
fn many(binary: &Path, folder: &Path) -> Output {
    let mut text = String::new();
    for run in 1..=500 {
        text.push_str(&format!("[[test]]\nname = 'run {run}'\n"));
        text.push_str(
            "\
run = 'cat /etc/passwd /etc/group'
[[test.probe]]
id = 'open'
at = 'do_sys_openat2 filename:string if filename == \"/etc/passwd\" || filename == \"/etc/group\"'
args = [{ filename = '/etc/passwd' }, { filename = '/etc/group' }]
[[test.probe]]
id = 'read'
at = 'vfs_read%return'
hits = '>= 2'
[test.order]
sequence = ['open', 'read', 'open', 'read']
",
        );
    }
    let path = folder.join("many.toml");
    fs::write(&path, text).unwrap();
    command(binary, folder, &["test", path.to_str().unwrap(), "--format=json"]).output().ended()
}
