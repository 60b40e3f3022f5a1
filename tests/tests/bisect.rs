//! `vmm bisect` with guests: commits that are built, what is kept of them, and failures that come seldom.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use guest_kernels::Cache;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};
use tests::kernel::is_default;
use tests::product::{Ended, binary, command};

/// A setting that 6.1 has and later kernels do not.
const SETTING: &str = "/proc/sys/kernel/sched_child_runs_first";

/// Runs git in `tree`.
fn git(tree: &Path, words: &[&str]) -> String {
    let mut git = Command::new("git");
    git.arg("-C").arg(tree).args(["-c", "user.name=a", "-c", "user.email=a@b"]).args(words);
    let output = git.output().unwrap();
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// A tree of which each commit says which kernel its build leaves, as `v0`, `v1`...
fn tree(folder: &Path, kernels: &[&str]) {
    git(folder, &["init", "--quiet", "--initial-branch=main"]);
    for (n, kernel) in kernels.iter().enumerate() {
        fs::write(folder.join("kernel"), kernel).unwrap();
        git(folder, &["add", "kernel"]);
        git(folder, &["commit", "--quiet", "-m", &format!("the kernel {kernel}")]);
        git(folder, &["tag", &format!("v{n}")]);
    }
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_first_bad_commit_is_one_of_those_that_cannot_be_told_apart_and_the_state_knows_it() {
    if !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [linux, out, builds, state] =
        ["linux", "out", "builds", "state.json"].map(|name| folder.path().join(name));
    fs::create_dir(&linux).unwrap();
    tree(&linux, &["6.1", "none", "6.12"]);
    let kernels = Cache::open().unwrap().root().join("kernels");
    let build = format!(
        "cat kernel >> {}; rm -rf {out}; cp -r {}/$(cat kernel) {out}",
        builds.display(),
        kernels.display(),
        out = out.display()
    );
    let (built, state_word) = (out.join("vmlinuz"), state.to_str().unwrap());
    let bisect = |bad: &str| {
        let words =
            ["bisect", "--good=v0", "--bad", bad, "--tree", linux.to_str().unwrap(), "--build", &build];
        let more = ["--built", built.to_str().unwrap(), "--state", state_word, "--", "test", "-e", SETTING];
        command(&binary, folder.path(), &[&words[..], &more].concat()).output().ended()
    };
    let first = bisect("v2");
    let (told, words) = (stdout(&first), said(&first));
    assert_eq!(first.status.code(), Some(125), "{told}{words}");
    let titles: Vec<String> =
        ["v0", "v1", "v2"].iter().map(|tag| git(&linux, &["log", "-1", "--format=%h %s", tag])).collect();
    for line in [
        format!("bad end   {}  bad: failed in 1 of 1 run: its exit code is 1, and not 0", titles[2]),
        format!("good end  {}  good: passed in 1 run", titles[0]),
        format!("  {}", titles[1]),
        format!("  {}", titles[2]),
        "fingerprint: its exit code is 1, and not 0".to_owned(),
    ] {
        assert!(told.lines().any(|told| told == line), "`{line}` is not in\n{told}{words}");
    }
    let skipped = format!("step 1    {}  skipped: its build failed", titles[1]);
    assert!(told.lines().any(|line| line.starts_with(&skipped)), "{told}");
    // The tree is as it was.
    assert_eq!(git(&linux, &["symbolic-ref", "--short", "HEAD"]), "main");
    let kept: Value = serde_json::from_slice(&fs::read(&state).unwrap()).unwrap();
    let outcomes: Vec<&str> =
        kept["runs"].as_array().unwrap().iter().map(|run| run["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["failed", "passed", "untestable"]);

    assert_eq!(fs::read_to_string(&builds).unwrap(), "6.126.1none");

    // Nothing is built or run again.
    let again = bisect("v2");
    assert_eq!((again.status.code(), stdout(&again)), (Some(125), told));
    assert!(said(&again).contains("3 runs are known"), "{}", said(&again));
    assert_eq!(fs::read_to_string(&builds).unwrap(), "6.126.1none");
    assert_eq!(serde_json::from_slice::<Value>(&fs::read(&state).unwrap()).unwrap(), kept);

    // It answers no other question.
    let other = bisect("v1");
    assert_eq!(other.status.code(), Some(2), "{}", said(&other));
    assert!(said(&other).contains("the state of another question"), "{}", said(&other));
    fs::write(linux.join("kernel"), "7").unwrap();
    let changed = bisect("v2");
    assert_eq!(changed.status.code(), Some(2), "{}", said(&changed));
    assert!(said(&changed).contains("are changed"), "{}", said(&changed));
}

#[test]
fn mistakes_are_one_sentence_and_nothing_is_run() {
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cases = folder.path().join("cases.toml");
    let case = |name: &str| format!("[[test]]\nname = '{name}'\nrun = 'true'\n");
    fs::write(&cases, case("a") + &case("b")).unwrap();
    let cases = cases.to_str().unwrap();
    for (words, says) in [
        (&["--kernels=debian:6.1", "--", "true"][..], "two kernels or more"),
        (&["--kernels=debian:6.1,debian:6.12,debian:6.1", "--", "true"], "debian:6.1 twice"),
        (&["--kernels=debian:6.1,no/such", "--", "true"], "there is no no/such"),
        (&["--kernels=debian:6.1,debian:6.12", cases], "name one case with --test: `a`, `b`"),
        (&["--kernels=debian:6.1,debian:6.12", cases, "--test=c"], "no case of the name `c`"),
        (&["--kernels=debian:6.1,debian:6.12", "--confidence=95", "--", "true"], "from 0.5 to less than 1"),
        (&["--kernels=debian:6.1,debian:6.12"], "FILE"),
        (&["--good=v0", "--", "true"], "--bad"),
        (&["--good=v0", "--bad=v1", "--build=make", "--tree=/no/such", "--", "true"], "cannot read /no/such"),
    ] {
        let output = command(&binary, folder.path(), &[&["bisect"], words].concat()).output().ended();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(says), "{words:?}: {}", said(&output));
    }
}

/// Some eighty guests, with `VMM_LONG` set.
#[test]
fn a_failure_of_every_second_run_is_found_among_eight_kernels() {
    if std::env::var_os("VMM_LONG").is_none() || !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let kernels = Cache::open().unwrap().root().join("kernels");
    let mut list = String::new();
    for n in 1..=8 {
        let name = folder.path().join(format!("k{n}"));
        // Two kernels by eight names: the sixth is the first one without the setting.
        symlink(kernels.join(if n < 6 { "6.1" } else { "6.12" }), &name).unwrap();
        list.push_str(&format!("{}\n", name.join("vmlinuz").display()));
    }
    let file = folder.path().join("list");
    fs::write(&file, list).unwrap();
    let kernels = format!("--kernels=@{}", file.display());
    let test = format!("test -e {SETTING} || [ $(od -An -N1 -tu1 /dev/urandom) -lt 128 ]");
    let words = ["bisect", &kernels, "--confidence=0.999", "--", "sh", "-c", &test];
    let output = command(&binary, folder.path(), &words).output().ended();
    let told = stdout(&output);
    println!("{told}");
    assert_eq!(output.status.code(), Some(0), "{told}{}", said(&output));
    let first = format!("{}/vmlinuz is the first bad kernel", folder.path().join("k6").display());
    assert!(told.contains(&first), "{told}");
    let sure = told.lines().find_map(|line| line.strip_prefix("confidence: ")).unwrap();
    assert!(sure.parse::<f64>().unwrap() >= 0.999, "{told}");
}
