//! What is mounted here and is no file of anybody's: the kernel's own file systems.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

/// File systems without a device of their own that hold files all the same. All others of that kind show the kernel.
const FILES: [&str; 17] = [
    "9p", "aufs", "bcachefs", "ceph", "cifs", "fuse", "nfs", "nfs4", "overlay", "ramfs", "rootfs", "shiftfs",
    "smb3", "tmpfs", "ubifs", "virtiofs", "zfs",
];

/// Something of that kind in `folder`, or what `folder` itself is in: who may change that folder could change the kernel's state.
///
/// # Errors
/// When the kernel does not say what is mounted, or the folder is not there.
pub fn kernels_own_in(folder: &Path) -> io::Result<Option<PathBuf>> {
    let device = fs::metadata(folder)?.dev();
    let own = Mounts::now()?.hidden()?;
    Ok(own.into_iter().find(|own| own.at.starts_with(folder) || own.device == device).map(|own| own.at))
}

/// What is mounted here, as the kernel says it, which may change at any time.
pub(super) struct Mounts {
    /// The kinds of the kernel's own file systems.
    kernels: HashSet<String>,
    /// Open, so that it can be read where no more files can be opened.
    list: File,
    devices: RwLock<HashSet<u64>>,
}

impl Mounts {
    /// # Errors
    /// When the kernel does not say what is mounted.
    pub(super) fn now() -> io::Result<Self> {
        let kernels = kernels_own(&fs::read_to_string("/proc/filesystems")?);
        let list = File::open("/proc/thread-self/mountinfo")?;
        let mounts = Self { kernels, list, devices: RwLock::default() };
        mounts.look()?;
        Ok(mounts)
    }

    /// Whether nothing is shown of what is on this device (as `stat` says it).
    pub(super) fn is_hidden(&self, device: u64) -> bool {
        self.devices.read().unwrap_or_else(PoisonError::into_inner).contains(&device)
    }

    /// Looks again, if something was mounted since the last look (Documentation/filesystems/proc.rst: the list can be polled).
    /// Says where the kernel's own file systems are then.
    ///
    /// # Errors
    /// When the kernel does not say what is mounted.
    pub(super) fn changed(&self) -> io::Result<Option<Vec<PathBuf>>> {
        let mut fds = [PollFd::new(&self.list, PollFlags::PRI)];
        poll(&mut fds, Some(&Timespec::default()))?;
        let [list] = &fds;
        if list.revents().is_empty() {
            return Ok(None);
        }
        Ok(Some(self.look()?.into_iter().map(|own| own.at).collect()))
    }

    fn look(&self) -> io::Result<Vec<Hidden>> {
        let hidden = self.hidden()?;
        let devices = hidden.iter().map(|own| own.device).collect();
        *self.devices.write().unwrap_or_else(PoisonError::into_inner) = devices;
        Ok(hidden)
    }

    fn hidden(&self) -> io::Result<Vec<Hidden>> {
        let (mut list, mut mounts) = (&self.list, Vec::new());
        list.rewind()?;
        list.read_to_end(&mut mounts)?;
        Ok(of(&self.kernels, &String::from_utf8_lossy(&mounts)))
    }
}

/// A file system of the kernel's own.
#[derive(Debug, PartialEq, Eq)]
struct Hidden {
    device: u64,
    at: PathBuf,
}

/// The kinds of the kernel's own file systems, by what it says of all (`/proc/filesystems`, Documentation/filesystems/proc.rst).
fn kernels_own(filesystems: &str) -> HashSet<String> {
    let kinds = filesystems.lines().filter_map(|line| line.strip_prefix("nodev")).map(str::trim);
    kinds.filter(|kind| !FILES.contains(kind)).map(str::to_owned).collect()
}

/// By the kernel's list of what is mounted.
fn of(kernels: &HashSet<String>, mounts: &str) -> Vec<Hidden> {
    let hidden = mounts.lines().filter_map(|line| {
        let (major, minor) = line.split(' ').nth(2)?.split_once(':')?;
        let kind = line.split_once(" - ")?.1.split(' ').next()?;
        let device = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let at = unescaped(line.split(' ').nth(4)?);
        kernels.contains(kind).then_some(Hidden { device, at })
    });
    hidden.collect()
}

/// A path as the kernel writes it there: a backslash and three octal digits stand for a byte.
fn unescaped(path: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let digits = behind.first_chunk::<3>().filter(|_| *first == b'\\');
        let byte = digits.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { behind.get(3..).unwrap_or_default() } else { behind };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_own_are_hidden_and_files_are_not() {
        let filesystems = "nodev\tsysfs\nnodev\ttmpfs\nnodev\tproc\n\text4\nnodev\toverlay\nnodev\tautofs\n";
        let mounts = "22 28 0:21 / /sys rw,relatime shared:7 - sysfs sysfs rw\n\
                      23 28 0:22 / /proc rw - proc proc rw\n\
                      28 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
                      29 28 0:25 / /dev/shm rw shared:3 - tmpfs tmpfs rw\n\
                      30 28 0:26 / /misc\\040x rw - autofs systemd-1 rw\n\
                      broken\n31 28 x:y / / rw - proc p rw\n";
        let hidden = |minor, at: &str| Hidden { device: rustix::fs::makedev(0, minor), at: at.into() };
        let expected = [hidden(21, "/sys"), hidden(22, "/proc"), hidden(26, "/misc x")];
        assert_eq!(of(&kernels_own(filesystems), mounts), expected);
        assert_eq!(unescaped("/a\\134b\\9\\04"), PathBuf::from("/a\\b\\9\\04"));
    }

    #[test]
    fn proc_is_hidden_here() {
        let device = |path: &str| fs::metadata(path).unwrap().dev();
        let mounts = Mounts::now().unwrap();
        assert!(mounts.is_hidden(device("/proc")) && !mounts.is_hidden(device("/etc")));
        assert!(kernels_own_in(Path::new("/")).unwrap().is_some());
        assert_eq!(kernels_own_in(Path::new("/etc")).unwrap(), None);
        // Nothing is mounted below it, and it is the kernel's all the same.
        assert!(kernels_own_in(Path::new("/proc/sys/vm")).unwrap().is_some());
    }
}
