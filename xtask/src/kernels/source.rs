//! Sources of kernels, as Debian packages have them.

use crate::setup;
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, Fetcher};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A package with a source, and its version.
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
}

impl Package {
    /// The newest one of sid, by an apt that is apart from the machine's.
    pub(super) fn newest(notice: &dyn Fn(&str)) -> anyhow::Result<Self> {
        let cache = Cache::open()?;
        let (name, version) = Fetcher::new(&cache.lock()?, notice).newest_source()?;
        Ok(Self { name, version })
    }

    /// The folder with its source, below `sources`.
    pub(super) fn unpacked(&self, sources: &Path, notice: &dyn Fn(&str)) -> anyhow::Result<PathBuf> {
        let place = sources.join(format!("{}-{}", self.name, self.version));
        if place.is_dir() {
            return Ok(place);
        }
        notice(&format!("unpacking {}", self.name));
        fs::create_dir_all(sources)?;
        let unpacked = tempfile::tempdir_in(sources).context("no temporary directory")?;
        let root = self.downloaded(unpacked.path(), notice)?;
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
