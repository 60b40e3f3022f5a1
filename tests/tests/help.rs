//! What `--help` shows as examples works as it is shown.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use guest_kernels::Cache;
use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use tempfile::TempDir;
use tests::kernel::{is_default, under_test};
use tests::pages::words;
use tests::product::{Ended, binary, command, initrd_with, kernel};
use tests::qemu::QemuGuest;

/// Commands whose examples boot a guest each. All others are found in the help.
const WITH_GUESTS: [&str; 9] =
    ["run", "count", "graph", "profile", "guard", "race", "test", "bisect", "replay"];
/// Those of them that can say what they would do. Their examples boot guests with `VMM_LONG` set alone: there are many, and the pages
/// of the documentation have such as well.
const DRY: [&str; 3] = ["run", "count", "graph"];
/// Those that cannot, and of which the pages of the documentation have examples that boot guests: their examples are run with `VMM_LONG`
/// set alone.
const ON_PAGES: [&str; 4] = ["guard", "race", "test", "bisect"];

/// They take the socket of a guest that runs: `tests/tests/control.rs` has one.
const WITH_SOCKET: [&str; 2] = ["ctl", "top"];

/// A command as it is typed, `kernel fetch`, and its help.
struct Command {
    name: String,
    help: String,
}

/// What `vmm` prints to these words in `folder`.
fn vmm(binary: &Path, folder: &Path, words: &[&str]) -> Output {
    let mut command = command(binary, folder, words);
    if words.first() == Some(&"kernel") {
        // Other tests read the cache meanwhile.
        command.env("VMM_CACHE_DIR", folder.join("cache"));
    }
    command.current_dir(folder).output().ended()
}

/// All commands that are shown and have none below them, and `vmm` itself.
fn commands(binary: &Path) -> Vec<Command> {
    let (mut found, mut open) = (Vec::new(), vec![String::new()]);
    while let Some(name) = open.pop() {
        let folder = tempfile::tempdir().unwrap();
        let mut all: Vec<&str> = name.split_whitespace().collect();
        all.push("--help");
        let output = vmm(binary, folder.path(), &all);
        assert_eq!(output.status.code(), Some(0), "{name}");
        let help = String::from_utf8(output.stdout).unwrap();
        let below = section(&help, "Commands:");
        let below = below.iter().filter_map(|line| line.split_whitespace().next());
        let below: Vec<&str> =
            below.filter(|command| *command != "help" && !WITH_SOCKET.contains(command)).collect();
        open.extend(below.iter().map(|command| format!("{name} {command}").trim().to_owned()));
        if below.is_empty() || name.is_empty() {
            found.push(Command { name, help });
        }
    }
    found
}

/// The lines below a heading, without those that go on from the line above.
fn section<'a>(help: &'a str, heading: &str) -> Vec<&'a str> {
    let lines = help.lines().skip_while(|line| *line != heading).skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    lines.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' ')).collect()
}

/// A folder with the files that examples speak of.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let cache = Cache::open().unwrap();
    fs::copy(kernel(), at("bzImage")).unwrap();
    let init = b"#!/bin/busybox sh\nbusybox cat /etc/passwd\nbusybox poweroff -f\n".to_vec();
    fs::copy(initrd_with([("init", 0o755, init)]), at("initrd.img")).unwrap();
    fs::create_dir_all(at("linux/arch/x86/boot")).unwrap();
    fs::copy(kernel(), at("linux/arch/x86/boot/bzImage")).unwrap();
    for module in cache.kernel(under_test()).unwrap().command_modules {
        fs::copy(&module, at("linux").join(module.file_name().unwrap())).unwrap();
    }
    fs::create_dir(at("out")).unwrap();
    let case = "[[test]]\nname = 'a'\nrun = 'true'\n[[test.probe]]\nid = 'open'\nat = 'do_sys_openat2'\nhits = '>= 1'\n";
    fs::write(at("cases.toml"), case).unwrap();
    let setting =
        "[[test]]\nname = 'a setting is there'\nrun = 'test -e /proc/sys/kernel/sched_child_runs_first'\n";
    fs::write(at("setting.toml"), setting).unwrap();
    fs::write(at("kernels"), "# from good to bad\ndebian:6.1\ndebian:6.12\n").unwrap();
    fs::write(at("my_test"), "#!/bin/sh\necho \"$1\" > out/result\n").unwrap();
    fs::set_permissions(at("my_test"), Permissions::from_mode(0o755)).unwrap();
    let come = "i=0; while [ $i -lt 300 ]; do cd /proc; i=$((i + 1)); done";
    let race =
        format!("#!/bin/sh\ntaskset 2 sh -c 'echo go; umask; umask' | taskset 1 sh -c 'read go; {come}'\n");
    fs::write(at("my_race"), race).unwrap();
    fs::set_permissions(at("my_race"), Permissions::from_mode(0o755)).unwrap();
    let pair = "#!/bin/sh\nmkfifo f\nexec 3<>f\n\
        (echo go; cd .; read x <&3; cd .) | (read x; kill -0 $$; echo back >&3; kill -0 $$)\n";
    fs::write(at("my_pair"), pair).unwrap();
    fs::set_permissions(at("my_pair"), Permissions::from_mode(0o755)).unwrap();
    folder
}

/// Runs the examples of the commands that `is_meant`, and fails the test for each that does not do what it shows. An example
/// that names a file which is not in the [`folder`] is one of these.
fn run_examples(is_meant: impl Fn(&str) -> bool) {
    if !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let folder = folder();
    if is_meant("scan") {
        let script = b"echo it is ready\nsleep 1000\n".to_vec();
        let initrd = initrd_with([("script", 0o644, script)]);
        let mut guest = QemuGuest::booted(initrd.path(), "workload=sh:/script", "it is ready");
        fs::rename(guest.dumped(), folder.path().join("guest.core")).unwrap();
    }
    let is_long = env::var_os("VMM_LONG").is_some();
    let is_run = |name: &str| is_meant(name) && (is_long || !ON_PAGES.contains(&name));
    let commands: Vec<_> = commands(&binary).into_iter().filter(|command| is_run(&command.name)).collect();
    assert!(!commands.is_empty());
    let recorded = [
        "run",
        "--probe=vfs_open",
        "--stack",
        "--append=workload=open:3",
        // Workers of the kernel share work as chance has it, and come in another order.
        "--scope=init",
        "--output=hits.json",
        "--bundle=race.bundle",
    ];
    let recorded = vmm(&binary, folder.path(), &recorded);
    assert!(recorded.status.success(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let mut wrong = Vec::new();
    for Command { name, help } in commands {
        let examples = section(&help, "Examples:");
        assert!(!examples.is_empty(), "`vmm {name} --help` has no example");
        for example in examples {
            let typed = example.strip_prefix("vmm ").unwrap_or_else(|| panic!("`{example}` of `vmm {name}`"));
            assert!(typed.starts_with(&name), "`{example}` is shown by `vmm {name}`");
            // What comes out of it may go to another program, which need not be here.
            let mut words = words(typed.split(" | ").next().unwrap());
            let is_dry = DRY.contains(&name.as_str()) && !is_long;
            let named = words.iter().position(|word| *word == "--output");
            if is_dry && let Some(at) = named {
                // Nothing is recorded.
                words.drain(at..(at + 2).min(words.len()));
            }
            if is_dry && !words.contains(&"--dry-run") {
                words.insert(1, "--dry-run");
            }
            let output = vmm(&binary, folder.path(), &words);
            let said = String::from_utf8_lossy(&output.stderr);
            println!("{example}\n{said}");
            if output.status.code() != Some(0) {
                wrong.push(format!("{example}\n{}\n{said}", output.status));
            }
            let file = named.filter(|_| !is_dry).and_then(|at| words.get(at + 1));
            let shown = match file {
                Some(file) => fs::read(folder.path().join(file)).unwrap_or_default(),
                None => [&*output.stdout, &*output.stderr].concat(),
            };
            if shown.is_empty() {
                wrong.push(format!("{example} has shown nothing\n{said}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    let result = fs::read_to_string(folder.path().join("out/result"));
    assert!(!is_meant("run") || !is_long || result.is_ok_and(|result| result == "--fast\n"));
}

#[test]
fn examples_of_commands_with_guests_run() {
    run_examples(|name| WITH_GUESTS.contains(&name));
}

#[test]
fn examples_of_all_other_commands_run() {
    run_examples(|name| !WITH_GUESTS.contains(&name));
}

#[test]
fn definitions_are_understood() {
    if !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let folder = tempfile::tempdir().unwrap();
    let commands = commands(&binary);
    let definitions: Vec<&str> =
        commands.iter().flat_map(|command| section(&command.help, "Definitions:")).collect();
    assert!(definitions.len() >= 5, "{definitions:?}");
    for definition in definitions {
        let output = vmm(&binary, folder.path(), &["run", "--dry-run", "--probe", definition]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{definition}\n{said}");
    }
}
