//! A guest that runs, and whoever comes to it by its sockets.

use crate::product::{Ended, binary, command};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long something may take that takes a moment, or a boot, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(400);

/// The socket by which `vmm ctl` comes.
const CONTROL: &str = "guest.sock";

/// A guest that runs, with files in a folder of its own. Whoever drops it ends the guest, and shows what it has said.
pub struct Served {
    binary: PathBuf,
    folder: TempDir,
    run: Option<Child>,
    sockets: Vec<PathBuf>,
}

impl Served {
    /// One of these words, when all these sockets are there. Gives nothing where there is no product to test.
    pub fn start(words: &[&str], sockets: &[&str]) -> Option<Self> {
        let (binary, folder) = (binary()?, tempfile::tempdir().unwrap());
        let mut run = command(&binary, folder.path(), words);
        let run = run.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let run = Some(run.spawn().unwrap());
        let sockets = sockets.iter().map(|name| folder.path().join(name)).collect();
        let mut guest = Self { binary, folder, run, sockets };
        let begun = Instant::now();
        while !guest.sockets.iter().all(|socket| socket.exists()) {
            assert!(begun.elapsed() < PATIENCE, "there are no sockets");
            if guest.has_ended() {
                panic!("{}", said(&guest.end()));
            }
            thread::sleep(Duration::from_millis(20));
        }
        Some(guest)
    }

    /// The product's binary.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Where its files are.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The file of this name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// `vmm ctl` with these words.
    pub fn ctl(&self, words: &[&str]) -> Command {
        let mut ctl = Command::new(&self.binary);
        ctl.current_dir(self.folder()).args(["ctl", CONTROL]).args(words).stdin(Stdio::null());
        ctl
    }

    /// What `vmm ctl` prints, which succeeds.
    #[track_caller]
    pub fn bytes(&self, words: &[&str]) -> Vec<u8> {
        let output = self.ctl(words).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", said(&output));
        output.stdout
    }

    /// The same as text.
    #[track_caller]
    pub fn says(&self, words: &[&str]) -> String {
        String::from_utf8(self.bytes(words)).unwrap()
    }

    /// What `vmm ctl` says when it is refused.
    #[track_caller]
    pub fn refused(&self, words: &[&str]) -> String {
        let output = self.ctl(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(output.stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    }

    /// Its first probe, as `vmm ctl list` has it.
    #[track_caller]
    pub fn first_probe(&self) -> Value {
        let list: Value = serde_json::from_slice(&self.bytes(&["list", "--json"])).unwrap();
        list["probes"][0].clone()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        self.run.as_mut().is_none_or(|run| run.try_wait().unwrap().is_some())
    }

    /// Waits for its end, which leaves no socket behind.
    #[track_caller]
    pub fn end(&mut self) -> Output {
        let output = self.run.take().unwrap().wait_with_output().ended();
        let left: Vec<_> = self.sockets.iter().filter(|socket| socket.exists()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        output
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // What it has said may explain the failure.
        if let Some(mut run) = self.run.take() {
            let _ = run.kill();
            let output = run.wait_with_output().ended();
            println!("{}\n{}", text(&output.stdout), said(&output));
        }
    }
}

/// Waits until `is_so`.
#[track_caller]
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}: waited in vain");
        thread::sleep(Duration::from_millis(50));
    }
}

/// What a program printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a program said of itself.
pub fn said(output: &Output) -> String {
    text(&output.stderr)
}
