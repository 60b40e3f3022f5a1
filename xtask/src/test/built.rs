//! Guests of the kernels that `cargo xtask kernels` builds.

use super::kvm::Kvm;
use super::programs::Programs;
use super::step;
use crate::kernels::RECIPES;
use anyhow::ensure;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Runs what works on each, and what is said of the rest. One that is not built is a failure, once the others have been run.
pub(super) fn run(start: Instant, vmm: &Path, kvm: Kvm) -> anyhow::Result<()> {
    let mut tests = Command::new(Programs::built_of(&["built"])?.get("built")?);
    tests.args(["--test-threads", "2", "--show-output"]);
    tests.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests"));
    tests.env("VMM_BIN", vmm).env("VMM_TEST_HOST", kvm.host());
    let mut missing = Vec::new();
    for recipe in RECIPES.iter().filter(|recipe| !recipe.has_known_bug()) {
        match recipe.built()? {
            Some(folder) => drop(tests.env(recipe.variable(), folder)),
            None => missing.push(recipe.name),
        }
    }
    step(start, &format!("kernels that were built, {}", kvm.words()), tests)?;
    let missing = missing.join(" ");
    ensure!(missing.is_empty(), "not built, and so not tested: `cargo xtask kernels {missing}` builds them");
    Ok(())
}
