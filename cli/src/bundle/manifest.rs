//! What a bundle says of itself, and whether its files are those that were kept.

use crate::file;
use crate::record::{HostKind, KernelIdentity};
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::Path;

/// The version of the format. It changes when a reader of the old one would misunderstand what is kept.
const FORMAT: u32 = 1;

/// What is in a bundle.
const MANIFEST: &str = "bundle.json";
pub(super) const KERNEL: &str = "kernel";
pub(super) const VMLINUX: &str = "vmlinux";
pub(super) const INITRD: &str = "initrd";
pub(super) const MODULES: &str = "modules";
pub(super) const ROOT: &str = "root";
pub(super) const RECORDING: &str = "recording.json";
pub(super) const CONSOLE: &str = "console";

/// What a bundle says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// See [`FORMAT`].
    format: u32,
    /// The version of the program that has made it.
    vmm: String,
    /// What that program's file holds.
    program_sha256: String,
    pub(super) kernel: KernelIdentity,
    pub(super) host: HostKind,
    /// The model of the machine's processor.
    processor: Option<String>,
    /// The words of the command line.
    pub(super) words: Vec<String>,
    /// What chance began with, where CPUs were delayed.
    pub(super) seed: Option<u64>,
    pub(super) command: Option<KeptCommand>,
    pub(super) verdict: Verdict,
    /// What each file holds (SHA-256).
    pub(super) files: BTreeMap<String, String>,
}

/// What belongs to a command beside its words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptCommand {
    pub(super) environment: Vec<(String, String)>,
    /// Its working directory, as the guest sees it.
    pub(super) folder: String,
}

/// What a run came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Verdict {
    pub(super) exit_code: u8,
    /// The fingerprints of the kernel's reports.
    pub(super) splats: BTreeSet<String>,
}

impl Manifest {
    /// That of a run with these words on this machine.
    pub(super) fn new(
        words: Vec<String>,
        seed: Option<u64>,
        command: Option<KeptCommand>,
        verdict: Verdict,
    ) -> Self {
        Self {
            format: FORMAT,
            vmm: env!("CARGO_PKG_VERSION").to_owned(),
            program_sha256: this_program().unwrap_or_default(),
            kernel: KernelIdentity::default(),
            host: HostKind::Kvm,
            processor: processor(),
            words,
            seed,
            command,
            verdict,
            files: BTreeMap::new(),
        }
    }

    /// Reads that of the bundle in `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct AnyManifest {
            format: u32,
        }
        let path = folder.join(MANIFEST);
        let text = file::read(&path).with_context(|| format!("{} is no bundle", folder.display()))?;
        let damaged = || format!("{} is damaged", path.display());
        let AnyManifest { format } = serde_json::from_slice(&text).with_context(damaged)?;
        if format != FORMAT {
            bail!(
                "the bundle {} has format {format}, and this vmm reads format {FORMAT}: use the vmm that has made it",
                folder.display()
            );
        }
        serde_json::from_slice(&text).with_context(damaged)
    }

    /// Writes it.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        file::replace(&folder.join(MANIFEST), &[&serde_json::to_vec_pretty(self)?[..], b"\n"].concat())
    }

    /// Refuses a bundle in `folder` of which a file is not what was kept.
    pub(super) fn check(&self, folder: &Path) -> Result<()> {
        for (name, kept) in &self.files {
            let path = folder.join(name);
            let sum = sum(&path).with_context(|| format!("cannot read {}", path.display()))?;
            if sum != *kept {
                bail!(
                    "{} is not what it was when the bundle was made: its SHA-256 is another one",
                    path.display()
                );
            }
        }
        Ok(())
    }

    /// What made it that is not as it is here.
    pub(super) fn differs(&self) -> Option<String> {
        if this_program().is_ok_and(|ours| ours == self.program_sha256) {
            return None;
        }
        Some(format!(
            "the bundle was made by another build of vmm: by version {}, and this is {}",
            self.vmm,
            env!("CARGO_PKG_VERSION")
        ))
    }
}

/// What a file holds, as its SHA-256.
pub(super) fn sum(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(format!("{:x}", hash.finalize()))
}

fn this_program() -> io::Result<String> {
    sum(Path::new(crate::work::THIS_PROGRAM))
}

fn processor() -> Option<String> {
    let said = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = said.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let command = KeptCommand { environment: vec![("A".into(), "b".into())], folder: "/".into() };
        let verdict = Verdict { exit_code: 3, splats: BTreeSet::from(["warning:f".to_owned()]) };
        Manifest::new(vec!["run".into()], Some(7), Some(command), verdict)
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        manifest().write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), manifest());
        assert_eq!(manifest().differs(), None);
        let other = Manifest { program_sha256: String::new(), ..manifest() };
        assert!(other.differs().unwrap().contains("another build"));
    }

    #[test]
    fn what_is_no_bundle_or_another_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let said = || format!("{:#}", Manifest::read(folder.path()).unwrap_err());
        assert!(said().contains("is no bundle"), "{}", said());
        for (text, expected) in
            [("{", "is damaged"), ("{\"format\":1}", "is damaged"), ("{\"format\":9}", "format 9")]
        {
            fs::write(folder.path().join(MANIFEST), text).unwrap();
            assert!(said().contains(expected), "{}", said());
        }
    }

    #[test]
    fn a_file_that_was_changed_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kernel");
        fs::write(&path, "kernel").unwrap();
        let files = BTreeMap::from([("kernel".to_owned(), sum(&path).unwrap())]);
        let manifest = Manifest { files, ..manifest() };
        manifest.check(folder.path()).unwrap();
        fs::write(&path, "kernal").unwrap();
        assert!(manifest.check(folder.path()).unwrap_err().to_string().contains("SHA-256"));
        fs::remove_file(&path).unwrap();
        assert!(manifest.check(folder.path()).is_err());
    }
}
