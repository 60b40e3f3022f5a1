//! `cargo xtask kernels`: kernels as people build them, which no distribution has.
//!
//! What is kept of a build lies as `make` puts it, so that `vmm run --kernel DIR` finds it:
//!
//! ```text
//! built/NAME-VERSION-HASH/    arch/x86/boot/bzImage, vmlinux, System.map, .config, lib/modules
//! built/source/               the sources, by package and version
//! built/building/NAME/        where `make` works; removed when it is done
//! built/building/NAME.source/ the source without a fix; removed when it is done
//! built/building/NAME.log     what it said
//! built/gdb-scripts/RELEASE/  a kernel's own scripts for gdb
//! ```

mod build;
mod fix;
pub(crate) mod gdb_scripts;
mod source;

use anyhow::Context as _;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use fix::{EXEC_WARNS, Fix};
use guest_kernels::Cache;
use sha2::{Digest, Sha256};
use source::Source;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

/// A kernel that is built here.
pub(crate) struct Recipe {
    pub(crate) name: &'static str,
    source: Source,
    /// What chooses the compiler.
    variables: &'static [&'static str],
    /// The configurations of the kernel's own that it begins with.
    base: &'static [&'static str],
    /// The options that differ, each as it must be in the end: `xtask/kernels/NAME.config`.
    fragment: &'static str,
    /// The fix that is taken back, if it is a kernel with an old bug.
    taken_back: Option<Fix>,
}

/// All of them, the quickest one first.
pub(crate) const RECIPES: &[Recipe] = &[
    Recipe {
        name: "tiny",
        source: Source::Newest,
        variables: &[],
        base: &["tinyconfig"],
        fragment: include_str!("../kernels/tiny.config"),
        taken_back: None,
    },
    Recipe {
        name: "clang",
        source: Source::Package("linux-source-6.12"),
        variables: &["LLVM=-19"],
        base: &["tinyconfig"],
        fragment: include_str!("../kernels/clang.config"),
        taken_back: None,
    },
    Recipe {
        name: "defconfig",
        source: Source::Package("linux-source-6.12"),
        variables: &[],
        base: &["defconfig", "kvm_guest.config"],
        fragment: include_str!("../kernels/defconfig.config"),
        taken_back: None,
    },
    Recipe {
        name: "racy",
        source: Source::Package("linux-source-6.12"),
        variables: &[],
        base: &["tinyconfig"],
        fragment: include_str!("../kernels/racy.config"),
        taken_back: Some(EXEC_WARNS),
    },
];

/// What building needs beside a compiler.
const NEEDED: [(&str, &str); 6] = [
    ("bc", "building kernels"),
    ("flex", "building kernels"),
    ("bison", "building kernels"),
    ("libelf-dev", "building kernels"),
    ("libssl-dev", "building kernels"),
    ("dwarves", "types of kernels that are built"),
];

/// What building by clang needs.
const LLVM: [(&str, &str); 3] =
    [("clang-19", "the kernel of clang"), ("lld-19", "its linker"), ("llvm-19", "its tools")];

/// Which kernels.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Those to build; all when none is named
    #[arg(value_name = "NAME", value_parser = names())]
    which: Vec<&'static Recipe>,
}

fn names() -> impl TypedValueParser<Value = &'static Recipe> {
    PossibleValuesParser::new(RECIPES.iter().map(|recipe| PossibleValue::new(recipe.name)))
        .try_map(|name| RECIPES.iter().find(|recipe| recipe.name == name).ok_or("no such kernel"))
}

/// Builds those that are not there in this version and configuration.
///
/// # Errors
/// When one cannot be built; those before it stay.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let start = Instant::now();
    let all: Vec<&Recipe> = RECIPES.iter().collect();
    let which = if options.which.is_empty() { &all } else { &options.which };
    which.iter().try_for_each(|recipe| {
        recipe.bring(start).with_context(|| format!("kernel {} cannot be built", recipe.name))
    })
}

impl Recipe {
    /// Where it is, of whatever version, when it has been built as it is configured today.
    pub(crate) fn built(&self) -> anyhow::Result<Option<PathBuf>> {
        let (prefix, suffix) = (format!("{}-", self.name), format!("-{}", self.hash()));
        let entries = fs::read_dir(folder()?).into_iter().flatten().flatten();
        let named = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.starts_with(&prefix) && name.ends_with(&suffix)
        });
        let newest = named.max_by_key(|entry| entry.metadata().and_then(|found| found.modified()).ok());
        Ok(newest.map(|entry| entry.path()))
    }

    /// Whether it has a bug that was fixed: it is for the test of that bug alone.
    pub(crate) fn has_known_bug(&self) -> bool {
        self.taken_back.is_some()
    }

    /// The environment variable that names it to tests.
    pub(crate) fn variable(&self) -> String {
        format!("VMM_BUILT_{}", self.name.to_uppercase())
    }

    /// Of all that its configuration is made of.
    fn hash(&self) -> String {
        let words = [self.base, self.variables].concat().join(" ");
        let before = self.taken_back.as_ref().map_or("", |fix| fix.before);
        let mut hash = format!("{:x}", Sha256::digest(format!("{words}\n{}{before}", self.fragment)));
        hash.truncate(12);
        hash
    }

    /// Builds it, unless it is there.
    pub(crate) fn bring(&self, start: Instant) -> anyhow::Result<()> {
        crate::setup::install(&NEEDED)?;
        if !self.variables.is_empty() {
            crate::setup::install(&LLVM)?;
        }
        let notice = |line: &str| say(start, self.name, line);
        let package = self.source.offered(&notice)?;
        let kept = folder()?.join(format!("{}-{}-{}", self.name, package.version, self.hash()));
        if kept.is_dir() {
            notice(&format!("{} is current", package.version));
            return Ok(());
        }
        let tree = package.unpacked(&folder()?.join("source"), &notice)?;
        notice(&format!("building {}", package.version));
        let begun = Instant::now();
        match &self.taken_back {
            None => self.build(&tree, &kept)?,
            Some(fix) => {
                let without = folder()?.join("building").join(format!("{}.source", self.name));
                fix.take_back(&tree, &without)?;
                self.build(&without, &kept)?;
                fs::remove_dir_all(&without)?;
            }
        }
        let minutes = begun.elapsed().as_secs_f32() / 60.0;
        notice(&format!("built in {minutes:.0} minutes, in {}", kept.display()));
        Ok(())
    }
}

/// The folder of all builds.
fn folder() -> anyhow::Result<PathBuf> {
    Ok(Cache::open()?.root().join("built"))
}

fn say(start: Instant, name: &str, line: &str) {
    // Whoever reads this may have seen enough; the work goes on.
    let _ = writeln!(std::io::stdout(), "kernels: [{:6.1} s] {name}: {line}", start.elapsed().as_secs_f32());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_says_each_option_once() {
        for recipe in RECIPES {
            let mut options: Vec<_> = build::options(recipe.fragment).map(|(option, _)| option).collect();
            let all = options.len();
            options.sort_unstable();
            options.dedup();
            assert_eq!(options.len(), all, "{}", recipe.name);
        }
    }

    #[test]
    fn another_configuration_is_another_build() {
        let hashes: std::collections::BTreeSet<_> = RECIPES.iter().map(Recipe::hash).collect();
        assert_eq!(hashes.len(), RECIPES.len());
    }
}
