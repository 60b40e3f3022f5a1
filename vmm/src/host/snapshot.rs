//! A host that has booted once, kept in a file: starting from it takes a tenth of a second instead of seconds.
//!
//! The file's name says what it was made from. Those that were not used for the longest time are removed when a new one is
//! made: several versions of this program may take turns. A file appears under its name only when it is whole, and one process at a time makes one.

use super::disk::Disk;
use super::machine::{EmulatorError, QemuProcess, Start};
use super::processor;
use super::qemu::{HostImage, HostSize, Qemu, QemuError, fingerprint, machine_args};
use super::qmp::{Qmp, QmpError};
use rustix::process::geteuid;
use sha2::{Digest, Sha256};
use std::error::Error;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use thiserror::Error;

/// A boot takes 4 s here, and a restored host answers within 0.2 s; this is for a loaded machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// Held by whoever makes one.
const LOCK: &str = "lock";
/// One that is being made.
const UNFINISHED: &str = "unfinished";

/// A bigger host has none: the kernel describes each page in memory, so that 64 GiB make a snapshot of 1.3 GB.
const MEMORY_MAX_MIB: u64 = 16 << 10;

/// Why there is no snapshot.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// QEMU is missing or too old.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// The host's kernel is not there.
    #[error("cannot read the emulated host's kernel {}", path.display())]
    Kernel {
        /// Its path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The initramfs could not be built.
    #[error("cannot build the emulated host's initramfs")]
    Initramfs(#[source] Box<dyn Error + Send + Sync>),
    /// The host does not boot.
    #[error(transparent)]
    Machine(#[from] EmulatorError),
    /// The cache folder cannot be used.
    #[error("cannot keep the emulated host in {}", path.display())]
    Cache {
        /// The folder or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// QEMU could not write it.
    #[error("cannot keep the emulated host: {0}")]
    Save(String),
    /// It would be too big.
    #[error("an emulated host of {0} MiB is too big to keep; up to {MEMORY_MAX_MIB} MiB are kept")]
    TooBig(u64),
}

impl SnapshotError {
    /// Whether the host can still be booted.
    pub(super) fn leaves_a_boot(&self) -> bool {
        matches!(self, Self::Cache { .. } | Self::Save(_) | Self::TooBig(_))
    }
}

/// Makes the snapshot of a host with `memory_mib`, unless it is there: `setup` calls this, so that the first run is
/// as fast as any.
///
/// # Errors
/// See [`SnapshotError`].
pub fn prepare(image: &HostImage<'_>, memory_mib: u64) -> Result<(), SnapshotError> {
    let (qemu, size) = (Qemu::find()?, HostSize { memory_mib });
    Place::of(&qemu, image, size)?.open_or_make(&qemu, image).map(|_| ())
}

/// Where the snapshot of a host is, or will be.
pub(super) struct Place {
    folder: PathBuf,
    /// What the host was made from, without its size.
    key: String,
    size: HostSize,
}

impl Place {
    /// For the host that `image` describes.
    pub(super) fn of(qemu: &Qemu, image: &HostImage<'_>, size: HostSize) -> Result<Self, SnapshotError> {
        let kernel = fingerprint(image.kernel)
            .map_err(|source| SnapshotError::Kernel { path: image.kernel.into(), source })?;
        let args = machine_args(image.kernel, HostSize { memory_mib: 0 });
        let mut hash = Sha256::new();
        let parts = [qemu.path.as_os_str().as_bytes(), qemu.version.as_bytes(), kernel.as_bytes()];
        let parts = parts.into_iter().chain([image.initramfs_key.as_bytes()]);
        for part in parts.chain(args.iter().map(|arg| arg.as_bytes())) {
            hash.update(part);
            hash.update([0]);
        }
        let key = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { folder: image.folder(), key, size })
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}-{}m", self.key, self.size.memory_mib))
    }

    /// Whether there is a snapshot.
    pub(super) fn is_made(&self) -> bool {
        self.path().is_file()
    }

    /// Opens the snapshot; makes it first if it is not there.
    pub(super) fn open_or_make(&self, qemu: &Qemu, image: &HostImage<'_>) -> Result<File, SnapshotError> {
        if self.size.memory_mib > MEMORY_MAX_MIB {
            return Err(SnapshotError::TooBig(self.size.memory_mib));
        }
        let unusable = |path: &Path| {
            let path = path.to_owned();
            move |source| SnapshotError::Cache { path, source }
        };
        let folder = &self.folder;
        own(folder).map_err(unusable(folder))?;
        if let Ok(state) = File::open(self.path()) {
            // It has been used now. Where that cannot be noted down it may be made again sooner.
            let _ = state.set_modified(SystemTime::now());
            return Ok(state);
        }
        let lock = folder.join(LOCK);
        // Held until this returns; whoever waits for it finds the snapshot made.
        let guard = OpenOptions::new().write(true).create(true).truncate(false).open(&lock);
        let guard = guard.and_then(|file| match file.try_lock() {
            Ok(()) => Ok(file),
            Err(_) => {
                (image.notice)("waiting for another process, which is preparing the emulated host");
                file.lock().map(|()| file)
            }
        });
        guard.map_err(unusable(&lock)).and_then(|_guard| {
            if let Ok(state) = File::open(self.path()) {
                return Ok(state);
            }
            remove_oldest(folder).map_err(unusable(folder))?;
            (image.notice)("preparing the emulated host; this is done once and takes some seconds");
            self.make(qemu, image, &folder.join(UNFINISHED))
        })
    }

    /// Removes the snapshot `state`, which cannot be restored, unless another one has taken its place.
    pub(super) fn remove(&self, state: &File) {
        let file = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let (ours, there) = (state.metadata().map(file), fs::metadata(self.path()).map(file));
        if ours.is_ok_and(|ours| there.is_ok_and(|there| ours == there)) {
            // If it cannot be removed, the next run says again that it cannot be restored.
            let _ = fs::remove_file(self.path());
        }
    }

    fn make(&self, qemu: &Qemu, image: &HostImage<'_>, unfinished: &Path) -> Result<File, SnapshotError> {
        let unusable = |source| SnapshotError::Cache { path: unfinished.into(), source };
        let options = &mut OpenOptions::new();
        let options = options.read(true).write(true).create_new(true).mode(0o600);
        let state = options.open(unfinished).map_err(unusable)?;
        let made = self.boot_and_save(qemu, image, &state);
        if made.is_err() {
            // The cause is worth more than a file that the next run removes anyway.
            let _ = fs::remove_file(unfinished);
        }
        made?;
        fs::rename(unfinished, self.path()).map_err(unusable)?;
        File::open(self.path()).map_err(unusable)
    }

    fn boot_and_save(&self, qemu: &Qemu, image: &HostImage<'_>, state: &File) -> Result<(), SnapshotError> {
        let disk = Disk::new().map_err(EmulatorError::SetUp)?;
        let mut machine = boot(qemu, image, self.size, &disk)?;
        machine.wait_ready(PATIENCE)?;
        let save = || Qmp::new(machine.monitor()?)?.save(&path_for_qemu(state));
        save().map_err(|error: QmpError| SnapshotError::Save(error.to_string()))
    }
}

/// Makes the folder, unless it is there. A snapshot is run as it is, and sees all that the host is given: nobody else may
/// put one there.
fn own(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let metadata = fs::symlink_metadata(folder)?;
    if metadata.uid() == geteuid().as_raw() && metadata.is_dir() && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other("the folder belongs to another user, or others may write to it"))
}

/// Removes what was left unfinished, and the snapshots that were not used for the longest time.
fn remove_oldest(folder: &Path) -> io::Result<()> {
    /// So many are kept, beside the one that is about to be made: each has a hundred megabytes or more.
    const KEPT: usize = 3;
    let mut snapshots = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == UNFINISHED {
            fs::remove_file(entry.path())?;
        } else if name != LOCK && !processor::is_lock(name.as_bytes()) {
            // One that cannot be restored is removed by whoever finds that out.
            if let Ok(metadata) = entry.metadata() {
                snapshots.push((metadata.modified()?, entry.path()));
            }
        }
    }
    snapshots.sort();
    let old = snapshots.len().saturating_sub(KEPT);
    snapshots.iter().take(old).try_for_each(|(_, path)| fs::remove_file(path))
}

/// A path to one of our open files that QEMU, another process, can use, whatever characters its own path has.
fn path_for_qemu(file: &File) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
}

/// Boots the host.
pub(super) fn boot(
    qemu: &Qemu,
    image: &HostImage<'_>,
    size: HostSize,
    disk: &Disk,
) -> Result<QemuProcess, SnapshotError> {
    let initramfs = (image.initramfs)().map_err(SnapshotError::Initramfs)?;
    Ok(QemuProcess::start(qemu, image, size, disk, &Start::Boot(&initramfs))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_folder_that_others_write_to_is_not_used() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/host");
        own(&folder).unwrap();
        own(&folder).unwrap();
        let link = parent.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(own(&link).is_err());
        fs::set_permissions(&folder, Permissions::from_mode(0o770)).unwrap();
        assert!(own(&folder).is_err());
    }

    #[test]
    fn only_the_snapshot_that_failed_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let size = HostSize { memory_mib: 1 };
        let place = Place { folder: folder.path().into(), key: "key".to_owned(), size };
        let failed = File::create(place.path()).unwrap();
        fs::remove_file(place.path()).unwrap();
        File::create(place.path()).unwrap();
        place.remove(&failed);
        assert!(place.path().exists());
        place.remove(&File::open(place.path()).unwrap());
        assert!(!place.path().exists());
    }

    #[test]
    fn snapshots_of_other_programs_are_kept_until_there_are_many() {
        let folder = tempfile::tempdir().unwrap();
        let names = [LOCK, UNFINISHED, "processor-1", "a", "b", "c", "d", "e"];
        for (age, name) in names.iter().enumerate() {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(100 - age as u64)).unwrap();
        }
        remove_oldest(folder.path()).unwrap();
        let left = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, ["a", "b", "c", LOCK, "processor-1"]);
    }
}
