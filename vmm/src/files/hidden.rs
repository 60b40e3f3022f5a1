//! What is mounted here and is no file of anybody's: the kernel's own file systems.

use std::collections::HashSet;
use std::fs;
use std::io;

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
    Ok(of(&fs::read_to_string("/proc/filesystems")?, &fs::read_to_string("/proc/self/mountinfo")?))
}

/// By what the kernel's two files say (Documentation/filesystems/proc.rst).
fn of(filesystems: &str, mounts: &str) -> HashSet<u64> {
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
        kernels.contains(kind).then_some(device)
    });
    hidden.collect()
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
        let device = rustix::fs::makedev;
        assert_eq!(of(filesystems, mounts), [device(0, 21), device(0, 22), device(0, 26)].into());
    }

    #[test]
    fn proc_is_hidden_here() {
        let proc = std::os::unix::fs::MetadataExt::dev(&fs::metadata("/proc").unwrap());
        let here = std::os::unix::fs::MetadataExt::dev(&fs::metadata("/etc").unwrap());
        let hidden = devices().unwrap();
        assert!(hidden.contains(&proc) && !hidden.contains(&here));
    }
}
