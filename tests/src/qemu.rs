//! A guest of QEMU's, as it runs where `vmm` is not its monitor.

use crate::product::kernel;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// So long may anything take of such a guest.
const PATIENCE: Duration = Duration::from_secs(180);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// A guest that runs.
pub struct QemuGuest {
    process: Child,
    monitor: BufReader<UnixStream>,
    folder: TempDir,
}

impl QemuGuest {
    /// Boots the kernel under test with this initramfs and command line, and waits until the console has `line`.
    pub fn booted(initrd: &Path, cmdline: &str, line: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let process = Command::new("qemu-system-x86_64")
            .args([
                "-accel",
                "tcg",
                "-cpu",
                "max",
                "-m",
                "256",
                "-nodefaults",
                "-display",
                "none",
                "-no-reboot",
            ])
            .arg("-serial")
            .arg(format!("file:{}", at("console").display()))
            .arg("-qmp")
            .arg(format!("unix:{},server=on,wait=off", at("monitor").display()))
            .arg("-kernel")
            .arg(kernel())
            .arg("-initrd")
            .arg(initrd)
            .arg("-append")
            .arg(format!("console=ttyS0 {cmdline}"))
            .stdin(Stdio::null())
            .spawn()
            .expect("no QEMU: run `cargo xtask setup`");
        let mut monitor = None;
        wait(|| {
            monitor = UnixStream::connect(at("monitor")).ok();
            monitor.is_some()
        });
        let mut guest = Self { process, monitor: BufReader::new(monitor.unwrap()), folder };
        guest.ask("qmp_capabilities", &json!({}));
        let is_there = wait(|| guest.console().lines().any(|found| found.trim_end() == line));
        assert!(is_there, "{line} does not come:\n{}", guest.console());
        guest
    }

    /// What its console has.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.path().join("console")).unwrap_or_default())
            .into_owned()
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Stops it, and writes its memory to a file.
    pub fn dumped(&mut self) -> PathBuf {
        let path = self.folder.path().join("core");
        self.ask("stop", &json!({}));
        self.ask(
            "dump-guest-memory",
            &json!({ "paging": false, "protocol": format!("file:{}", path.display()) }),
        );
        path
    }

    /// Has the monitor do this.
    fn ask(&mut self, command: &str, arguments: &Value) {
        let line = json!({ "execute": command, "arguments": arguments }).to_string();
        self.monitor.get_mut().write_all(line.as_bytes()).unwrap();
        loop {
            let mut answer = String::new();
            assert!(self.monitor.read_line(&mut answer).unwrap() > 0, "QEMU is gone:\n{}", self.console());
            let answer: Value = serde_json::from_str(&answer).unwrap();
            assert!(answer["error"].is_null(), "{command}: {answer}");
            if !answer["return"].is_null() {
                return;
            }
        }
    }
}

impl Drop for QemuGuest {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until it `is_there`, and says whether that has come.
fn wait(mut is_there: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !is_there() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        thread::sleep(PAUSE);
    }
    true
}
