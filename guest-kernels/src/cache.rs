//! Where fetched and built things live, outside git.
//!
//! ```text
//! $VMM_CACHE_DIR, else $XDG_CACHE_HOME/vmm, else $HOME/.cache/vmm
//!   kernels/6.12/vmlinuz        the image as the package has it
//!   kernels/6.12/modules/*.ko   modules of the emulated host, and for guests, decompressed
//!   kernels/6.12/record.json    where they came from
//!   kernels/6.12/vmlinux        the same kernel with debugging information, where somebody has asked for that
//!   apt/sid/, apt/machine/      an apt apart, for a suite that the machine does not use, and for a user who may not
//!                               fetch the machine's own lists
//!   built/                      kernels that `cargo xtask kernels` has built, and their sources
//!   initramfs.cpio.gz           of the guest
//!   host/                       the prepared emulated host
//!   python/                     packages of Python that tests take a second opinion from
//!   staging/, lock              of the one process that changes the cache
//! ```

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::manifest::Kernel;

/// The cache, for reading.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// A kernel in the cache.
#[derive(Clone, Debug)]
pub struct FetchedKernel {
    /// Its name in the manifest.
    pub name: String,
    /// The bzImage.
    pub image: PathBuf,
    /// Decompressed modules of a KVM host, in the order in which they load. Those of both vendors are there; the
    /// wrong vendor's one refuses to load with `ENODEV`.
    pub modules: Vec<PathBuf>,
    /// Decompressed modules for guests, each of which needs no other.
    pub guest_modules: Vec<PathBuf>,
    /// Decompressed modules with which a guest reaches folders of this machine, in the order in which they load.
    pub command_modules: Vec<PathBuf>,
    /// Its `vmlinux` with debugging information, which is there when it has been asked for.
    pub debug_info: PathBuf,
    /// Where it came from.
    pub record: Record,
}

/// Where a kernel came from: `record.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The Debian package that holds the image.
    pub package: String,
    /// That package's version.
    pub version: String,
    /// Of the package file, in hexadecimal.
    pub deb_sha256: String,
    /// Packages of the same version that have what the image's own lacks, where Debian splits it.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// Of the bzImage, in hexadecimal.
    pub image_sha256: String,
    /// File names of the modules, in the order in which they load.
    pub modules: Vec<String>,
    /// File names of the modules for guests; a record that an earlier setup wrote has none.
    #[serde(default)]
    pub guest_modules: Vec<String>,
    /// File names of the modules for commands, in the order in which they load; a record that an earlier setup wrote has
    /// none.
    #[serde(default)]
    pub command_modules: Option<Vec<String>>,
}

/// A package that is a part of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its name.
    pub package: String,
    /// Of the package file, in hexadecimal.
    pub sha256: String,
}

/// No place for the cache.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// None of the variables that could name a place is set.
    #[error("no place for the cache: set VMM_CACHE_DIR or HOME")]
    NoPlace,
    /// The directory cannot be made or locked.
    #[error("cannot use the cache directory {path}")]
    Unusable {
        /// What was tried.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Something that setup puts into the cache is not there.
#[derive(Debug, thiserror::Error)]
#[error("{what} is not in {cache}: `cargo xtask setup`, in a checkout, puts that there")]
pub struct NotFetched {
    what: String,
    cache: PathBuf,
    source: io::Error,
}

impl FetchedKernel {
    /// The one in the directory `dir`, which is called as it is.
    ///
    /// # Errors
    /// When it is not there, or not whole.
    pub fn at(dir: &Path) -> io::Result<Self> {
        let record: Record = serde_json::from_slice(&fs::read(dir.join("record.json"))?)?;
        let (image, debug_info) = (dir.join("vmlinuz"), dir.join("vmlinux"));
        let paths = |names: &[String]| -> Vec<_> {
            names.iter().map(|module| dir.join("modules").join(module)).collect()
        };
        let (modules, guest_modules) = (paths(&record.modules), paths(&record.guest_modules));
        let command_modules = paths(record.command_modules.as_deref().unwrap_or_default());
        let files = modules.iter().chain(&guest_modules).chain(&command_modules).chain([&image]);
        files.map(fs::metadata).try_for_each(|file| file.map(drop))?;
        let name = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { name, image, modules, guest_modules, command_modules, debug_info, record })
    }

    /// One of the modules for guests.
    #[must_use]
    pub fn guest_module(&self, name: &str) -> Option<&Path> {
        let mut modules = self.guest_modules.iter().map(PathBuf::as_path);
        modules.find(|path| path.file_stem().is_some_and(|stem| stem == name))
    }
}

impl Cache {
    /// The cache of this user; nothing is created.
    ///
    /// # Errors
    /// [`OpenError::NoPlace`] when the environment names none.
    pub fn open() -> Result<Self, OpenError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        variable("VMM_CACHE_DIR")
            .or_else(|| variable("XDG_CACHE_HOME").map(|base| base.join("vmm")))
            .or_else(|| variable("HOME").map(|home| home.join(".cache/vmm")))
            .map(Self::at)
            .ok_or(OpenError::NoPlace)
    }

    /// A cache in a directory of the caller's choice.
    #[must_use]
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }

    /// The directory that holds everything.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the emulated host is prepared; it need not exist yet.
    #[must_use]
    pub fn host_dir(&self) -> PathBuf {
        self.root.join("host")
    }

    /// Where the apt of a suite that the machine does not use keeps its lists; it need not exist yet.
    #[must_use]
    pub fn apt_dir(&self, suite: &str) -> PathBuf {
        self.root.join("apt").join(suite)
    }

    /// Where packages of Python are installed that tests need; it need not exist yet.
    #[must_use]
    pub fn python_dir(&self) -> PathBuf {
        self.root.join("python")
    }

    /// A kernel that was fetched.
    ///
    /// # Errors
    /// [`NotFetched`] when it is not there, or not whole.
    pub fn kernel(&self, kernel: &Kernel) -> Result<FetchedKernel, NotFetched> {
        let dir = self.kernel_dir(kernel);
        FetchedKernel::at(&dir).map_err(|source| self.not_fetched(format!("kernel {kernel}"), source))
    }

    /// The kernels that were fetched.
    #[must_use]
    pub fn kernels(&self) -> BTreeSet<Kernel> {
        let names = fs::read_dir(self.kernels_dir()).into_iter().flatten().flatten();
        let named = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        named.filter(|kernel| self.kernel(kernel).is_ok()).collect()
    }

    /// The initramfs of the guest.
    ///
    /// # Errors
    /// [`NotFetched`] when it was not built yet.
    pub fn initramfs(&self) -> Result<PathBuf, NotFetched> {
        let path = self.initramfs_path();
        match fs::metadata(&path) {
            Ok(_) => Ok(path),
            Err(source) => Err(self.not_fetched("the guest initramfs".to_owned(), source)),
        }
    }

    /// The cache, for changing: waits until no other process changes it.
    ///
    /// # Errors
    /// [`OpenError::Unusable`] when the directory cannot be made or locked.
    pub fn lock(&self) -> Result<CacheWriter<'_>, OpenError> {
        let lock = || {
            fs::create_dir_all(&self.root)?;
            let file = File::create(self.root.join("lock"))?;
            file.lock()?;
            Ok(file)
        };
        match lock() {
            Ok(lock) => Ok(CacheWriter { cache: self, _lock: lock }),
            Err(source) => Err(OpenError::Unusable { path: self.root.clone(), source }),
        }
    }

    fn kernels_dir(&self) -> PathBuf {
        self.root.join("kernels")
    }

    fn kernel_dir(&self, kernel: &Kernel) -> PathBuf {
        self.kernels_dir().join(kernel.to_string())
    }

    fn initramfs_path(&self) -> PathBuf {
        self.root.join("initramfs.cpio.gz")
    }

    fn not_fetched(&self, what: String, source: io::Error) -> NotFetched {
        NotFetched { what, cache: self.root.clone(), source }
    }
}

/// The one process that may change the cache. What it puts there is whole at any time: it is written to a staging
/// directory and renamed.
#[derive(Debug)]
pub struct CacheWriter<'a> {
    cache: &'a Cache,
    _lock: File,
}

impl CacheWriter<'_> {
    /// The cache that is written to.
    #[must_use]
    pub fn cache(&self) -> &Cache {
        self.cache
    }

    /// Puts the guest initramfs into the cache; returns whether it differs from the one that was there.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn put_initramfs(&self, image: &[u8]) -> io::Result<bool> {
        let path = self.cache.initramfs_path();
        if fs::read(&path).is_ok_and(|old| old == image) {
            return Ok(false);
        }
        let staging = self.staging()?;
        let new = staging.path().join("initramfs");
        fs::write(&new, image)?;
        fs::rename(&new, &path)?;
        Ok(true)
    }

    /// An empty directory for things on their way into the cache.
    pub(crate) fn staging(&self) -> io::Result<Staging> {
        let staging = Staging(self.cache.root.join("staging"));
        // An earlier process that was killed may have left one.
        staging.remove()?;
        fs::create_dir(staging.path())?;
        Ok(staging)
    }

    /// Makes [`Staging::new_kernel`], now complete, a kernel of the cache in place of an older one.
    pub(crate) fn put_kernel(&self, kernel: &Kernel, staging: &Staging) -> io::Result<()> {
        let path = self.cache.kernel_dir(kernel);
        if path.exists() {
            fs::rename(&path, staging.path().join("old"))?;
        }
        fs::create_dir_all(self.cache.kernels_dir())?;
        fs::rename(staging.new_kernel(), &path)
    }
}

/// The staging directory; removed with all that is left in it.
#[derive(Debug)]
pub(crate) struct Staging(PathBuf);

impl Staging {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Where a kernel is put together.
    pub(crate) fn new_kernel(&self) -> PathBuf {
        self.0.join("new")
    }

    fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // The next user of the staging directory meets the same error and reports it.
        let _ = self.remove();
    }
}
