//! Kernels from Debian packages, through the machine's own apt.
//!
//! `/boot/vmlinuz-*` of the package is the bzImage; modules are under `/lib/modules`, or `/usr/lib/modules` in newer
//! packages. Apt checks the signature; the hashes are recorded so that a result can be traced to its bytes.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::cache::{CacheWriter, Record, Staging};
use crate::manifest::{GUEST_MODULES, HOST_MODULES, Kernel};
use crate::modules::{self, Module, ModuleError};

/// What became of a kernel; prints as a line for the user.
#[derive(Debug)]
pub struct Fetched {
    kernel: &'static str,
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
        /// What it said last.
        message: String,
    },
    /// Apt knows no image of the kernel.
    #[error("apt offers no {kernel} kernel by the name of {}", packages.join(" or "))]
    NoImage {
        /// The kernel's name.
        kernel: &'static str,
        /// The packages that were asked for.
        packages: &'static [&'static str],
    },
    /// The package is not as expected.
    #[error("package {package} has no {what}")]
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

/// A package that apt could deliver.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    package: String,
    version: String,
}

/// Brings a kernel to the version that apt offers. When apt does not deliver, an older one stays.
///
/// # Errors
/// When there is no kernel at the end, or a delivered package cannot be unpacked into the cache.
pub fn fetch(cache: &CacheWriter<'_>, kernel: &Kernel) -> Result<Fetched, FetchError> {
    let old = cache.cache().kernel(kernel.name).ok().map(|kernel| kernel.record);
    let fetched = |outcome| Ok(Fetched { kernel: kernel.name, outcome });
    let offer = candidate(kernel);
    if let (Ok(candidate), Some(old)) = (&offer, &old)
        && candidate.is(old)
    {
        return fetched(Outcome::Current(old.clone()));
    }
    let staging = cache.staging()?;
    let delivered = offer.and_then(|candidate| Ok((download(&staging, &candidate)?, candidate)));
    match (delivered, old) {
        (Ok((deb, candidate)), old) => {
            let new = unpack(&staging, candidate, &deb)?;
            cache.put_kernel(kernel.name, &staging)?;
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
fn candidate(kernel: &Kernel) -> Result<Candidate, FetchError> {
    for meta in kernel.packages {
        let text = match show(meta) {
            // A package that this release does not have.
            Err(FetchError::Failed { .. }) => continue,
            known => known?,
        };
        if let Some(image) = image_of(&text).filter(|image| kernel.owns(&image.package)) {
            return Ok(image);
        }
    }
    Err(FetchError::NoImage { kernel: kernel.name, packages: kernel.packages })
}

/// The value of a field in what `apt-cache show` prints.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The image that a meta package depends on, from what `apt-cache show` prints of it: Debian names the exact version,
/// as in `linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)`.
fn image_of(text: &str) -> Option<Candidate> {
    field(text, "Depends")?.split(',').find_map(|dependency| {
        let (package, version) = dependency.trim().strip_suffix(')')?.split_once(" (= ")?;
        package
            .starts_with("linux-image-")
            .then(|| Candidate { package: package.to_owned(), version: version.to_owned() })
    })
}

/// Puts what is used of a package into [`Staging::new_kernel`].
fn unpack(staging: &Staging, candidate: Candidate, deb: &Path) -> Result<Record, FetchError> {
    let tree = staging.path().join("tree");
    run("dpkg-deb", |command| command.arg("-x").args([deb, &tree]))?;

    let new = staging.new_kernel();
    fs::create_dir_all(new.join("modules"))?;
    let image = boot_image(&tree)?.ok_or_else(|| candidate.lacks("bzImage in /boot"))?;
    let image_sha256 = sha256(&image)?;
    fs::rename(&image, new.join("vmlinuz"))?;
    let modules = ["lib/modules", "usr/lib/modules"]
        .map(|path| tree.join(path))
        .into_iter()
        .find(|path| path.is_dir())
        .ok_or_else(|| candidate.lacks("modules"))?;
    let wanted = |names| {
        modules::in_load_order(&modules, names)
            .map_err(|source| FetchError::Modules { package: candidate.package.clone(), source })
    };
    let (host, guest) = (wanted(HOST_MODULES)?, wanted(GUEST_MODULES)?);
    for module in host.iter().chain(&guest) {
        fs::write(new.join("modules").join(&module.file_name), &module.bytes)?;
    }
    let names = |modules: Vec<Module>| modules.into_iter().map(|module| module.file_name).collect();
    let record = Record {
        package: candidate.package,
        version: candidate.version,
        deb_sha256: sha256(deb)?,
        image_sha256,
        modules: names(host),
        guest_modules: names(guest),
    };
    fs::write(new.join("record.json"), serde_json::to_vec_pretty(&record).map_err(io::Error::from)?)?;
    Ok(record)
}

impl Candidate {
    /// Whether this is what a record is of, with every module that is wanted today.
    fn is(&self, record: &Record) -> bool {
        let has = |modules: &[String], names: &[&str]| {
            names.iter().all(|name| modules.contains(&format!("{name}.ko")))
        };
        self.package == record.package
            && self.version == record.version
            && has(&record.modules, HOST_MODULES)
            && has(&record.guest_modules, GUEST_MODULES)
    }

    fn lacks(&self, what: &'static str) -> FetchError {
        FetchError::Unexpected { package: self.package.clone(), what }
    }
}

/// Downloads exactly the candidate's version into the staging directory.
fn download(staging: &Staging, candidate: &Candidate) -> Result<PathBuf, FetchError> {
    let dir = staging.path().join("deb");
    fs::create_dir(&dir)?;
    let package = format!("{}={}", candidate.package, candidate.version);
    // Apt's own download user may not write into a user's cache.
    let as_caller = ["-o", "APT::Sandbox::User=root"];
    run("apt-get", |command| command.args(as_caller).args(["download", &package]).current_dir(&dir))?;
    let file = fs::read_dir(&dir)?.next().transpose()?;
    file.map(|file| file.path()).ok_or_else(|| candidate.lacks("file after its download"))
}

/// `/boot/vmlinuz-*` of an unpacked package.
fn boot_image(tree: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(tree.join("boot"))? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(b"vmlinuz-") {
            return Ok(Some(entry.path()));
        }
    }
    Ok(None)
}

fn sha256(path: &Path) -> io::Result<String> {
    Ok(format!("{:x}", Sha256::digest(fs::read(path)?)))
}

/// What apt knows of the newest version of a package.
fn show(package: &str) -> Result<String, FetchError> {
    run("apt-cache", |command| command.args(["show", "--no-all-versions", package]))
}

/// Runs a program to its end and returns what it printed, in the language that is parsed here.
fn run(program: &'static str, with: impl FnOnce(&mut Command) -> &mut Command) -> Result<String, FetchError> {
    let output = with(Command::new(program).env("LC_ALL", "C"))
        .output()
        .map_err(|source| FetchError::Run { program, source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let message = said.lines().rfind(|line| !line.is_empty()).unwrap_or("no message").to_owned();
    Err(FetchError::Failed { program, message })
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: &str = "Package: linux-image-6.12-cloud-amd64\nSource: linux-6.12\nVersion: 6.12.117-1~deb12u1\n\
        Depends: linux-base (>= 4.3), linux-image-6.12.117+deb12-cloud-amd64 (= 6.12.117-1~deb12u1)\n\
        Description-en: Linux for x86-64 cloud (meta-package)\n";

    #[test]
    fn a_meta_package_leads_to_its_image() {
        let image = image_of(META).unwrap();
        assert_eq!(image.package, "linux-image-6.12.117+deb12-cloud-amd64");
        assert_eq!(image.version, "6.12.117-1~deb12u1");
        assert_eq!(image_of("Package: x\nVersion: 1\n"), None);
    }

    #[test]
    fn a_record_that_lacks_what_is_wanted_today_is_not_current() {
        let candidate = Candidate { package: "p".to_owned(), version: "1".to_owned() };
        let files = |names: &[&str]| names.iter().map(|name| format!("{name}.ko")).collect();
        let whole = Record {
            package: "p".to_owned(),
            version: "1".to_owned(),
            deb_sha256: String::new(),
            image_sha256: String::new(),
            modules: files(HOST_MODULES),
            guest_modules: files(GUEST_MODULES),
        };
        assert!(candidate.is(&whole));
        assert!(!candidate.is(&Record { version: "2".to_owned(), ..whole.clone() }));
        assert!(!candidate.is(&Record { modules: vec![], ..whole.clone() }));
        // As an earlier setup wrote it.
        let mut earlier = serde_json::to_value(&whole).unwrap();
        earlier.as_object_mut().unwrap().remove("guest_modules").unwrap();
        assert!(!candidate.is(&serde_json::from_value(earlier).unwrap()));
    }
}
