//! The Python package, installed as its users install it, with a guest that runs.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use guest_kernels::{Cache, SINCE_7};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tests::kernel::{is_default, under_test};
use tests::pages::Page;
use tests::served::{Served, said, text};

const PACKAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../python");

/// Python with what is built and checked with.
fn python(words: &[&str]) -> Command {
    let mut python = Command::new("python3");
    python.args(words).env("PYTHONPATH", Cache::open().unwrap().python_dir()).stdin(Stdio::null());
    python
}

#[track_caller]
fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", said(output), text(&output.stdout));
    text(&output.stdout)
}

/// Builds a wheel and installs it below `folder`; gives where to.
fn installed(folder: &Path) -> PathBuf {
    let (wheels, site) = (folder.join("wheels"), folder.join("site"));
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    // What is built is left beside the sources.
    let sources = folder.join("sources");
    printed(&Command::new("cp").args(["-r", PACKAGE]).arg(&sources).output().unwrap());
    let build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir"];
    printed(&python(&[&build[..], &[&path(&wheels), &path(&sources)]].concat()).output().unwrap());
    let wheel = fs::read_dir(&wheels).unwrap().next().unwrap().unwrap().path();
    let install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"];
    printed(&python(&[&install[..], &[&path(&site), &path(&wheel)]].concat()).output().unwrap());
    site
}

#[test]
fn its_types_are_what_editors_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let site = installed(folder.path());
    assert!(site.join("vmm/py.typed").exists());
    let cache = folder.path().join("cache");
    let words = ["-m", "mypy", "--strict", "--cache-dir", cache.to_str().unwrap(), "--package", "vmm"];
    let mut check = python(&words);
    let said = printed(&check.current_dir(&site).output().unwrap());
    assert!(said.starts_with("Success"), "{said}");
}

/// A guest that is busy for a long time, with a socket.
fn busy() -> Option<Served> {
    let words = ["run", "--control=guest.sock", "--cpus=2", "--append=loglevel=5 nokaslr workload=mix:300"];
    Served::start(&words, &["guest.sock"])
}

/// What a program prints that runs beside the socket of `guest`.
#[track_caller]
fn says(guest: &Served, program: &str) -> String {
    let site = installed(guest.folder());
    let mut python = Command::new("python3");
    python.args(["-c", program]).env("PYTHONPATH", site).current_dir(guest.folder());
    printed(&python.stdin(Stdio::null()).output().unwrap())
}

#[test]
fn what_the_page_shows_is_what_happens() {
    if !is_default() {
        return;
    }
    let Some(mut guest) = busy() else { return };
    let page = Page::open("docs/python.md");
    let shown = says(&guest, page.python().unwrap());
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines.first().is_some_and(|line| line.contains(" opens ")), "{shown}");
    for part in ["vfs_read is at number ", "cpu 0 is at ", "cpu 1 is at ", "first byte: ", "seen: True"] {
        assert!(lines.iter().any(|line| line.starts_with(part)), "{shown}");
    }
    // The last line of the page's program ends the guest.
    assert_eq!(guest.end().status.code(), Some(0));
}

/// What is left goes on, and what is refused is said.
#[test]
fn hits_are_held_one_by_one_and_the_guest_goes_on() {
    const PROGRAM: &str = r#"
import time, vmm
with vmm.connect("guest.sock") as vm:
    seen = []
    for hit in vm.probe("p do_filp_open", hold=True):
        seen.append(hit.text(hit.word(hit.regs["rsi"])))
        assert hit.task, "nobody runs there"
        assert len(vm.vcpus()) == 2 and vm.counters()["paused"]
        if len(seen) == 20:
            break
    assert all(seen), seen
    assert not vm.counters()["paused"] and not vm.probes()
    try:
        vm.add("vfs_raed")
        raise AssertionError("it was added")
    except vmm.Refused as why:
        assert "vfs_read" in str(why)
    try:
        next(iter(vm.probe("p panic", hold=True, timeout=0.5)))
        raise AssertionError("the guest has panicked")
    except TimeoutError:
        pass
    (reads,) = vm.add("p:reads vfs_read count hist:keys=cpu:name=cpus")
    while not vm.probes()[0].hits:
        time.sleep(0.1)
    assert vm.histograms("cpus")[0]["hits"] > 0
    address = int(vm.call("list")["probes"][0]["address"], 16)
    # Our own bytes are not seen, neither by virtual nor by physical addresses.
    assert vm.read(address, 5) == bytes.fromhex("0f1f440000")
    assert len(vm.read(address, 100_000)) == 100_000
    assert vm.remove(reads)[0].hits > 0
    vm.quit()
    try:
        while True:
            vm.probes()
    except (vmm.Ended, vmm.Refused):
        pass
print("done")
"#;
    let Some(guest) = busy() else { return };
    // It has another name since.
    let open = if under_test().series == SINCE_7.series { "do_file_open" } else { "do_filp_open" };
    assert_eq!(says(&guest, &PROGRAM.replace("do_filp_open", open)), "done\n");
}
