//! Sources of kernels, as Debian packages have them.

use crate::setup;
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, Fetcher};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a kernel's source comes from.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// A package of the machine's own release.
    Package(&'static str),
    /// The newest one of sid, by an apt that is apart from the machine's.
    Newest,
}

/// A package with a source, and its version.
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// Whether the machine's own apt has installed it.
    is_installed: bool,
}

impl Source {
    /// The package that there is today; one of the machine's own release is installed.
    pub(super) fn offered(self, notice: &dyn Fn(&str)) -> anyhow::Result<Package> {
        match self {
            Self::Package(name) => {
                setup::install(&[(name, "the source of kernels that are built")])?;
                let version = setup::version(name)?.with_context(|| format!("{name} is not installed"))?;
                Ok(Package { name: name.to_owned(), version, is_installed: true })
            }
            Self::Newest => {
                let cache = Cache::open()?;
                let (name, version) = Fetcher::new(&cache.lock()?, notice).newest_source()?;
                Ok(Package { name, version, is_installed: false })
            }
        }
    }
}

impl Package {
    /// The folder with its source, below `sources`.
    pub(super) fn unpacked(&self, sources: &Path, notice: &dyn Fn(&str)) -> anyhow::Result<PathBuf> {
        let place = sources.join(format!("{}-{}", self.name, self.version));
        if place.is_dir() {
            return Ok(place);
        }
        notice(&format!("unpacking {}", self.name));
        fs::create_dir_all(sources)?;
        let unpacked = tempfile::tempdir_in(sources).context("no temporary directory")?;
        let root =
            if self.is_installed { PathBuf::from("/") } else { self.downloaded(unpacked.path(), notice)? };
        let archive = root.join(format!("usr/src/{}.tar.xz", self.name));
        setup::quietly(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(unpacked.path()))?;
        let tree = unpacked.path().join(&self.name);
        ensure!(tree.join("Kconfig").is_file(), "{} holds no kernel's source", archive.display());
        fs::rename(tree, &place).with_context(|| format!("cannot make {}", place.display()))?;
        Ok(place)
    }

    /// A folder below `temporary` with the files of the package.
    fn downloaded(&self, temporary: &Path, notice: &dyn Fn(&str)) -> anyhow::Result<PathBuf> {
        let cache = Cache::open()?;
        let files = temporary.join("files");
        let deb = Fetcher::new(&cache.lock()?, notice).download(
            &self.name,
            &self.version,
            &temporary.join("deb"),
        )?;
        setup::quietly(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&files))?;
        Ok(files)
    }
}
