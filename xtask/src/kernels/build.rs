//! Configuring a kernel, building it, and keeping what is used of it.

use super::{Recipe, folder};
use anyhow::{Context as _, bail, ensure};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

/// What is kept beside the modules.
const KEPT: [&str; 5] =
    ["arch/x86/boot/bzImage", "vmlinux", "System.map", ".config", "include/config/kernel.release"];

impl Recipe {
    /// Builds it from the source in `tree`, and keeps it in `kept`. What an interrupted build has made is used.
    pub(super) fn build(&self, tree: &Path, kept: &Path) -> anyhow::Result<()> {
        let objects = folder()?.join("building").join(self.name);
        fs::create_dir_all(&objects)?;
        let make = Make { recipe: self, tree, objects: &objects };
        let config = make.configure()?;
        let jobs = format!("-j{}", thread::available_parallelism()?);
        make.run(&[&jobs, "bzImage"])?;
        let staging = folder()?.join("building").join(format!("{}.kept", self.name));
        remove(&staging)?;
        if config.lines().any(|line| line == "CONFIG_MODULES=y") {
            make.run(&[&jobs, "modules"])?;
            let to = format!("INSTALL_MOD_PATH={}", staging.display());
            make.run(&[&to, "INSTALL_MOD_STRIP=1", "modules_install"])?;
        }
        for file in KEPT {
            let to = staging.join(file);
            fs::create_dir_all(to.parent().context("a file without a folder")?)?;
            fs::copy(objects.join(file), to).with_context(|| format!("the build has made no {file}"))?;
        }
        fs::rename(&staging, kept).with_context(|| format!("cannot make {}", kept.display()))?;
        remove(&objects)
    }
}

/// `make` for one kernel.
struct Make<'a> {
    recipe: &'a Recipe,
    tree: &'a Path,
    objects: &'a Path,
}

impl Make<'_> {
    /// Makes the configuration and returns it. An option whose needs are not met is dropped by `make` silently: here that is an error.
    fn configure(&self) -> anyhow::Result<String> {
        self.run(self.recipe.base)?;
        let config = self.objects.join(".config");
        // Of two lines about an option, the later one counts.
        fs::write(&config, fs::read_to_string(&config)? + self.recipe.fragment)?;
        self.run(&["olddefconfig"])?;
        let made = fs::read_to_string(&config)?;
        if let Some(option) = unmet(self.recipe.fragment, &made) {
            bail!("{option} cannot be what xtask/kernels/{}.config says", self.recipe.name);
        }
        Ok(made)
    }

    fn run(&self, words: &[&str]) -> anyhow::Result<()> {
        make(self.tree, self.objects, self.recipe.variables, words)
    }
}

/// Runs `make` for the source in `tree`, below all other work of the machine. What it says goes to a log beside `objects`.
pub(super) fn make(tree: &Path, objects: &Path, variables: &[&str], words: &[&str]) -> anyhow::Result<()> {
    let log = objects.with_extension("log");
    let file = File::options().create(true).append(true).open(&log);
    let file = file.with_context(|| format!("cannot write {}", log.display()))?;
    let mut make = Command::new("nice");
    make.args(["-n", "19", "make", "-C"]).arg(tree).arg(format!("O={}", objects.display()));
    make.args(variables).args(words);
    let made = make.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).status();
    let made = made.context("cannot run make")?;
    ensure!(made.success(), "make {} has failed, as {} says", words.join(" "), log.display());
    Ok(())
}

/// The options that a fragment speaks of, each with its line.
pub(super) fn options(fragment: &str) -> impl Iterator<Item = (&str, &str)> {
    fragment.lines().filter_map(|line| {
        let option = match line.strip_prefix("# ") {
            Some(unset) => unset.strip_suffix(" is not set")?,
            None => line.split_once('=')?.0,
        };
        option.starts_with("CONFIG_").then_some((option, line))
    })
}

/// The first option that a configuration has otherwise than the fragment. One that does not exist is not set.
fn unmet<'a>(fragment: &'a str, config: &str) -> Option<&'a str> {
    let is_set =
        |option: &str| config.lines().any(|line| line.split_once('=').is_some_and(|(set, _)| set == option));
    let is_met = |(option, line): &(&str, &str)| match line.starts_with('#') {
        true => !is_set(option),
        false => config.lines().any(|known| known == *line),
    };
    options(fragment).find(|option| !is_met(option)).map(|(option, _)| option)
}

fn remove(folder: &Path) -> anyhow::Result<()> {
    if !folder.exists() {
        return Ok(());
    }
    fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_was_dropped_is_named() {
        const CONFIG: &str = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_CC=m\n";
        assert_eq!(
            unmet("# a comment\nCONFIG_A=y\n# CONFIG_B is not set\n# CONFIG_C is not set\n", CONFIG),
            None
        );
        assert_eq!(unmet("CONFIG_A=y\nCONFIG_B=y\n", CONFIG), Some("CONFIG_B"));
        assert_eq!(unmet("# CONFIG_CC is not set\n", CONFIG), Some("CONFIG_CC"));
        assert_eq!(unmet("CONFIG_CC=y\n", CONFIG), Some("CONFIG_CC"));
    }
}
