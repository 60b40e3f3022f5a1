//! The test programs of the package `tests`.

use super::cargo;
use anyhow::{Context as _, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Those that are run in ways of their own: in the emulated host, for long, or for a kernel that is not tested in full.
const APART: [&str; 6] = ["built", "contract", "differential", "session", "smoke", "soak"];

/// The names of the programs that run `vmm` as a user does: all others that there are.
pub(super) fn of_the_product() -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/tests"));
    for entry in fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))? {
        let path = entry?.path();
        let is_program =
            path.extension().is_some_and(|extension| extension == "rs") || path.join("main.rs").is_file();
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if is_program && !APART.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Builds the tests of one name: a static program that runs anywhere.
pub(crate) fn test_program(name: &str) -> anyhow::Result<PathBuf> {
    built(cargo(["test", "--package", "tests", "--test", name, "--no-run"]), name)
}

/// Builds an example of the library: a static program as well.
pub(super) fn example(name: &str) -> anyhow::Result<PathBuf> {
    built(cargo(["build", "--package", "vmm", "--example", name]), name)
}

/// The program of this name that `build` makes.
fn built(mut build: Command, name: &str) -> anyhow::Result<PathBuf> {
    let output = build.args(["--message-format", "json"]).output().context("cannot run cargo")?;
    ensure!(
        output.status.success(),
        "building `{name}` failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let program = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message.pointer("/target/name").is_some_and(|target| target == name))
        .find_map(|message| message.get("executable")?.as_str().map(PathBuf::from));
    program.with_context(|| format!("cargo built no program `{name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_program_is_run_without_being_listed() {
        let names = of_the_product().unwrap();
        assert!(["linux", "rules"].iter().all(|name| names.iter().any(|known| known == name)), "{names:?}");
        assert!(!APART.iter().any(|name| names.iter().any(|known| known == name)), "{names:?}");
    }
}
