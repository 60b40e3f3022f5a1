//! Which QEMU is here, and what it is told.

use super::protocol::{COMMANDS_PORT, FILES_PORT, NAMES_PORT, PORT_NAME};
use std::error::Error;
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};
use thiserror::Error;

const PROGRAM: &str = "qemu-system-x86_64";
/// Older releases emulate an SVM processor on which KVM has no usable debug registers.
const OLDEST: u32 = 10;
const MEMORY_MIN_MIB: u64 = 2048;
/// What the kernel inside needs beside the guest and its files.
const HEADROOM_MIB: u64 = 512;
const MIB: u64 = 1 << 20;

/// Why QEMU cannot be used.
#[derive(Debug, Error)]
pub enum QemuError {
    /// It is not in `PATH`.
    #[error("the emulated host needs {PROGRAM}, which is not installed: {HOW}")]
    Missing,
    /// It emulates too little.
    #[error("the emulated host needs QEMU {OLDEST} or later, and {} is {found}: {HOW}", path.display())]
    TooOld {
        /// The program.
        path: PathBuf,
        /// Its version.
        found: String,
    },
    /// It does not say which version it is.
    #[error("{} does not say which version it is: {HOW}", path.display())]
    Version {
        /// The program.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

const HOW: &str = "install the package qemu-system-x86 (Debian trixie or later; on bookworm from the suite \
                   bookworm-backports: apt-get install -t bookworm-backports qemu-system-x86)";

/// A QEMU that can be the emulated host.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// The program.
    pub path: PathBuf,
    /// Its version as it prints it, with the package's.
    pub version: String,
}

impl Qemu {
    /// Finds QEMU in `PATH` and asks its version.
    ///
    /// # Errors
    /// When there is none, or one that is too old. The message names the package to install.
    pub fn find() -> Result<Self, QemuError> {
        Self::find_in(&env::var_os("PATH").unwrap_or_default())
    }

    fn find_in(path: &OsString) -> Result<Self, QemuError> {
        let mut candidates = env::split_paths(path).map(|folder| folder.join(PROGRAM));
        let path = candidates.find(|candidate| candidate.is_file()).ok_or(QemuError::Missing)?;
        let answer = Command::new(&path).arg("--version").output();
        let answer = answer.map_err(|source| QemuError::Version { path: path.clone(), source })?;
        Self::judge(path, &String::from_utf8_lossy(&answer.stdout))
    }

    /// Takes or refuses the QEMU at `path` that says `text` about its version.
    fn judge(path: PathBuf, text: &str) -> Result<Self, QemuError> {
        let version = text.lines().next().unwrap_or_default();
        let version = version.strip_prefix("QEMU emulator version ").unwrap_or(version).to_owned();
        if major(&version) < OLDEST {
            return Err(QemuError::TooOld { path, found: version });
        }
        Ok(Self { path, version })
    }
}

/// The number before the first dot; zero if there is none.
fn major(version: &str) -> u32 {
    version.split('.').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// What the emulated host consists of, and where its snapshot is kept.
pub struct HostImage<'a> {
    /// Its kernel, a bzImage.
    pub kernel: &'a Path,
    /// Changes whenever the initramfs would; cheap to make, see [`fingerprint`].
    pub initramfs_key: &'a str,
    /// Builds the initramfs (a cpio archive, compressed or not); called only when the host must boot.
    pub initramfs: &'a dyn Fn() -> Result<Vec<u8>, Box<dyn Error + Send + Sync>>,
    /// The program's cache folder; the snapshots are in `host/` in it.
    pub cache_dir: &'a Path,
    /// Tells the user one line: that a snapshot is made, or why there is none.
    pub notice: &'a dyn Fn(&str),
}

impl HostImage<'_> {
    /// Where snapshots and locks are.
    pub(super) fn folder(&self) -> PathBuf {
        self.cache_dir.join("host")
    }
}

/// What tells one state of the file at `path` from another: path, size and modification time.
///
/// # Errors
/// When there is no such file.
pub fn fingerprint(path: &Path) -> io::Result<String> {
    let file = fs::metadata(path)?;
    Ok(format!("{}:{}:{}.{}:{}", path.display(), file.len(), file.mtime(), file.mtime_nsec(), file.ino()))
}

/// How much memory, in MiB, the host needs for a guest of `guest_mib` and `files` bytes of input. A power of two,
/// at least 2 GiB, so that few sizes need a snapshot.
#[must_use]
pub fn memory_for(guest_mib: u64, files: u64) -> u64 {
    // An input file is held once by the host and once more by the program that reads it.
    let needed = guest_mib + 2 * files.div_ceil(MIB) + HEADROOM_MIB;
    needed.max(MEMORY_MIN_MIB).next_power_of_two()
}

/// How big a host is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostSize {
    pub(super) memory_mib: u64,
}

/// The kernel's command line: quiet, nothing that slows an emulator down, and an end instead of a hang on a panic.
const KERNEL_COMMAND_LINE: &str = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable nowatchdog \
                                   random.trust_cpu=on 8250.nr_uarts=1";

/// The arguments that do not depend on the run: machine, processor, kernel and devices.
pub(super) fn machine_args(kernel: &Path, size: HostSize) -> Vec<OsString> {
    let memory = size.memory_mib.to_string();
    let backend = format!("memory-backend-ram,id=memory,reserve=off,size={memory}M");
    let port = format!("virtserialport,chardev=control,name={PORT_NAME}");
    let files = format!("virtserialport,chardev=files,name={FILES_PORT}");
    let names = format!("virtserialport,chardev=names,name={NAMES_PORT}");
    let commands = format!("virtserialport,chardev=commands,name={COMMANDS_PORT}");
    let fixed = [
        // Not reserved: what the guest does not touch need not be there.
        ["-object", &backend],
        ["-machine", "q35,memory-backend=memory"],
        ["-accel", "tcg,thread=multi"],
        // Told that string instructions are fast, kernels copy and clear memory by the byte, which takes the emulator eight times
        // as long as by eight.
        ["-cpu", "max,-erms,-fsrm"],
        // One: no other interrupts it, and its code needs no atomic accesses. All that runs side by side inside it takes
        // turns, which has been measured to be faster than two on two processors.
        ["-smp", "1"],
        ["-m", &memory],
        ["-display", "none"],
        ["-device", "virtio-serial-pci"],
        ["-device", &port],
        ["-device", &files],
        ["-device", &names],
        ["-device", &commands],
        ["-device", "virtio-blk-pci,drive=files"],
        ["-serial", "chardev:log"],
        ["-append", KERNEL_COMMAND_LINE],
    ];
    let mut args: Vec<OsString> = ["-no-user-config", "-nodefaults", "-no-reboot"].map(OsString::from).into();
    args.extend(fixed.iter().flatten().map(OsString::from));
    args.extend(["-kernel".into(), kernel.into()]);
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_qemu_names_the_package() {
        let error = Qemu::find_in(&"/nonexistent".into()).unwrap_err();
        assert!(error.to_string().contains("qemu-system-x86 (Debian trixie"), "{error}");
    }

    #[test]
    fn an_old_qemu_is_refused_and_a_new_one_taken() {
        let judge = |text| Qemu::judge(PROGRAM.into(), text);
        let old = judge("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright ...\n");
        let error = old.unwrap_err().to_string();
        assert!(error.contains("is 7.2.22") && error.contains("bookworm-backports"), "{error}");
        let new =
            judge("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2~bpo12+1)\nCopyright ...\n").unwrap();
        assert_eq!(new.version, "10.0.2 (Debian 1:10.0.2+ds-2~bpo12+1)");
        assert!(judge("").is_err());
    }

    #[test]
    fn memory_grows_in_powers_of_two() {
        assert_eq!(memory_for(512, 15 * MIB), 2048);
        assert_eq!(memory_for(1600, 0), 4096);
        assert_eq!(memory_for(1024, 400 * MIB), 4096);
    }
}
