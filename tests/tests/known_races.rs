//! Races that are known, forced from outside, with `VMM_LONG` set: a window in a module that is built here, and a bug that the kernel had.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;
use tests::kernel::is_default;
use tests::product::{Ended, binary, command};

const ATTEMPTS: u32 = 200;

/// What a run of `vmm` said.
struct Said {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

/// `vmm` in `folder`, with two CPUs and with `options`, which runs the script.
fn attempt(binary: &Path, folder: &TempDir, verb: &str, options: &[&str], script: &[&str]) -> Said {
    let words = [&[verb, "--cpus=2", "--timeout=600"], options, &["--", "sh"], script].concat();
    let output = command(binary, folder.path(), &words).current_dir(folder.path()).output().ended();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Said { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// A variable that `cargo xtask test --long ci-races` sets.
fn named(variable: &str) -> Option<OsString> {
    if std::env::var_os("VMM_LONG").is_none() || !is_default() {
        return None;
    }
    let value = std::env::var_os(variable);
    if value.is_none() {
        println!("skipped: {variable} is not set; `cargo xtask test --long ci-races` does that");
    }
    value
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("modules").join(name)
}

/// A folder with the module `window`, built for the kernel whose headers these are, and the script of the attempts.
fn window(headers: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["window.c", "attempts.sh"] {
        fs::copy(source(name), folder.path().join(name)).unwrap();
    }
    fs::write(folder.path().join("Makefile"), "obj-m := window.o\n").unwrap();
    let mut make = Command::new("make");
    make.arg("-C").arg(headers).arg(format!("M={}", folder.path().display())).arg("modules");
    let made = make.output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    folder
}

/// How many of the attempts came into the window: by chance, with delays by chance, and with an order that is forced.
#[test]
fn a_window_is_met_more_often_with_help() {
    let (Some(headers), Some(binary)) = (named("VMM_KERNEL_HEADERS"), binary()) else { return };
    let folder = window(Path::new(&headers));
    let attempts = ATTEMPTS.to_string();
    let rate = |verb, options: &[&str]| -> (u32, Said) {
        let said = attempt(&binary, &folder, verb, options, &["attempts.sh", &attempts]);
        assert_eq!(said.code, Some(0), "{}\n{}", said.stdout, said.stderr);
        (said.stdout.trim().parse().unwrap(), said)
    };
    let (unaided, _) = rate("run", &[]);
    let delays = ["--seed=7", "--most=2ms", "window:window_take", "window:window_use", "window:window_empty"];
    let (shaken, _) = rate("shake", &delays);
    let order = ["--hold=window:window_use", "--until=window:window_empty%return", "--within=2s"];
    let (held, said) = rate("run", &order);
    println!("of {ATTEMPTS} attempts: {unaided} unaided, {shaken} shaken, {held} held");
    let reached = said.stderr.lines().find(|line| line.contains(": reached ")).unwrap();
    println!("{reached}");
    assert!(held > shaken && shaken > unaided, "{unaided} {shaken} {held}");
    // Who comes to the window waits for the other one. In the rest of the attempts, the other one was there before.
    let came = said.stderr.matches(" held at window:window_use for ").count();
    assert!(held as usize * 10 >= came * 9 && came > 0, "{held} of {came}: {reached}");
}

/// CVE-2024-50010: a file system that is made noexec while a program on it is being opened. The kernel under test has the fix; the
/// other one is built without that.
#[test]
fn a_bug_that_was_fixed_is_forced_in_one_run() {
    let (Some(racy), Some(binary)) = (named("VMM_BUILT_RACY"), binary()) else { return };
    let folder = tempfile::tempdir().unwrap();
    fs::copy(source("noexec.sh"), folder.path().join("noexec.sh")).unwrap();
    let kernel = format!("--kernel={}", racy.to_str().unwrap());
    let order = [
        "--hold=r do_filp_open name=pathname->name:string if name ~ \"*/busybox-that-races\" && comm == \"taskset\"",
        "--until=syscall:mount%return",
        "--within=2s",
    ];
    let splat = "--splat=fail";
    let many = ATTEMPTS.to_string();

    let unaided = attempt(&binary, &folder, "run", &[&kernel, splat], &["noexec.sh", &many]);
    println!("unaided, {ATTEMPTS} attempts: exit code {:?}\n{}", unaided.code, unaided.stderr);
    let forced =
        attempt(&binary, &folder, "run", &[&[&*kernel, splat], &order[..]].concat(), &["noexec.sh", "1"]);
    println!("forced, one attempt: exit code {:?}\n{}", forced.code, forced.stderr);
    assert_eq!(forced.code, Some(123), "{}", forced.stderr);
    assert!(forced.stderr.contains("do_open_execat"), "{}", forced.stderr);
    let fixed = attempt(&binary, &folder, "run", &[&[splat], &order[..]].concat(), &["noexec.sh", "1"]);
    assert_eq!(fixed.code, Some(0), "{}", fixed.stderr);
    for said in [&forced, &fixed] {
        assert!(said.stderr.contains(": reached once"), "{}", said.stderr);
    }
}
