//! Guests as debuggers read them: by the protocol of QEMU's monitor, and by dumps.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test support: what goes wrong here is a failed test"
)]

use guest_kernels::Cache;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};
use tests::broken_module::{Bug, broken};
use tests::product::{Ended, binary, command, initrd_with, kernel};
use tests::served::{PATIENCE, Served, said, text, wait_until};

/// The kernel's own mapping of itself, without KASLR (`__START_KERNEL_map`).
const KERNEL_MAP: u64 = 0xffff_ffff_8000_0000;

/// A guest of these words that runs, with both sockets.
fn start(words: &[&str]) -> Option<Served> {
    let words = [&["run", "--control=guest.sock", "--qmp=qmp.sock"], words].concat();
    Served::start(&words, &["guest.sock", "qmp.sock"])
}

/// The status by the control socket.
fn stands_for(guest: &Served) -> Value {
    let mut stream = BufReader::new(UnixStream::connect(guest.path("guest.sock")).unwrap());
    stream.get_mut().write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"status\"}\n").unwrap();
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    serde_json::from_str::<Value>(&line).unwrap()["result"]["stands_for"].take()
}

/// Waits until the guest has booted: its first probe is hit.
fn wait_for_hits(guest: &Served) {
    wait_until("hits", || guest.first_probe()["hits"].as_u64().unwrap() > 0);
}

/// What drgn prints, which runs this script in `folder`.
#[track_caller]
fn drgn(folder: &Path, script: &str) -> String {
    let mut python = Command::new("python3");
    python.current_dir(folder).args(["-c", script]);
    python.env("PYTHONPATH", Cache::open().unwrap().python_dir());
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// A client of QEMU's protocol.
struct Qmp(BufReader<UnixStream>);

impl Qmp {
    fn open(guest: &Served) -> Self {
        let mut client = Self(BufReader::new(UnixStream::connect(guest.path("qmp.sock")).unwrap()));
        assert!(client.next()["QMP"]["version"].is_object());
        client
    }

    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_default()
    }

    fn call(&mut self, command: &str, arguments: Value) -> Value {
        let call = json!({ "execute": command, "arguments": arguments, "id": command });
        // No line ends behind it.
        self.0.get_mut().write_all(call.to_string().as_bytes()).unwrap();
        let answer = self.next();
        assert_eq!(answer["id"], command, "{answer}");
        answer
    }

    /// What the monitor for people prints.
    fn prints(&mut self, line: &str) -> String {
        let answer = self.call("human-monitor-command", json!({ "command-line": line }));
        answer["return"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    fn class(&mut self, command: &str) -> Value {
        self.call(command, json!({}))["error"]["class"].take()
    }
}

#[test]
fn commands_of_the_monitor_are_answered_as_qemu_does() {
    let words = ["--probe=do_sys_openat2", "--cmdline=workload=mix:300 loglevel=5 nokaslr", "--cpus=2"];
    let Some(mut guest) = start(&words) else { return };
    let mut qmp = Qmp::open(&guest);
    assert_eq!(qmp.class("query-status"), "CommandNotFound", "it has not negotiated");
    assert_eq!(qmp.call("qmp_capabilities", json!({}))["return"], json!({}));
    assert_eq!(qmp.call("query-target", json!({}))["return"], json!({ "arch": "x86_64" }));
    assert_eq!(qmp.class("device_add"), "CommandNotFound");
    assert_eq!(qmp.call("query-target", json!({ "all": true }))["error"]["class"], "GenericError");
    assert!(qmp.prints("info mtree -f").contains("  0000000000000000-"));
    assert!(!qmp.prints("gpa2hva 0x0").starts_with("Host virtual address"));
    assert!(qmp.prints("xp /8xb 0xd0000000").contains("Cannot access memory"), "what is ours is not there");
    wait_for_hits(&guest);

    // A jump of ours stands there, and the guest's own nop is seen, by both ways.
    let probe = guest.first_probe();
    assert_eq!(probe["state"], "optimized");
    let address = probe["address"].as_str().unwrap().to_owned();
    let virt = u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap();
    let shown = qmp.prints(&format!("xp /16xb {:#x}", virt - KERNEL_MAP));
    let bytes = guest.bytes(&["read", &address, "16", "--raw"]);
    assert_eq!(bytes[..5], [0x0f, 0x1f, 0x44, 0, 0]);
    let expected: Vec<String> = bytes.iter().map(|byte| format!("0x{byte:02x}")).collect();
    let found: Vec<&str> = shown.split_whitespace().filter(|word| word.starts_with("0x")).collect();
    assert_eq!(found, expected, "{shown}");

    let status = |qmp: &mut Qmp| qmp.call("query-status", json!({}))["return"]["status"].take();
    assert_eq!(status(&mut qmp), "running");
    qmp.call("stop", json!({}));
    assert_eq!((status(&mut qmp), stands_for(&guest)), ("paused".into(), "pause".into()));
    qmp.call("cont", json!({}));
    assert_eq!(status(&mut qmp), "running");
    qmp.call("stop", json!({}));
    drop(qmp);
    wait_until("the guest goes on", || stands_for(&guest).is_null());

    // Whoever sends garbage is told so, and others are served.
    let mut garbage = Qmp::open(&guest);
    garbage.0.get_mut().write_all(b"}\r\n").unwrap();
    assert_eq!(garbage.next()["error"]["class"], "GenericError");
    let mut long = Qmp::open(&guest);
    let _ = long.0.get_mut().write_all(&[b'['; 100 << 10]);
    let mut qmp = Qmp::open(&guest);
    qmp.call("qmp_capabilities", json!({}));
    assert_eq!(qmp.call("quit", json!({}))["return"], json!({}));
    assert_eq!(guest.end().status.code(), Some(0));
}

/// What drgn finds in a dump without debugging information: the kernel's text for such readers, its page tables, and by these its symbols.
const READ: &str = r#"
from drgn import Object
from drgn.helpers.linux.kallsyms import load_vmlinux_kallsyms
prog.register_symbol_finder("kallsyms", load_vmlinux_kallsyms(prog), enable_index=0)
print(prog["UTS_RELEASE"].string_().decode())
print(prog.read(prog.symbol("linux_banner").address, 13).decode())
print(prog.read(prog.symbol("do_sys_openat2").address, 16).hex())
"#;

/// Whole dumps take long. A shorter test has drgn read that of a splat.
#[test]
fn drgn_reads_a_guest_that_runs_and_its_dump() {
    if std::env::var_os("VMM_LONG").is_none() {
        return println!("skipped: VMM_LONG is not set");
    }
    let words = ["--probe=do_sys_openat2", "--cmdline=workload=open:5,idle:3000 loglevel=5", "--cpus=2"];
    let Some(mut guest) = start(&words) else { return };
    wait_for_hits(&guest);
    let probe = guest.first_probe();
    let at = probe["address"].as_str().unwrap();
    // Reading all of the kernel's symbols from a guest that runs takes minutes: this address is known.
    let live = format!(
        "import drgn\nprog = drgn.Program()\nprog.set_qemu_qmp('qmp.sock')\n\
         print(prog['UTS_RELEASE'].string_().decode())\nprint(prog.read({at}, 16).hex())\n"
    );
    let read = drgn(guest.folder(), &live);
    let live: Vec<&str> = read.lines().collect();
    assert!(live[0].starts_with(|first: char| first.is_ascii_digit()), "{read}");

    let folder = guest.folder().to_owned();
    let core = folder.join("core");
    guest.says(&["dump", "core"]);
    assert!(stands_for(&guest).is_null(), "it runs on");
    let file = fs::metadata(&core).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert!(file.blocks() * 512 < file.len(), "pages of zeros take no room");
    let of_core = "import drgn\nprog = drgn.Program()\nprog.set_core_dump('core')\n".to_owned() + READ;
    let dumped = drgn(guest.folder(), &of_core);
    assert_eq!(dumped.lines().collect::<Vec<_>>(), [live[0], "Linux version", live[1]], "as in the guest");
    let threads = "import drgn\nprog = drgn.Program()\nprog.set_core_dump('core')\nprint(prog.flags)\n";
    assert!(drgn(guest.folder(), threads).contains("IS_LINUX_KERNEL"));

    // Nobody has attacked it, and what is ours is not in it.
    let words = ["scan", core.to_str().unwrap(), "--kernel", kernel().to_str().unwrap()];
    let scanned = command(guest.binary(), &folder, &words).output().ended();
    assert_eq!(scanned.status.code(), Some(0), "{}{}", text(&scanned.stdout), said(&scanned));

    // Where somebody else has stopped the guest, it stands still behind a dump as well.
    let mut qmp = Qmp::open(&guest);
    qmp.call("qmp_capabilities", json!({}));
    qmp.call("stop", json!({}));
    guest.says(&["dump", "core"]);
    assert_eq!(stands_for(&guest), "pause");
    guest.refused(&["dump", "nowhere/core"]);
    let refused = guest.refused(&["dump", "."]);
    assert!(refused.contains("it is no file"), "{refused}");
    let left: Vec<_> = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
    qmp.call("quit", json!({}));
    assert_eq!(guest.end().status.code(), Some(0));
}

/// A module whose init warns, and words of a guest that loads it.
fn warning() -> tempfile::NamedTempFile {
    initrd_with([
        ("warn.ko", 0o644, broken(Bug::InterruptsOff, b"warns")),
        ("script", 0o644, b"insmod /warn.ko\necho it went on\n".to_vec()),
    ])
}

#[test]
fn a_guest_stands_still_in_its_warning_until_somebody_lets_it_go() {
    let initrd = warning();
    let words =
        ["--splat=hold", "--initrd", initrd.path().to_str().unwrap(), "--cmdline=workload=sh:/script"];
    let Some(mut guest) = start(&words) else { return };
    wait_until("a report", || stands_for(&guest) == "splat");
    let stack = guest.says(&["stack"]);
    assert!(
        stack.contains("add_taint") && stack.contains("do_one_initcall"),
        "its CPU is still there:\n{stack}"
    );
    // Whoever looks and goes does not let it go on.
    guest.says(&["dump", "core"]);
    assert_eq!(stands_for(&guest), "splat");
    // Its kernel warns more than once, and stands still each time.
    let begun = Instant::now();
    while !guest.has_ended() {
        assert!(begun.elapsed() < PATIENCE, "it does not go on");
        guest.ctl(&["resume"]).output().unwrap();
        thread::sleep(Duration::from_millis(200));
    }
    let output = guest.end();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("the guest stands still"), "{}", said(&output));
    assert!(text(&output.stdout).contains("it went on"));
}

#[test]
fn the_first_splat_leaves_the_guests_memory() {
    let Some(binary) = binary() else { return };
    let (initrd, folder) = (warning(), tempfile::tempdir().unwrap());
    let core = folder.path().join("core");
    let run = |options: &[&str]| {
        let words = ["run", "--initrd", initrd.path().to_str().unwrap(), "--cmdline=workload=sh:/script"];
        command(&binary, folder.path(), &[&words, options].concat()).output().ended()
    };
    let output = run(&["--splat=dump", "--vmcore", core.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("the guest's memory at its first splat is in"), "{}", said(&output));
    assert!(text(&output.stdout).contains("it went on"));
    let of_core = "import drgn\nprog = drgn.Program()\nprog.set_core_dump('core')\n".to_owned() + READ;
    assert!(drgn(folder.path(), &of_core).contains("\nLinux version\n"));
    for (options, words) in [
        (&["--splat=hold"][..], "nobody could let the guest go on"),
        (&["--splat=dump"], "--vmcore FILE says where"),
        (&["--vmcore=core"], "--vmcore is for --splat dump"),
    ] {
        let refused = run(options);
        assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
        assert!(said(&refused).contains(words), "{}", said(&refused));
    }
}
