//! The workspace's test programs, and what is built with them: each is a static program.
//!
//! All are built by one command, for all packages. For a package alone cargo takes other features of what the package uses, and builds
//! all of that once more.

use super::cargo;
use anyhow::{Context as _, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The package whose test programs boot guests.
const OF_GUESTS: &str = "tests";
/// Those of them that are run in ways of their own: in the emulated host, for long, in each series, or for a kernel that is not
/// tested in full.
const APART: [&str; 11] = [
    "boots",
    "built",
    "churn",
    "contract",
    "debug_info",
    "differential",
    "optimized",
    "probeable",
    "session",
    "smoke",
    "soak",
];
/// Those of suites of cases and what belongs to them, which boot many guests: a piece of `--long`. The pages of the documentation
/// have an example of each in CI.
pub(super) const OF_SUITES: [&str; 4] = ["bundles", "cases", "fail_nth", "race"];
/// Those of the others that take longest, the longest one first.
const LONGEST: [&str; 8] =
    ["linux", "pages", "command", "uprobes", "exit_codes", "escape", "ftrace", "tracepoints"];

/// What a program is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The unit tests of a crate.
    Unit,
    /// Tests of a file in `tests/`.
    Integration,
    Example,
    /// A program that is no test.
    Binary,
}

#[derive(Debug)]
struct Program {
    /// Where its package is.
    folder: PathBuf,
    kind: Kind,
    name: String,
    path: PathBuf,
}

/// All programs.
pub(super) struct Programs(Vec<Program>);

impl Programs {
    /// Builds them.
    pub(super) fn built() -> anyhow::Result<Self> {
        let all = Self::of(Vec::new())?;
        let has =
            |package: &str| all.0.iter().any(|program| program.is_of(package) && program.kind == Kind::Unit);
        let lacking =
            ["probe-engine", "vmm", "cli", OF_GUESTS, "xtask"].into_iter().find(|package| !has(package));
        ensure!(lacking.is_none(), "cargo built no unit tests of {}", lacking.unwrap_or_default());
        Ok(all)
    }

    /// Builds the test programs of these names alone, and what their packages' tests use.
    pub(super) fn built_of(names: &[&str]) -> anyhow::Result<Self> {
        Self::of(names.iter().flat_map(|name| ["--test", name]).collect())
    }

    fn of(words: Vec<&str>) -> anyhow::Result<Self> {
        let mut build = cargo(["test", "--quiet", "--workspace", "--no-run"]);
        build.args(words).args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
        let output = build.output().context("cannot run cargo")?;
        ensure!(output.status.success(), "{build:?} failed");
        let text = String::from_utf8_lossy(&output.stdout);
        let messages = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        Ok(Self(messages.filter_map(|message| program(&message)).collect()))
    }

    fn one(&self, package: &str, kind: Kind, name: &str) -> anyhow::Result<&Path> {
        let mut all = self.0.iter();
        let found =
            all.find(|program| program.is_of(package) && program.kind == kind && program.name == name);
        found
            .map(|program| program.path.as_path())
            .with_context(|| format!("cargo built no program `{name}`"))
    }

    /// The test program of this name that boots guests, which runs anywhere.
    pub(super) fn get(&self, name: &str) -> anyhow::Result<&Path> {
        self.one(OF_GUESTS, Kind::Integration, name)
    }

    /// An example of the library, which runs anywhere as well.
    pub(super) fn example(&self, name: &str) -> anyhow::Result<&Path> {
        self.one("vmm", Kind::Example, name)
    }

    /// The program that draws instructions from kernels.
    pub(super) fn draw(&self) -> anyhow::Result<&Path> {
        self.one(OF_GUESTS, Kind::Binary, "draw")
    }

    /// The tests that boot no guest, each with what it is called.
    pub(super) fn without_guests(&self) -> impl Iterator<Item = (String, Command)> {
        self.0.iter().filter(|program| program.boots_no_guest()).map(|program| {
            let mut tests = Command::new(&program.path);
            // Guests run beside them.
            tests.arg("--test-threads=2").current_dir(&program.folder);
            let package = program.folder.file_name().unwrap_or_default().display();
            if program.kind == Kind::Unit {
                return (format!("unit tests of {package}: {}", program.name), tests);
            }
            // What they find in kernels is shown.
            tests.arg("--show-output");
            (format!("tests of {package}: {}", program.name), tests)
        })
    }

    /// The names of those that run `vmm` as a user does, which are all that are not run apart. What takes longest comes first.
    pub(super) fn of_the_product(&self) -> Vec<&str> {
        let of_guests = |program: &&Program| program.is_of(OF_GUESTS) && program.kind == Kind::Integration;
        let names = self.0.iter().filter(of_guests).map(|program| program.name.as_str());
        let is_apart = |name: &&str| APART.contains(name) || OF_SUITES.contains(name);
        let mut names: Vec<_> = names.filter(|name| !is_apart(name)).collect();
        names.sort_by_key(|name| {
            (LONGEST.iter().position(|long| long == name).unwrap_or(LONGEST.len()), *name)
        });
        names
    }
}

impl Program {
    fn is_of(&self, package: &str) -> bool {
        self.folder.ends_with(package)
    }

    fn boots_no_guest(&self) -> bool {
        match self.kind {
            Kind::Unit => true,
            Kind::Integration => !self.is_of(OF_GUESTS),
            Kind::Example | Kind::Binary => false,
        }
    }
}

/// The program that cargo has built by this message of its own.
fn program(message: &Value) -> Option<Program> {
    let target = message.get("target")?;
    let path = message.get("executable")?.as_str()?.into();
    let is_test = message.pointer("/profile/test")?.as_bool()?;
    let kind = match target.pointer("/kind/0")?.as_str()? {
        "test" => Kind::Integration,
        "example" => Kind::Example,
        _ if is_test => Kind::Unit,
        "bin" => Kind::Binary,
        _ => return None,
    };
    let folder = Path::new(message.get("manifest_path")?.as_str()?).parent()?.to_owned();
    Some(Program { folder, kind, name: target.get("name")?.as_str()?.to_owned(), path })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(package: &str, kind: &str, name: &str, is_test: bool) -> Option<Program> {
        program(&serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": format!("/w/{package}/Cargo.toml"),
            "target": { "kind": [kind], "name": name },
            "profile": { "test": is_test },
            "executable": format!("/w/target/{name}"),
        }))
    }

    #[test]
    fn each_program_is_run_in_its_way() {
        let of =
            |names: &[&str]| names.iter().filter_map(|name| message("tests", "test", name, true)).collect();
        let mut all: Vec<Program> = of(&["linux", "session", "pages", "tracepoints", "rules", "help"]);
        all.extend(message("probe-engine", "test", "tracepoints", true));
        all.extend(message("probe-engine", "lib", "probe_engine", true));
        all.extend(message("tests", "bin", "draw", false));
        all.extend(message("vmm", "example", "etc_opens", false));
        let programs = Programs(all);
        assert_eq!(programs.of_the_product(), ["linux", "pages", "tracepoints", "help", "rules"]);
        assert!(programs.get("soak").is_err());
        assert!(programs.get("session").is_ok() && programs.example("etc_opens").is_ok());
        assert!(programs.draw().is_ok());
        let names: Vec<_> = programs.without_guests().map(|(name, _)| name).collect();
        assert_eq!(names, ["tests of probe-engine: tracepoints", "unit tests of probe-engine: probe_engine"]);
    }
}
