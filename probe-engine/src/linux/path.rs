//! The whole path of a `struct path`, as the kernel's d_path() makes it (fs/d_path.c): names from the entry up to the root of its
//! file system, then on where that is mounted, up to the first mount of its namespace.
//!
//! A process that has another root (chroot) sees less of it. What is renamed at that moment may be told with names of before and
//! after: nothing is locked.

use super::btf::Btf;
use super::file_name::append_name;
use crate::addr::Gva;
use crate::paging::PageFault;
use crate::virt_memory::ReadVirt;
use serde::{Deserialize, Serialize};

/// How many steps are made on the way up, over names and mounts.
const MOST_STEPS: usize = 2 * MOST_NAMES;
/// How many names a path has at most.
const MOST_NAMES: usize = LONGEST / 2;
/// The longest name with its NUL (NAME_MAX).
const LONGEST_NAME: usize = 256;
/// The longest path (PATH_MAX).
pub const LONGEST: usize = 4096;

/// Where to read about it. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathLayout {
    /// `path.mnt` and `path.dentry`
    mount: u32,
    entry: u32,
    /// `dentry.d_parent` and `dentry.d_name.name`
    parent: u32,
    name: u32,
    /// `vfsmount.mnt_root`
    root: u32,
    /// `mount.mnt`, `mount.mnt_parent` and `mount.mnt_mountpoint`
    inner: u32,
    above: u32,
    place: u32,
}

/// Why there is no path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPath {
    /// What leads there is not in memory.
    Fault(PageFault),
    /// It is longer than any that a kernel makes, or has no end.
    Endless,
}

impl From<PageFault> for NoPath {
    fn from(fault: PageFault) -> Self {
        Self::Fault(fault)
    }
}

impl PathLayout {
    /// Finds it; `None` in a kernel whose types do not say it.
    #[must_use]
    pub fn find(btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure, member| u32::try_from(btf.member(structure, member)?.offset()?).ok();
        Some(Self {
            mount: offset("path", "mnt")?,
            entry: offset("path", "dentry")?,
            parent: offset("dentry", "d_parent")?,
            name: offset("dentry", "d_name.name")?,
            root: offset("vfsmount", "mnt_root")?,
            inner: offset("mount", "mnt")?,
            above: offset("mount", "mnt_parent")?,
            place: offset("mount", "mnt_mountpoint")?,
        })
    }

    /// Appends the path at `at` (GVA of a `struct path`) to `path`, at most [`LONGEST`] bytes: `/etc/passwd`, `/` for the root. What
    /// is in no folder, as a pipe, is a name without a slash.
    ///
    /// # Errors
    /// [`NoPath`]; a part of it may have been appended.
    pub fn path<M: ReadVirt + ?Sized>(&self, memory: &M, at: Gva, path: &mut Vec<u8>) -> Result<(), NoPath> {
        let pointer = |at: Gva, offset: u32| memory.read_u64(at.add(offset.into())).map(Gva);
        let (mut mount, mut entry) = (pointer(at, self.mount)?, pointer(at, self.entry)?);
        let (mut names, mut depth) = ([Gva(0); MOST_NAMES], 0);
        let mut is_whole = None;
        for _ in 0..MOST_STEPS {
            if entry == pointer(mount, self.root)? {
                let own = Gva(mount.0.wrapping_sub(self.inner.into()));
                let above = pointer(own, self.above)?;
                if above == own {
                    is_whole = Some(true);
                    break;
                }
                (entry, mount) = (pointer(own, self.place)?, above.add(self.inner.into()));
                continue;
            }
            *names.get_mut(depth).ok_or(NoPath::Endless)? = pointer(entry, self.name)?;
            depth += 1;
            let parent = pointer(entry, self.parent)?;
            if parent == entry {
                is_whole = Some(false);
                break;
            }
            entry = parent;
        }
        let is_whole = is_whole.ok_or(NoPath::Endless)?;
        let start = path.len();
        if depth == 0 {
            path.push(b'/');
        }
        for (number, name) in names.iter().take(depth).rev().enumerate() {
            if is_whole || number > 0 {
                path.push(b'/');
            }
            append_name::<LONGEST_NAME, _>(memory, *name, path)?;
            if path.len() - start > LONGEST {
                return Err(NoPath::Endless);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    const LAYOUT: PathLayout =
        PathLayout { mount: 0, entry: 8, parent: 0, name: 8, root: 0, inner: 0x20, above: 0, place: 8 };

    fn at(offset: u64) -> Gva {
        Ram::BASE.add(offset)
    }

    /// Writes pointers, each at its place.
    fn put(ram: &Ram, pointers: &[(u64, u64)]) {
        pointers.iter().for_each(|(place, to)| ram.put(at(*place), &at(*to).0.to_le_bytes()));
    }

    fn path(ram: &Ram) -> Result<String, NoPath> {
        let mut path = Vec::new();
        LAYOUT.path(&ram.memory(), at(0), &mut path)?;
        Ok(String::from_utf8(path).unwrap())
    }

    /// A file `passwd` at 0x100 in a folder `etc` at 0x200 of the file system whose root is at 0x300. The mount at 0x400 is on `mnt` at
    /// 0x500 of the root at 0x600, whose mount at 0x700 is the first one.
    fn ram() -> Ram {
        let ram = Ram::new();
        put(&ram, &[(0, 0x420), (8, 0x100), (0x100, 0x200), (0x108, 0x800), (0x200, 0x300), (0x208, 0xffd)]);
        put(&ram, &[(0x300, 0x300), (0x420, 0x300), (0x400, 0x700), (0x408, 0x500), (0x500, 0x600)]);
        put(&ram, &[(0x508, 0x840), (0x600, 0x600), (0x720, 0x600), (0x700, 0x700)]);
        ram.put(at(0x800), b"passwd\0");
        // Over the end of a page.
        ram.put(at(0xffd), b"etc\0");
        ram.put(at(0x840), b"mnt\0");
        ram
    }

    #[test]
    fn names_lead_from_the_first_mount_to_the_file() {
        let ram = ram();
        assert_eq!(path(&ram).unwrap(), "/mnt/etc/passwd");
        put(&ram, &[(8, 0x300)]);
        assert_eq!(path(&ram).unwrap(), "/mnt");
        put(&ram, &[(0, 0x720), (8, 0x600)]);
        assert_eq!(path(&ram).unwrap(), "/");
    }

    #[test]
    fn what_is_in_no_folder_has_no_slash() {
        let ram = ram();
        put(&ram, &[(0x100, 0x100)]);
        assert_eq!(path(&ram).unwrap(), "passwd");
    }

    #[test]
    fn a_way_without_an_end_is_no_path() {
        let ram = ram();
        // Two folders that are in each other; then two mounts.
        put(&ram, &[(0x200, 0x100)]);
        assert_eq!(path(&ram), Err(NoPath::Endless));
        let ram = self::ram();
        put(&ram, &[(0x600, 0x600), (0x700, 0x400), (0x708, 0x300)]);
        assert_eq!(path(&ram), Err(NoPath::Endless));
        ram.put(at(8), &8_u64.to_le_bytes());
        assert!(matches!(path(&ram), Err(NoPath::Fault(_))));
    }
}
