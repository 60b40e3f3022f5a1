//! What is mounted here and is no file of anybody's: the kernel's own file systems.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// File systems without a device of their own that hold files all the same. All others of that kind show the kernel.
const FILES: [&str; 17] = [
    "9p", "aufs", "bcachefs", "ceph", "cifs", "fuse", "nfs", "nfs4", "overlay", "ramfs", "rootfs", "shiftfs",
    "smb3", "tmpfs", "ubifs", "virtiofs", "zfs",
];

/// The devices (as `stat` says them) on which what is seen is not shown.
///
/// # Errors
/// When the kernel does not say what is mounted.
pub(super) fn devices() -> io::Result<HashSet<u64>> {
    Ok(all()?.into_iter().map(|hidden| hidden.device).collect())
}

/// Something of that kind in `folder`: who may change that folder could change the kernel's state there.
///
/// # Errors
/// When the kernel does not say what is mounted.
pub fn kernels_own_in(folder: &Path) -> io::Result<Option<PathBuf>> {
    Ok(all()?.into_iter().map(|hidden| hidden.at).find(|at| at.starts_with(folder)))
}

/// A file system of the kernel's own.
#[derive(Debug, PartialEq, Eq)]
struct Hidden {
    device: u64,
    at: PathBuf,
}

fn all() -> io::Result<Vec<Hidden>> {
    Ok(of(&fs::read_to_string("/proc/filesystems")?, &fs::read_to_string("/proc/self/mountinfo")?))
}

/// By what the kernel's two files say (Documentation/filesystems/proc.rst).
fn of(filesystems: &str, mounts: &str) -> Vec<Hidden> {
    let kernels: HashSet<&str> = filesystems
        .lines()
        .filter_map(|line| line.strip_prefix("nodev"))
        .map(str::trim)
        .filter(|kind| !FILES.contains(kind))
        .collect();
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
        assert_eq!(of(filesystems, mounts), expected);
        assert_eq!(unescaped("/a\\134b\\9\\04"), PathBuf::from("/a\\b\\9\\04"));
    }

    #[test]
    fn proc_is_hidden_here() {
        let proc = std::os::unix::fs::MetadataExt::dev(&fs::metadata("/proc").unwrap());
        let here = std::os::unix::fs::MetadataExt::dev(&fs::metadata("/etc").unwrap());
        let hidden = devices().unwrap();
        assert!(hidden.contains(&proc) && !hidden.contains(&here));
        assert!(kernels_own_in(Path::new("/")).unwrap().is_some());
        assert_eq!(kernels_own_in(Path::new("/etc")).unwrap(), None);
    }
}
