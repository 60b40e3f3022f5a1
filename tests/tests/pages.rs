//! What the pages show is what happens.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test support: what goes wrong here is a failed test")]

use std::fs;
use std::process::Command;
use tests::kernel::is_default;
use tests::pages::{Example, Page};
use tests::product::{Ended, binary, command};

/// A test for each of these pages, by its name.
macro_rules! pages {
    ($($test:ident: $name:literal,)*) => {
        const TESTED: &[&str] = &[$($name),*];
        $(#[test] fn $test() { check($name); })*
    };
}

pages! {
    readme: "README.md",
    bisect: "docs/bisect.md",
    bundles: "docs/bundles.md",
    commands: "docs/commands.md",
    errands: "docs/errands.md",
    guard: "docs/guard.md",
    injection: "docs/injection.md",
    language: "docs/language.md",
    orders: "docs/orders.md",
    rules: "docs/rules.md",
    testing: "docs/testing.md",
    tracepoints: "docs/tracepoints.md",
    programs: "docs/programs.md",
    tutorial: "docs/tutorial.md",
}

/// Runs the commands of a page in order, in one folder of their own, and reads its definitions.
fn check(name: &str) {
    if !is_default() {
        return;
    }
    let Some(binary) = binary() else { return };
    let page = Page::open(name);
    let folder = tempfile::tempdir().unwrap();
    if let Some(cases) = page.cases() {
        fs::write(folder.path().join("cases.toml"), cases).unwrap();
    }
    if let Some(rules) = page.rules() {
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
    }
    if let Some(source) = page.source() {
        fs::write(folder.path().join("greet.c"), source).unwrap();
    }
    for example in page.examples().iter().filter(|example| is_run_here(example)) {
        let words: Vec<&str> = example.words.iter().map(String::as_str).collect();
        let mut command = match &*example.program {
            "vmm" => command(&binary, folder.path(), &words),
            program => {
                let mut command = Command::new(program);
                command.args(&words);
                command
            }
        };
        // A command opens more files where a language is set.
        let output = command.current_dir(folder.path()).env("LC_ALL", "C").output().ended();
        example.assert_printed_by(&output);
    }
    if page.definitions().is_empty() {
        return;
    }
    let file = folder.path().join("probes");
    fs::write(&file, page.definitions()).unwrap();
    let words = ["run", "--dry-run", "--probes", file.to_str().unwrap()];
    let output = command(&binary, folder.path(), &words).output().ended();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Those of the program alone, of a kernel that was built, and of a guest that runs, have tests of their own.
fn is_run_here(example: &Example) -> bool {
    ["vmm", "cc"].contains(&&*example.program) && !example.needs_build() && !example.needs_guest()
}

#[test]
fn every_page_that_shows_something_is_tested() {
    let shows = |page: &Page| page.examples().iter().any(is_run_here) || !page.definitions().is_empty();
    for page in Page::all().into_iter().filter(shows) {
        assert!(TESTED.contains(&page.name.as_str()), "add `{}` to the pages of this test", page.name);
    }
}

#[test]
fn every_link_leads_somewhere() {
    for page in Page::all() {
        assert_eq!(page.broken_links(), [""; 0], "{}", page.name);
    }
}

#[test]
fn every_path_of_the_architecture_is_there() {
    assert_eq!(Page::open("ARCHITECTURE.md").missing_paths(), [""; 0]);
}
