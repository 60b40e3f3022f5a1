//! Apt: the machine's own, or one apart, with lists and a cache of its own.
//!
//! One apart serves packages of a suite that the machine does not use, or the machine's own suites for a user who may not
//! fetch the machine's lists. Nothing of the machine's apt changes.

use std::cell::OnceCell;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::manifest::Kernel;
use crate::package::Package;

/// How old lists may be.
const FRESH: Duration = Duration::from_secs(24 * 60 * 60);

/// Apt's own download user may not write into a user's cache.
const AS_CALLER: [&str; 2] = ["-o", "APT::Sandbox::User=root"];

/// Why apt did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum AptError {
    /// A program is not there.
    #[error(
        "this machine has no {0}, and Debian's kernels are fetched by apt and dpkg: copy the cache of a Debian machine, or name the file of another kernel for the guest"
    )]
    Missing(&'static str),
    /// A program cannot be started.
    #[error("cannot run {program}")]
    Run {
        /// Its name.
        program: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {message}")]
    Failed {
        /// Its name.
        program: &'static str,
        /// What it said of that.
        message: String,
    },
    /// The package lists could not be fetched in this run.
    #[error("the package lists cannot be fetched: {0}")]
    Lists(String),
    /// A file cannot be written.
    #[error("cannot write apt's own directory")]
    Directory(#[from] io::Error),
    /// Nothing is there after a download.
    #[error("apt downloaded no file of package {0}")]
    NoFile(String),
}

/// An apt that can be asked.
#[derive(Debug)]
pub struct Apt {
    apart: Option<Apart>,
}

/// What one that is apart has of its own.
#[derive(Debug)]
struct Apart {
    dir: PathBuf,
    /// The text of a `.sources` file; without one, the sources are the machine's.
    source: Option<String>,
    /// What came of fetching the lists in this run.
    fetched: OnceCell<Result<(), String>>,
}

impl Apt {
    /// The machine's own.
    #[must_use]
    pub fn of_the_machine() -> Self {
        Self { apart: None }
    }

    /// One with this source, as the text of a `.sources` file, or with the machine's, that keeps everything in `dir`.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn apart(dir: &Path, source: Option<String>) -> Result<Self, AptError> {
        for made in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(made))?;
        }
        let apart = Apart { dir: dir.canonicalize()?, source, fetched: OnceCell::new() };
        if let Some(source) = &apart.source {
            fs::write(apart.source_file(), source)?;
        }
        Ok(Self { apart: Some(apart) })
    }

    /// Whether the lists are so young that nobody need fetch them. The machine's own are its owner's business.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.apart.as_ref().is_none_or(Apart::is_fresh)
    }

    /// Fetches the lists where they are old.
    pub(crate) fn refresh(&self) -> Result<(), AptError> {
        if self.is_fresh() { Ok(()) } else { self.update() }
    }

    /// Fetches the lists of one that is apart, once a run.
    ///
    /// # Errors
    /// When they cannot be fetched; in one run it is tried once.
    pub fn update(&self) -> Result<(), AptError> {
        let Some(apart) = &self.apart else { return Ok(()) };
        let fetched = apart.fetched.get_or_init(|| {
            // Otherwise a source that cannot be reached is a warning.
            let strict = ["-q", "-q", "-o", "APT::Update::Error-Mode=any", "update"];
            self.run("apt-get", |command| command.args(AS_CALLER).args(strict))
                .and_then(|_| Ok(fs::write(apart.stamp(), apart.source_text())?))
                .map_err(|error| error.to_string())
        });
        fetched.clone().map_err(AptError::Lists)
    }

    /// The kernels that apt has images of, as far as it knows without fetching lists.
    ///
    /// # Errors
    /// When it cannot be asked.
    pub fn kernels(&self) -> Result<BTreeSet<Kernel>, AptError> {
        let names = self.run("apt-cache", |command| command.args(["pkgnames", "linux-image-"]))?;
        Ok(names.lines().filter_map(Kernel::of_image).collect())
    }

    /// What apt knows of the newest version of a package, or of the version that is named as `NAME=VERSION`.
    pub(crate) fn show(&self, package: &str) -> Result<String, AptError> {
        self.run("apt-cache", |command| command.args(["show", "--no-all-versions", package]))
    }

    /// Downloads a package of exactly this version into a directory that is made for it.
    pub(crate) fn download(&self, package: &Package, dir: &Path) -> Result<PathBuf, AptError> {
        fs::create_dir_all(dir)?;
        self.run("apt-get", |command| {
            command.args(AS_CALLER).args(["download", &package.with_version()]).current_dir(dir)
        })?;
        let file = fs::read_dir(dir)?.next().transpose()?;
        file.map(|file| file.path()).ok_or_else(|| AptError::NoFile(package.name.clone()))
    }

    fn run(
        &self,
        program: &'static str,
        with: impl FnOnce(&mut Command) -> &mut Command,
    ) -> Result<String, AptError> {
        let options = self.apart.iter().flat_map(Apart::options);
        run(program, |command| with(command.args(options.flat_map(|option| ["-o".to_owned(), option]))))
    }
}

impl Apart {
    fn source_file(&self) -> PathBuf {
        self.dir.join("apart.sources")
    }

    /// Written when the lists have been fetched; holds the source that they are of.
    fn stamp(&self) -> PathBuf {
        self.dir.join("fetched")
    }

    fn source_text(&self) -> &str {
        self.source.as_deref().unwrap_or_default()
    }

    fn is_fresh(&self) -> bool {
        let age = || fs::metadata(self.stamp()).ok()?.modified().ok()?.elapsed().ok();
        age().is_some_and(|age| age < FRESH)
            && fs::read_to_string(self.stamp()).is_ok_and(|source| source == self.source_text())
    }

    /// What differs from the machine's configuration. Its proxies stay.
    fn options(&self) -> Vec<String> {
        let dir = self.dir.display();
        let mut options = vec![
            format!("Dir::State={dir}"),
            format!("Dir::Cache={dir}/cache"),
            // Some machines keep no index of their packages. Making one takes a second.
            "Dir::Cache::pkgcache=pkgcache.bin".to_owned(),
            "Dir::Cache::srcpkgcache=srcpkgcache.bin".to_owned(),
            "Dir::State::Status=/dev/null".to_owned(),
            // A mirror may hold one day for ever. What it holds is signed all the same.
            "Acquire::Check-Valid-Until=false".to_owned(),
            // Packages are all that is looked up.
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false".to_owned(),
        ];
        if self.source.is_some() {
            options.push(format!("Dir::Etc::SourceList={}", self.source_file().display()));
            let none = ["SourceParts", "Preferences", "PreferencesParts"];
            options.extend(none.map(|what| format!("Dir::Etc::{what}=/dev/null")));
        }
        options
    }
}

/// Runs a program to its end and returns what it printed, in the language that is parsed here.
pub(crate) fn run(
    program: &'static str,
    with: impl FnOnce(&mut Command) -> &mut Command,
) -> Result<String, AptError> {
    let output =
        with(Command::new(program).env("LC_ALL", "C")).output().map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => AptError::Missing(program),
            _ => AptError::Run { program, source },
        })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(AptError::Failed { program, message: failure(&String::from_utf8_lossy(&output.stderr)).to_owned() })
}

/// The line that says why, of what a program printed when it failed: apt's first error causes those behind it.
fn failure(said: &str) -> &str {
    let error = said.lines().find_map(|line| line.strip_prefix("E: "));
    error.or_else(|| said.lines().rfind(|line| !line.is_empty())).unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_apt_is_told_what_serves_instead() {
        let missing = run("vmm-no-such-program", |command| command).unwrap_err();
        assert!(matches!(missing, AptError::Missing("vmm-no-such-program")), "{missing}");
    }

    #[test]
    fn the_first_error_is_the_reason() {
        let apt =
            "W: A warning\nE: Failed to fetch a file  Could not resolve a name\nE: Some index files failed\n";
        assert_eq!(failure(apt), "Failed to fetch a file  Could not resolve a name");
        assert_eq!(failure("dpkg-deb: error: a file\n\n"), "dpkg-deb: error: a file");
        assert_eq!(failure(""), "no message");
    }

    #[test]
    fn lists_are_fresh_for_a_day_and_for_their_source() {
        let dir = std::env::temp_dir().join(format!("vmm-apt-{}", std::process::id()));
        let apt = |source: &str| Apt::apart(&dir, Some(source.to_owned())).unwrap();
        assert!(!apt("a").is_fresh(), "never fetched");
        let stamp = dir.join("fetched");
        fs::write(&stamp, "a").unwrap();
        assert!(apt("a").is_fresh());
        assert!(!apt("b").is_fresh(), "the source has changed");
        assert!(!Apt::apart(&dir, None).unwrap().is_fresh(), "the source is the machine's");
        let yesterday = std::time::SystemTime::now() - FRESH;
        fs::File::options().write(true).open(&stamp).unwrap().set_modified(yesterday).unwrap();
        assert!(!apt("a").is_fresh());
        assert!(Apt::of_the_machine().is_fresh());
        fs::remove_dir_all(&dir).unwrap();
    }
}
