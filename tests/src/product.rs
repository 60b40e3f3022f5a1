//! Running the product as a user does, and reading what it said.

use crate::kernel::under_test;
use guest_kernels::console::{EMULATOR_AT_FAULT, complaint, number};
use guest_kernels::initramfs::{ExtraFile, overlay};
use guest_kernels::{Cache, DEFAULT_KERNEL};
use rustix::process::Pid;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::NamedTempFile;

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

/// `vmm` with these words, its input empty and its temporary files in `temporary`. A guest runs the kernel under test, on
/// the host that `VMM_TEST_HOST` names, unless the words name others.
pub fn command(binary: &Path, temporary: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(binary);
    // Which files a program opens, and what it says, depends on the locale.
    command.stdin(Stdio::null()).env("TMPDIR", temporary).env("LC_ALL", "C");
    // Behind the verb: what comes behind `--` is the guest's.
    let (verb, rest) = words.split_at(words.len().min(1));
    command.args(verb);
    let has_kernel =
        matches!(words, ["run" | "count" | "graph" | "profile" | "coverage" | "shake" | "race" | "test", ..]);
    let has_guest = has_kernel || matches!(words, ["bisect" | "replay", ..]);
    let names_kernel = words.iter().any(|word| word.starts_with("--kernel") || *word == "-k");
    // The product finds the default one by itself, as it does for users.
    if has_kernel && !names_kernel && *under_test() != DEFAULT_KERNEL {
        command.arg("--kernel").arg(kernel());
    }
    let names_host = words.iter().any(|word| word.starts_with("--host"));
    if let Some(host) = std::env::var_os("VMM_TEST_HOST").filter(|_| has_guest && !names_host) {
        command.arg("--host").arg(host);
    }
    command.args(rest);
    command
}

/// A program that has run to its end.
pub trait Ended {
    /// What it printed, and how it ended. What the product says of an emulator that has failed its guest is printed, so that
    /// the test says so of itself, whatever it then finds wrong.
    fn ended(self) -> Output;
}

impl Ended for io::Result<Output> {
    #[track_caller]
    fn ended(self) -> Output {
        let output = self.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        said.lines().filter(|line| line.contains(EMULATOR_AT_FAULT)).for_each(|line| println!("{line}"));
        output
    }
}

/// The process that `parent` has started with all these words on its command line, if there is one.
pub fn child(parent: u32, words: &[&str]) -> Option<Pid> {
    let threads = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let children = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let children: Vec<String> = children.collect();
    let has_words = |child: &&str| {
        let said = fs::read_to_string(format!("/proc/{child}/cmdline")).unwrap_or_default();
        words.iter().all(|word| said.contains(word))
    };
    let found = children.iter().flat_map(|all| all.split_whitespace()).find(has_words)?;
    Pid::from_raw(found.parse().ok()?)
}

/// What a run of the guest came to.
pub struct Run {
    /// The exit code.
    pub code: i32,
    /// The guest's console.
    pub console: String,
    /// What the product said.
    pub said: String,
    /// The lines of the recording.
    pub output: Vec<Value>,
    /// Whether the guest's warnings are on its console.
    shows_warnings: bool,
}

/// Runs a guest with these words, and records it.
pub fn run(binary: &Path, words: &[&str]) -> Run {
    with_output(binary, "run", words)
}

/// Runs it with words that it refuses before any guest runs.
pub fn run_in_vain(binary: &Path, words: &[&str]) -> Run {
    let temporary = tempfile::tempdir().unwrap();
    let words = [&["run"], words].concat();
    let run = Run::of(&command(binary, temporary.path(), &words).output().ended());
    assert_eq!(run.code, 2, "{}", run.said);
    run
}

/// Records which functions of a guest with these words run.
pub fn coverage(binary: &Path, words: &[&str]) -> Run {
    with_output(binary, "coverage", words)
}

/// Samples a guest with these words.
pub fn profile(binary: &Path, words: &[&str]) -> Run {
    with_output(binary, "profile", words)
}

/// Guards the kernel of a guest with these words.
pub fn guard(binary: &Path, words: &[&str]) -> Run {
    with_output(binary, "guard", words)
}

fn with_output(binary: &Path, verb: &str, words: &[&str]) -> Run {
    let temporary = tempfile::tempdir().unwrap();
    let hits = temporary.path().join("hits.json");
    let mut all = vec![verb, "--output", hits.to_str().unwrap()];
    all.extend(words);
    let output = command(binary, temporary.path(), &all).output().ended();
    let mut run = Run::of(&output);
    run.shows_warnings = words.iter().any(|words| shows_warnings(words));
    let text = fs::read_to_string(&hits).unwrap_or_default();
    run.output = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    fs::remove_file(&hits).unwrap_or_else(|error| panic!("no output: {error}\n{}", run.said));
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "temporary files are left behind");
    run
}

/// What `vmm report` writes of the recording at `path`, with these words.
#[track_caller]
pub fn report(binary: &Path, path: &Path, words: &[&str]) -> Vec<u8> {
    let output = Command::new(binary).arg("report").arg(path).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The lines of JSON that a run has written to standard output, of which the first is a header.
#[track_caller]
pub fn json_lines(stdout: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(stdout).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.first().map(|line| &line["type"]), Some(&Value::from("header")));
    lines
}

/// Whether this kernel command line has the guest print warnings (level 4): `quiet` does not.
fn shows_warnings(cmdline: &str) -> bool {
    let levels = cmdline.split([' ', '=']).skip_while(|word| *word != "loglevel").nth(1);
    levels.and_then(|level| level.parse::<u8>().ok()).is_some_and(|level| level > 4)
}

impl Run {
    fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            console: text(&output.stdout),
            said: text(&output.stderr),
            output: Vec::new(),
            shows_warnings: false,
        }
    }

    /// Fails the test with everything that was said, unless the guest ended in order, and all probes were armed.
    #[track_caller]
    pub fn assert_success(&self) {
        self.assert_code(0);
    }

    /// Fails the test with everything that was said, unless the run ended with this exit code.
    #[track_caller]
    pub fn assert_code(&self, code: i32) {
        assert_eq!(self.code, code, "console:\n{}\nsaid:\n{}", self.console, self.said);
    }

    /// The lines of the recording that are of this type.
    pub fn of_type(&self, name: &str) -> Vec<&Value> {
        self.output.iter().filter(|line| line["type"] == name).collect()
    }

    /// The number behind `key=` in the workload's line that begins with `line`.
    #[track_caller]
    pub fn workload(&self, line: &str, key: &str) -> u64 {
        let number = number(&self.console, line, key);
        number.unwrap_or_else(|| panic!("no `{line}` with {key} in:\n{}\n{}", self.console, self.said))
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
        self.count("hit", probe)
    }

    /// The same for the returns of `function`.
    #[track_caller]
    pub fn returns(&self, function: &str) -> u64 {
        self.count("return", &format!("{function}%return"))
    }

    #[track_caller]
    fn count(&self, kind: &str, probe: &str) -> u64 {
        let lines = self.output.iter().filter(|o| o["type"] == kind && o["probe"] == probe).count() as u64;
        let summary = self.probe(probe);
        assert_eq!(summary["hits"], lines, "the summary of {probe} and its lines");
        assert_eq!(summary["missed"], 0, "{probe}");
        lines
    }

    /// Fails when the guest's kernel complained, or was too quiet to be heard.
    #[track_caller]
    pub fn assert_clean_log(&self) {
        assert!(
            self.shows_warnings,
            "a guest that has no `loglevel=5` on its command line hides its warnings"
        );
        assert_eq!(complaint(&self.console), None, "{}", self.console);
    }
}

/// The file of the kernel under test.
pub fn kernel() -> &'static Path {
    static KERNEL: OnceLock<PathBuf> = OnceLock::new();
    KERNEL.get_or_init(|| Cache::open().unwrap().kernel(under_test()).unwrap().image)
}

/// The guest's initramfs with more files in it: path, permission bits, contents.
pub fn initrd_with<'a>(files: impl IntoIterator<Item = (&'a str, u32, Vec<u8>)>) -> NamedTempFile {
    let files = files.into_iter().map(|(path, mode, bytes)| ExtraFile { path: path.to_owned(), mode, bytes });
    let base = fs::read(Cache::open().unwrap().initramfs().unwrap()).unwrap();
    let image = NamedTempFile::new().unwrap();
    fs::write(&image, [base, overlay(files).unwrap()].concat()).unwrap();
    image
}

/// A module of the kernel under test that is there for emulated hosts. It may need others.
pub fn host_module(module: &str) -> Vec<u8> {
    let modules = kernel().parent().unwrap().join("modules");
    fs::read(modules.join(format!("{module}.ko")))
        .unwrap_or_else(|_| panic!("no {module} of {}", under_test()))
}

/// A module of the kernel under test, for its guests.
pub fn module(module: &str) -> Vec<u8> {
    let kernel = Cache::open().unwrap().kernel(under_test()).unwrap();
    let path = kernel.guest_module(module);
    fs::read(path.unwrap_or_else(|| panic!("no {module}: run `cargo xtask setup`"))).unwrap()
}
