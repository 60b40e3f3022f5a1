//! Guests of the kernels that `cargo xtask kernels` builds.

use super::kvm::Kvm;
use super::pool::{Job, side_by_side};
use super::programs::Programs;
use crate::kernels::RECIPES;
use anyhow::ensure;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// What works on each, and what debuggers find in one of them.
const PROGRAMS: [&str; 2] = ["built", "debug_info"];

/// Runs what works on each, and what is said of the rest. One that is not built is a failure, once the others have been run.
pub(super) fn run(start: Instant, vmm: &Path, kvm: Kvm) -> anyhow::Result<()> {
    let mut folders = Vec::new();
    let mut missing = Vec::new();
    for recipe in RECIPES.iter().filter(|recipe| !recipe.has_known_bug()) {
        match recipe.built()? {
            Some(folder) => folders.push((recipe.variable(), folder)),
            None => missing.push(recipe.name),
        }
    }
    let programs = Programs::built_of(&PROGRAMS)?;
    let job = |name: &&str| {
        let mut tests = Command::new(programs.get(name)?);
        tests.args(["--test-threads", "2", "--show-output"]);
        tests.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests"));
        tests.env("VMM_BIN", vmm).env("VMM_TEST_HOST", kvm.host()).envs(folders.iter().cloned());
        Ok(Job::new(format!("{name}: kernels that were built, {}", kvm.words()), tests))
    };
    let jobs = PROGRAMS.iter().map(job).collect::<anyhow::Result<_>>()?;
    side_by_side(start, jobs)?;
    let missing = missing.join(" ");
    ensure!(missing.is_empty(), "not built, and so not tested: `cargo xtask kernels {missing}` builds them");
    Ok(())
}
