//! The product's one file, alone in a fresh folder, with nothing in its cache, and run by an ordinary user.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use guest_kernels::DEFAULT_KERNEL;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;
use tests::kernel::is_default;
use tests::pages::Page;
use tests::product::binary;

/// Who runs the program where the tests are root's.
const NOBODY: u32 = 65534;

/// A folder that has a copy of the program, its cache, and nothing else.
struct Alone(TempDir);

impl Alone {
    fn new(binary: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Not by this process: another test's child would hold the file open for writing, and Linux would not run it.
        let copied = Command::new("cp").args([binary, &folder.path().join("vmm")]).status().unwrap();
        assert!(copied.success());
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        if is_root() {
            chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        Self(folder)
    }

    /// The program with these words, and nothing of our environment.
    fn command(&self, words: &[&str]) -> Command {
        let folder = self.0.path();
        let mut command = Command::new(folder.join("vmm"));
        command.args(words).current_dir(folder).stdin(Stdio::null()).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("TMPDIR", folder).env("VMM_CACHE_DIR", folder.join("cache"));
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    /// What it says when it refuses these words.
    fn refusal(&self, words: &[&str], path: &Path) -> String {
        let output = self.command(words).env("PATH", path).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
        said
    }
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| std::os::unix::fs::MetadataExt::uid(&process) == 0)
}

#[test]
fn what_the_readme_shows_of_it_is_all_it_takes() {
    if !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let examples = Page::open("README.md").examples();
    let examples: Vec<_> = examples.into_iter().filter(|example| example.program == "./vmm").collect();
    assert!(!examples.is_empty());
    let alone = Alone::new(&binary);
    for example in examples {
        let words: Vec<&str> = example.words.iter().map(String::as_str).collect();
        let output = alone.command(&words).output().unwrap();
        example.assert_printed_by(&output);
    }
    let listed = alone.command(&["kernel", "list"]).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let line = |name: &str| listed.lines().find(|line| line.split_whitespace().next() == Some(name)).unwrap();
    assert!(line(&DEFAULT_KERNEL.to_string()).contains("linux-image-6.12."), "{listed}");
    assert!(line("6.1").contains("not fetched"), "{listed}");
}

#[test]
fn a_series_that_debian_does_not_have_is_refused_with_those_that_it_has() {
    let Some(binary) = binary() else { return };
    let output = Alone::new(&binary).command(&["kernel", "fetch", "2.6"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let refusal = said.lines().last().unwrap();
    let offered = refusal.split_once("kernel 2.6: no image of it is offered, but of ").unwrap().1;
    for name in ["6.12", "6.12-rt", "6.12-amd64"] {
        assert!(offered.split(", ").any(|kernel| kernel == name), "{said}");
    }
}

#[test]
fn what_it_lacks_is_said_in_one_sentence() {
    let Some(binary) = binary() else { return };
    let alone = Alone::new(&binary);
    let empty = tempfile::tempdir().unwrap();
    let usual = Path::new("/usr/bin:/bin");
    let nothing_to_run = alone.refusal(&["run", "-p", "do_sys_openat2"], usual);
    assert!(
        nothing_to_run.contains("give a command behind --, or an initramfs with --initrd"),
        "{nothing_to_run}"
    );
    let no_apt = alone.refusal(&["kernel", "fetch", "6.12"], empty.path());
    assert!(no_apt.contains("this machine has no apt-cache"), "{no_apt}");
    let no_build = alone.refusal(&["symbols", "-k", empty.path().to_str().unwrap()], usual);
    assert!(no_build.contains("neither arch/x86/boot/bzImage nor vmlinux is there"), "{no_build}");
    let no_qemu = alone.refusal(&["host", "prepare"], empty.path());
    assert!(no_qemu.contains("install the package qemu-system-x86"), "{no_qemu}");
    for words in [&["run", "--kernel", "debian:bookworm"][..], &["kernel", "fetch", "bookworm"]] {
        let output = alone.command(words).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("is named by its series, as 6.12"), "{said}");
    }
    let cached = fs::read_dir(alone.0.path().join("cache/kernels")).map_or(0, Iterator::count);
    assert_eq!(cached, 0, "something was fetched");
}
