//! Fetching kernels of Debian's as any user may: by the machine's apt where that serves, otherwise by one apart.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};

use crate::apt::{Apt, AptError};
use crate::cache::{CacheWriter, FetchedKernel};
use crate::fetch::{FetchError, Fetched, Outcome, fetch};
use crate::manifest::{Kernel, NEWEST, Series};
use crate::package::{Package, source_of};
use crate::sources::Sources;
use crate::tree::Tree;

/// The package that stands for the newest source of a suite.
const SOURCES: &str = "linux-source";

/// Fetches kernels into a cache. The lists of packages are fetched once a run at most.
pub struct Fetcher<'a> {
    cache: &'a CacheWriter<'a>,
    notice: &'a dyn Fn(&str),
    apart: BTreeMap<Suite, Apt>,
}

/// What an apt that is apart offers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Suite {
    /// What the machine's own offers today.
    OfTheMachine,
    /// [`NEWEST`].
    Newest,
}

impl<'a> Fetcher<'a> {
    /// One that fetches into `cache`, and tells `notice` in a line what takes long.
    #[must_use]
    pub fn new(cache: &'a CacheWriter<'a>, notice: &'a dyn Fn(&str)) -> Self {
        Self { cache, notice, apart: BTreeMap::new() }
    }

    /// Brings a kernel to the version that Debian offers. When Debian does not deliver, an older one stays.
    ///
    /// # Errors
    /// When there is no kernel at the end.
    pub fn fetch(&mut self, kernel: &Kernel) -> Result<Fetched, FetchError> {
        if let Series::Since(_) = kernel.series {
            return self.fetch_apart(kernel, Suite::Newest);
        }
        let of_machine = match fetch(self.cache, kernel, &Apt::of_the_machine()) {
            Err(error @ (FetchError::Apt(AptError::Missing(_)) | FetchError::Cache(_))) => return Err(error),
            // The machine's lists may be older than what the archive holds today, or not be there.
            Err(_) => self.fetch_apart(kernel, Suite::OfTheMachine),
            fetched => fetched,
        };
        let offered = match &of_machine {
            Err(FetchError::NoImage { offered })
            | Ok(Fetched {
                outcome: Outcome::Kept { reason: FetchError::NoImage { offered }, .. }, ..
            }) => offered,
            _ => return of_machine,
        };
        match self.fetch_apart(kernel, Suite::Newest) {
            Err(FetchError::NoImage { offered: newest }) => {
                Err(FetchError::NoImage { offered: offered | &newest })
            }
            fetched => fetched,
        }
    }

    fn fetch_apart(&mut self, kernel: &Kernel, suite: Suite) -> Result<Fetched, FetchError> {
        let cache = self.cache;
        let apt = self.apart(suite)?;
        // The lists may be older than what the archive holds today: then once more.
        fetch(cache, kernel, apt).or_else(|_| {
            apt.update()?;
            fetch(cache, kernel, apt)
        })
    }

    /// The package with the newest kernel's source that Debian has, and its version.
    ///
    /// # Errors
    /// When none is offered.
    pub fn newest_source(&mut self) -> Result<(String, String), FetchError> {
        let apt = self.apart(Suite::Newest)?;
        apt.refresh()?;
        let source = source_of(&apt.show(SOURCES)?);
        let Package { name, version } = source.ok_or(FetchError::NoSource(SOURCES))?;
        Ok((name, version))
    }

    /// Downloads a package of [`newest_source`](Self::newest_source) into `dir`, which is made for it.
    ///
    /// # Errors
    /// When it is not delivered.
    pub fn download(&mut self, name: &str, version: &str, dir: &Path) -> Result<PathBuf, FetchError> {
        let package = Package { name: name.to_owned(), version: version.to_owned() };
        self.download_apart(Suite::Newest, &package, dir)
    }

    /// Brings the debugging information of a kernel that is in the cache: some hundreds of megabytes. Gives the `vmlinux` with that.
    ///
    /// # Errors
    /// When Debian does not deliver the package of the kernel's version.
    pub fn debug_info(&mut self, kernel: &Kernel) -> Result<PathBuf, FetchError> {
        let FetchedKernel { debug_info, record, .. } = self.cache.cache().kernel(kernel)?;
        if debug_info.is_file() {
            return Ok(debug_info);
        }
        let package = Package { name: format!("{}-dbg", record.package), version: record.version };
        (self.notice)(&format!("fetching {}", package.with_version()));
        let staging = self.cache.staging()?;
        let dir = staging.path().join("deb");
        let (of_machine, suite) = match kernel.series {
            Series::Is(..) => (Apt::of_the_machine().download(&package, &dir).ok(), Suite::OfTheMachine),
            Series::Since(_) => (None, Suite::Newest),
        };
        let deb = of_machine.map_or_else(|| self.download_apart(suite, &package, &dir), Ok)?;
        let tree = Tree::new(staging.path().join("tree"));
        tree.add(&deb)?;
        let lacks = || FetchError::Unexpected { package: package.name.clone(), what: "vmlinux" };
        // It may be a link to where the modules are.
        fs::rename(tree.debug_info()?.ok_or_else(lacks)?.canonicalize()?, &debug_info)?;
        Ok(debug_info)
    }

    fn download_apart(&mut self, suite: Suite, package: &Package, dir: &Path) -> Result<PathBuf, FetchError> {
        let apt = self.apart(suite)?;
        let file = apt.download(package, dir).or_else(|_| {
            apt.update()?;
            apt.download(package, dir)
        })?;
        Ok(file)
    }

    /// The apt that has a suite.
    fn apart(&mut self, suite: Suite) -> Result<&Apt, FetchError> {
        let (name, words) = match suite {
            Suite::OfTheMachine => ("machine", "this machine's sources"),
            Suite::Newest => (NEWEST, NEWEST),
        };
        let apt = match self.apart.entry(suite) {
            Entry::Occupied(apt) => apt.into_mut(),
            Entry::Vacant(place) => {
                let source = match suite {
                    Suite::OfTheMachine => None,
                    Suite::Newest => Some(Sources::of_this_machine()?.of_this_release()?.with_suite(NEWEST)),
                };
                place.insert(Apt::apart(&self.cache.cache().apt_dir(name), source)?)
            }
        };
        if !apt.is_fresh() {
            (self.notice)(&format!("fetching the package lists of {words}, apart from the machine's own"));
        }
        Ok(apt)
    }
}
