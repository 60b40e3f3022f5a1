//! Fetching kernels of the manifest as any user may: by the machine's apt where that serves, otherwise by one apart.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::apt::{Apt, AptError};
use crate::cache::CacheWriter;
use crate::fetch::{FetchError, Fetched, fetch};
use crate::manifest::{Kernel, Suite};
use crate::sources::Sources;

/// The directory of the apt that has the machine's sources and lists of its own.
const OF_THE_MACHINE: &str = "machine";

/// Fetches kernels into a cache. The lists of packages are fetched once a run at most.
pub struct Fetcher<'a> {
    cache: &'a CacheWriter<'a>,
    notice: &'a dyn Fn(&str),
    apart: BTreeMap<&'static str, Apt>,
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
        match kernel.suite {
            Suite::OfTheMachine => match fetch(self.cache, kernel, &Apt::of_the_machine()) {
                Err(error @ (FetchError::Apt(AptError::Missing(_)) | FetchError::Cache(_))) => Err(error),
                // The machine's lists may be older than what the archive holds today, or not be there.
                Err(_) => self.fetch_apart(kernel, OF_THE_MACHINE),
                fetched => fetched,
            },
            Suite::Named(suite) => self.fetch_apart(kernel, suite),
        }
    }

    fn fetch_apart(&mut self, kernel: &Kernel, name: &'static str) -> Result<Fetched, FetchError> {
        let apt = match self.apart.entry(name) {
            Entry::Occupied(apt) => apt.into_mut(),
            Entry::Vacant(place) => {
                let source = match kernel.suite {
                    Suite::OfTheMachine => None,
                    Suite::Named(suite) => {
                        Some(Sources::of_this_machine()?.of_this_release()?.with_suite(suite))
                    }
                };
                place.insert(Apt::apart(&self.cache.cache().apt_dir(name), source)?)
            }
        };
        if !apt.is_fresh() {
            (self.notice)(&format!(
                "fetching the package lists of {}, apart from the machine's own",
                match kernel.suite {
                    Suite::OfTheMachine => "this machine's sources",
                    Suite::Named(suite) => suite,
                }
            ));
        }
        // The lists may be older than what the archive holds today: then once more.
        fetch(self.cache, kernel, apt).or_else(|_| {
            apt.update()?;
            fetch(self.cache, kernel, apt)
        })
    }
}
