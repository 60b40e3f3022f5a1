//! Kernels from Debian packages, through apt.
//!
//! Apt checks the signature; the hashes are recorded so that a result can be traced to its bytes.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::apt::{Apt, AptError};
use crate::cache::{CacheWriter, NotFetched, Part, Record, Staging};
use crate::manifest::{GUEST_MODULES, HOST_MODULES, Kernel};
use crate::modules::{self, Module, ModuleError};
use crate::package::{Package, exact_dependencies, image_of};
use crate::sources::SourceError;
use crate::tree::Tree;

/// What became of a kernel; prints as a line for the user.
#[derive(Debug)]
pub struct Fetched {
    kernel: Kernel,
    /// What was done.
    pub outcome: Outcome,
}

/// What was done about a kernel.
#[derive(Debug)]
pub enum Outcome {
    /// It was not there, and now is.
    New(Record),
    /// What is there is what apt offers.
    Current(Record),
    /// Apt offers another version than the one that was there, which is replaced.
    Moved {
        /// The version that was there.
        from: String,
        /// What is there now.
        to: Record,
    },
    /// Apt did not deliver, so that what was there stays.
    Kept {
        /// What is there.
        record: Record,
        /// Why apt did not deliver.
        reason: FetchError,
    },
}

impl fmt::Display for Fetched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {}: ", self.kernel)?;
        match &self.outcome {
            Outcome::New(record) => write!(f, "fetched {}", record.version),
            Outcome::Current(record) => write!(f, "{} is current", record.version),
            Outcome::Moved { from, to } => write!(f, "version moved from {from} to {}", to.version),
            Outcome::Kept { record, reason } => write!(f, "keeping {}, because {reason}", record.version),
        }
    }
}

/// Why a kernel cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Apt did not do what was asked.
    #[error(transparent)]
    Apt(#[from] AptError),
    /// The suite cannot be taken from where the machine's packages come from.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Apt knows no image of the kernel.
    #[error("no image of it is offered{}", but_of(offered))]
    NoImage {
        /// The kernels that apt knows images of.
        offered: BTreeSet<Kernel>,
    },
    /// The kernel is not in the cache.
    #[error(transparent)]
    NotFetched(#[from] NotFetched),
    /// Apt knows no source of kernels.
    #[error("package {0} leads to no source of a kernel")]
    NoSource(&'static str),
    /// The package is not as expected.
    #[error("package {package} has no {what}, and neither has a package that belongs to it")]
    Unexpected {
        /// Its name.
        package: String,
        /// What is missing.
        what: &'static str,
    },
    /// The package's modules cannot be used.
    #[error("the modules of package {package} cannot be used")]
    Modules {
        /// Its name.
        package: String,
        /// Why not.
        source: ModuleError,
    },
    /// The cache cannot be written.
    #[error("cannot write to the cache")]
    Cache(#[from] io::Error),
}

/// What is offered instead.
fn but_of(kernels: &BTreeSet<Kernel>) -> String {
    let names: Vec<_> = kernels.iter().map(Kernel::to_string).collect();
    if names.is_empty() { String::new() } else { format!(", but of {}", names.join(", ")) }
}

/// Brings a kernel to the version that `apt` offers. When apt does not deliver, an older one stays.
///
/// # Errors
/// When there is no kernel at the end.
pub(crate) fn fetch(cache: &CacheWriter<'_>, kernel: &Kernel, apt: &Apt) -> Result<Fetched, FetchError> {
    let old = cache.cache().kernel(kernel).ok().map(|kernel| kernel.record);
    let fetched = |outcome| Ok(Fetched { kernel: *kernel, outcome });
    let offer = apt.refresh().map_err(FetchError::from).and_then(|()| offer(kernel, apt));
    if let (Ok(image), Some(old)) = (&offer, &old)
        && is_record_of(image, old)
    {
        return fetched(Outcome::Current(old.clone()));
    }
    let staging = cache.staging()?;
    match (offer.and_then(|image| deliver(&staging, image, apt)), old) {
        (Ok(new), old) => {
            cache.put_kernel(kernel, &staging)?;
            match old {
                Some(old) if old.version != new.version => {
                    fetched(Outcome::Moved { from: old.version, to: new })
                }
                // None, or one without all that is wanted of a package today.
                _ => fetched(Outcome::New(new)),
            }
        }
        (Err(reason), Some(record)) => fetched(Outcome::Kept { record, reason }),
        (Err(error), None) => Err(error),
    }
}

/// The image that apt offers for a kernel.
fn offer(kernel: &Kernel, apt: &Apt) -> Result<Package, FetchError> {
    for meta in kernel.packages() {
        let text = match apt.show(&meta) {
            // A package that this release does not have.
            Err(AptError::Failed { .. }) => continue,
            known => known?,
        };
        if let Some(image) = image_of(&text).filter(|image| kernel.owns(&image.name)) {
            return Ok(image);
        }
    }
    Err(FetchError::NoImage { offered: apt.kernels()? })
}

/// Whether a record is of this image, with every module that is wanted today.
fn is_record_of(image: &Package, record: &Record) -> bool {
    let has =
        |modules: &[String], names: &[&str]| names.iter().all(|name| modules.contains(&format!("{name}.ko")));
    image.name == record.package
        && image.version == record.version
        && has(&record.modules, HOST_MODULES)
        && has(&record.guest_modules, GUEST_MODULES)
        && record.command_modules.is_some()
}

/// Puts what is used of an image into [`Staging::new_kernel`]. What its own package lacks is looked for in the packages
/// of exact version that it depends on.
fn deliver(staging: &Staging, image: Package, apt: &Apt) -> Result<Record, FetchError> {
    let tree = Tree::new(staging.path().join("tree"));
    let add = |package: &Package| -> Result<String, FetchError> {
        let deb = apt.download(package, &staging.path().join("deb").join(&package.name))?;
        tree.add(&deb)?;
        Ok(sha256(&deb)?)
    };
    let deb_sha256 = add(&image)?;
    let is_whole = || Ok::<_, io::Error>(tree.image()?.is_some() && tree.modules()?.is_some());
    let mut parts = Vec::new();
    if !is_whole()? {
        for part in exact_dependencies(&apt.show(&image.with_version())?) {
            let sha256 = add(&part)?;
            parts.push(Part { package: part.name, sha256 });
            if is_whole()? {
                break;
            }
        }
    }
    keep(staging, &tree, image, deb_sha256, parts)
}

/// Keeps what is used of the unpacked packages.
fn keep(
    staging: &Staging,
    tree: &Tree,
    package: Package,
    deb_sha256: String,
    parts: Vec<Part>,
) -> Result<Record, FetchError> {
    let lacks = |what| FetchError::Unexpected { package: package.name.clone(), what };
    let new = staging.new_kernel();
    fs::create_dir_all(new.join("modules"))?;
    let image = tree.image()?.ok_or_else(|| lacks("bzImage"))?;
    let image_sha256 = sha256(&image)?;
    fs::rename(&image, new.join("vmlinuz"))?;
    let modules = tree.modules()?.ok_or_else(|| lacks("modules"))?;
    let wanted = |names| {
        modules::in_load_order(&modules, names)
            .map_err(|source| FetchError::Modules { package: package.name.clone(), source })
    };
    let (host, guest) = (wanted(HOST_MODULES)?, wanted(GUEST_MODULES)?);
    let command = modules::command_modules(&modules)
        .map_err(|source| FetchError::Modules { package: package.name.clone(), source })?;
    for module in host.iter().chain(&guest).chain(&command) {
        fs::write(new.join("modules").join(&module.file_name), &module.bytes)?;
    }
    let names = |modules: Vec<Module>| modules.into_iter().map(|module| module.file_name).collect();
    let record = Record {
        package: package.name,
        version: package.version,
        deb_sha256,
        parts,
        image_sha256,
        modules: names(host),
        guest_modules: names(guest),
        command_modules: Some(names(command)),
    };
    fs::write(new.join("record.json"), serde_json::to_vec_pretty(&record).map_err(io::Error::from)?)?;
    Ok(record)
}

fn sha256(path: &Path) -> io::Result<String> {
    Ok(format!("{:x}", Sha256::digest(fs::read(path)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_lacks_what_is_wanted_today_is_not_current() {
        let image = Package { name: "p".to_owned(), version: "1".to_owned() };
        let files = |names: &[&str]| names.iter().map(|name| format!("{name}.ko")).collect();
        let whole = Record {
            package: "p".to_owned(),
            version: "1".to_owned(),
            deb_sha256: String::new(),
            parts: vec![],
            image_sha256: String::new(),
            modules: files(HOST_MODULES),
            guest_modules: files(GUEST_MODULES),
            command_modules: Some(vec![]),
        };
        assert!(is_record_of(&image, &whole));
        assert!(!is_record_of(&image, &Record { version: "2".to_owned(), ..whole.clone() }));
        assert!(!is_record_of(&image, &Record { modules: vec![], ..whole.clone() }));
        // As an earlier setup wrote it.
        let mut earlier = serde_json::to_value(&whole).unwrap();
        for field in ["guest_modules", "command_modules", "parts"] {
            earlier.as_object_mut().unwrap().remove(field).unwrap();
        }
        assert!(!is_record_of(&image, &serde_json::from_value(earlier).unwrap()));
    }
}
