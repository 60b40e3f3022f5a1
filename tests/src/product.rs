//! Running the product as a user does, and reading what it said.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

/// The product's binary, which `cargo xtask test` names.
///
/// Without it there is nothing to test: prints why the test is skipped.
pub fn binary() -> Option<PathBuf> {
    let binary = std::env::var_os("VMM_BIN").map(PathBuf::from);
    if binary.is_none() {
        println!("skipped: VMM_BIN does not name the product; `cargo xtask test` does");
    }
    binary
}

/// `vmm` with these words, its input empty and its temporary files in `temporary`.
pub fn command(binary: &Path, temporary: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(binary);
    command.args(words).stdin(Stdio::null()).env("TMPDIR", temporary);
    command
}

/// What a run of the guest came to.
pub struct Run {
    /// The exit code.
    pub code: i32,
    /// The guest's console.
    pub console: String,
    /// What the product said.
    pub said: String,
    /// The JSON objects of the output file.
    pub output: Vec<Value>,
}

/// Runs a guest with these words, hits as JSON in a file.
pub fn run(binary: &Path, words: &[&str]) -> Run {
    let temporary = tempfile::tempdir().unwrap();
    let hits = temporary.path().join("hits.json");
    let mut all = vec!["run", "--format=json", "--output", hits.to_str().unwrap()];
    all.extend(words);
    let output = command(binary, temporary.path(), &all).output().unwrap();
    let mut run = Run::of(&output);
    let text = fs::read_to_string(&hits).unwrap_or_default();
    run.output = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    fs::remove_file(&hits).unwrap();
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "temporary files are left behind");
    run
}

impl Run {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            console: text(&output.stdout),
            said: text(&output.stderr),
            output: Vec::new(),
        }
    }

    /// Fails the test with everything that was said, unless the guest ended in order.
    #[track_caller]
    pub fn assert_success(&self) {
        assert_eq!(self.code, 0, "console:\n{}\nsaid:\n{}", self.console, self.said);
    }

    /// The number behind `key=` in the workload's line that begins with `line`.
    #[track_caller]
    pub fn workload(&self, line: &str, key: &str) -> u64 {
        let prefix = format!("workload: {line} ");
        let found = self.console.lines().find_map(|l| l.trim().strip_prefix(&prefix));
        let words = found.unwrap_or_else(|| panic!("no `{prefix}` in:\n{}\n{}", self.console, self.said));
        let value = words.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
        value.unwrap_or_else(|| panic!("no {key} in {words}")).parse().unwrap()
    }

    /// The summary's object for `probe`.
    #[track_caller]
    pub fn probe(&self, probe: &str) -> &Value {
        let is = |o: &&Value| o["type"] == "probe" && o["probe"] == probe;
        self.output.iter().find(is).unwrap_or_else(|| panic!("no probe {probe} in:\n{}", self.said))
    }

    /// Hits of `probe` by the summary; the number of lines written is the same, and nothing was missed.
    #[track_caller]
    pub fn hits(&self, probe: &str) -> u64 {
        let lines = self.output.iter().filter(|o| o["type"] == "hit" && o["probe"] == probe).count() as u64;
        let summary = self.probe(probe);
        assert_eq!(summary["hits"], lines, "the summary of {probe} and its lines");
        assert_eq!(summary["missed"], 0, "{probe}");
        lines
    }

    /// Fails when the guest's kernel complained.
    #[track_caller]
    pub fn assert_clean_log(&self) {
        for complaint in ["WARNING:", "BUG:", "Oops", "Call Trace", "ftrace faulted", "soft lockup"] {
            assert!(!self.console.contains(complaint), "{complaint} in:\n{}", self.console);
        }
    }
}

/// The kernels that `cargo xtask setup` has fetched: name and file.
pub fn kernels() -> &'static [(String, PathBuf)] {
    static KERNELS: OnceLock<Vec<(String, PathBuf)>> = OnceLock::new();
    KERNELS.get_or_init(|| {
        let cache = guest_kernels::Cache::open().unwrap();
        guest_kernels::KERNELS
            .iter()
            .map(|kernel| (kernel.name.to_owned(), cache.kernel(kernel.name).unwrap().image))
            .collect()
    })
}
