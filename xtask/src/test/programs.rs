//! The test programs of the package `tests`, and the library's examples: each is a static program.

use super::cargo;
use anyhow::{Context as _, ensure};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Those that are run in ways of their own: in the emulated host, for long, or for a kernel that is not tested in full.
const APART: [&str; 6] = ["built", "contract", "differential", "session", "smoke", "soak"];
/// Those of the others that take longest, the longest one first.
const LONGEST: [&str; 8] = ["pages", "help", "cases", "race", "bundles", "fail_nth", "boots", "escape"];

/// All test programs, by their names.
pub(super) struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    /// Builds them.
    pub(super) fn built() -> anyhow::Result<Self> {
        built(cargo(["test", "--package", "tests", "--no-run"]), "test").map(Self)
    }

    /// The program of this name, which runs anywhere.
    pub(super) fn get(&self, name: &str) -> anyhow::Result<&Path> {
        self.0.get(name).map(PathBuf::as_path).with_context(|| format!("cargo built no program `{name}`"))
    }

    /// The names of those that run `vmm` as a user does, which are all that are not run apart. What takes longest comes first.
    pub(super) fn of_the_product(&self) -> Vec<&str> {
        let mut names: Vec<_> =
            self.0.keys().map(String::as_str).filter(|name| !APART.contains(name)).collect();
        names.sort_by_key(|name| LONGEST.iter().position(|long| long == name).unwrap_or(LONGEST.len()));
        names
    }
}

/// Builds the tests of one name: a static program that runs anywhere.
pub(crate) fn test_program(name: &str) -> anyhow::Result<PathBuf> {
    one(cargo(["test", "--package", "tests", "--test", name, "--no-run"]), "test", name)
}

/// Builds an example of the library: a static program as well.
pub(super) fn example(name: &str) -> anyhow::Result<PathBuf> {
    one(cargo(["build", "--package", "vmm", "--example", name]), "example", name)
}

fn one(build: Command, kind: &str, name: &str) -> anyhow::Result<PathBuf> {
    built(build, kind)?.remove(name).with_context(|| format!("cargo built no program `{name}`"))
}

/// The programs of one of cargo's kinds of target that `build` makes, by their names.
fn built(mut build: Command, kind: &str) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let output = build.args(["--message-format", "json"]).output().context("cannot run cargo")?;
    ensure!(output.status.success(), "{build:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let program = |message: serde_json::Value| {
        let target = message.get("target")?;
        let is_kind = target.get("kind")?.as_array()?.iter().any(|known| known == kind);
        let path = message.get("executable")?.as_str().filter(|_| is_kind)?;
        Some((target.get("name")?.as_str()?.to_owned(), PathBuf::from(path)))
    };
    Ok(messages.filter_map(program).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_run_without_being_listed() {
        let names =
            ["linux", "session", "pages", "rules", "help"].map(|name| (name.to_owned(), PathBuf::new()));
        let programs = Programs(names.into());
        assert_eq!(programs.of_the_product(), ["pages", "help", "linux", "rules"]);
        assert!(programs.get("soak").is_err());
    }
}
