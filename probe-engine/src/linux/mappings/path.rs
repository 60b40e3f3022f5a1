//! The path of an open file, as `d_path` has it (fs/d_path.c): names up to the root of its mount, then on from where that is mounted.

use crate::addr::Gva;
use crate::linux::btf::Btf;
use crate::virt_memory::ReadVirt;
use serde::{Deserialize, Serialize};

/// No path is longer that is told, in bytes.
pub const LONGEST_PATH: usize = 256;
/// Most names and mounts of a path.
const MOST_PARTS: usize = 64;
/// No name is longer (NAME_MAX), in bytes.
const LONGEST_NAME: usize = 255;

/// Where to read about it. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PathLayout {
    /// In `struct file`.
    mount: u64,
    entry: u64,
    /// In `struct dentry`.
    parent: u64,
    name: u64,
    length: u64,
    /// In `struct vfsmount`.
    root: u64,
    /// In `struct mount`, which has a `struct vfsmount` there.
    own: u64,
    above: u64,
    mounted_at: u64,
}

/// A path, as the guest has it: any bytes but NUL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MappedPath {
    /// The path is at its end.
    bytes: [u8; LONGEST_PATH],
    length: usize,
}

impl MappedPath {
    const EMPTY: Self = Self { bytes: [0; LONGEST_PATH], length: 0 };

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(LONGEST_PATH.saturating_sub(self.length)..).unwrap_or_default()
    }

    /// Room for a name and a slash in front of what is there.
    fn room(&mut self, length: usize) -> Option<&mut [u8]> {
        let end = LONGEST_PATH.checked_sub(self.length)?;
        let start = end.checked_sub(length + 1)?;
        self.length += length + 1;
        let (slash, name) = self.bytes.get_mut(start..end)?.split_first_mut()?;
        *slash = b'/';
        Some(name)
    }
}

impl PathLayout {
    pub(super) fn find(btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        Some(Self {
            mount: offset("file", "f_path.mnt")?,
            entry: offset("file", "f_path.dentry")?,
            parent: offset("dentry", "d_parent")?,
            name: offset("dentry", "d_name.name")?,
            length: offset("dentry", "d_name.len")?,
            root: offset("vfsmount", "mnt_root")?,
            own: offset("mount", "mnt")?,
            above: offset("mount", "mnt_parent")?,
            mounted_at: offset("mount", "mnt_mountpoint")?,
        })
    }

    /// That of an open `file` (its `struct file`); `None` where it is longer than paths are, or cannot be read.
    pub(super) fn of<M: ReadVirt + ?Sized>(&self, memory: &M, file: Gva) -> Option<MappedPath> {
        let pointer = |at: Gva, offset: u64| memory.read_u64(at.add(offset)).ok().map(Gva);
        let (mut mount, mut entry) = (pointer(file, self.mount)?, pointer(file, self.entry)?);
        let mut path = MappedPath::EMPTY;
        for _ in 0..MOST_PARTS {
            if entry == pointer(mount, self.root)? {
                let own = Gva(mount.0.checked_sub(self.own)?);
                let above = pointer(own, self.above)?;
                if above == own {
                    return Some(path);
                }
                (mount, entry) = (above.add(self.own), pointer(own, self.mounted_at)?);
                continue;
            }
            let parent = pointer(entry, self.parent)?;
            if parent == entry {
                // Memory that has no file begins so.
                return Some(path).filter(|path| path.length > 0);
            }
            // Something else is behind it.
            let length = memory.read_u64(entry.add(self.length)).ok()? as u32 as usize;
            let name = path.room(length).filter(|_| length <= LONGEST_NAME)?;
            memory.read(pointer(entry, self.name)?, name).ok()?;
            if !is_name(name) {
                return None;
            }
            entry = parent;
        }
        None
    }
}

/// Whether a folder can have something of that name.
fn is_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;
    use crate::linux::testing::Ram;

    pub(in super::super) const LAYOUT: PathLayout = PathLayout {
        mount: 0,
        entry: 8,
        parent: 0,
        name: 8,
        length: 16,
        root: 0,
        own: 0x10,
        above: 0,
        mounted_at: 8,
    };

    /// An open file below the root of the topmost mount.
    pub(in super::super) fn file(ram: &Ram, file: Gva, names: &[&str]) {
        let put = |place: Gva, word: u64| ram.put(place, &word.to_le_bytes());
        let mount = file.add(0x200);
        put(mount, mount.0);
        put(mount.add(0x10), entries(ram, file.add(0x300), file.add(0x300), &[]).0);
        put(file, mount.add(0x10).0);
        put(file.add(8), entries(ram, file.add(0x320), file.add(0x300), names).0);
    }

    /// Names, one below the other, below `parent`, from `at` on. Gives the last one.
    pub(super) fn entries(ram: &Ram, at: Gva, parent: Gva, names: &[&str]) -> Gva {
        let put = |place: Gva, word: u64| ram.put(place, &word.to_le_bytes());
        put(parent, parent.0);
        let mut last = parent;
        for (n, name) in (0..).zip(names) {
            let entry = at.add(0x40 * n);
            put(entry, last.0);
            put(entry.add(8), entry.add(24).0);
            put(entry.add(16), name.len() as u64 | 0x1234 << 32);
            ram.put(entry.add(24), name.as_bytes());
            last = entry;
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{LAYOUT, entries, file};
    use super::*;
    use crate::linux::testing::Ram;

    fn at(offset: u64) -> Gva {
        Ram::BASE.add(offset)
    }

    fn path(ram: &Ram, file: Gva) -> Option<String> {
        let path = LAYOUT.of(&ram.memory(), file)?;
        Some(String::from_utf8(path.bytes().to_vec()).unwrap())
    }

    #[test]
    fn names_lead_to_the_topmost_mount() {
        let ram = Ram::new();
        file(&ram, at(0x100), &["usr", "bin", "ls"]);
        assert_eq!(path(&ram, at(0x100)).as_deref(), Some("/usr/bin/ls"));
        // What was its topmost mount is mounted in another one.
        file(&ram, at(0x1000), &["mnt", "disk"]);
        let (mount, above) = (at(0x300), at(0x1200));
        ram.put(mount, &above.0.to_le_bytes());
        let place = ram.memory().read_u64(at(0x1008)).unwrap();
        ram.put(mount.add(8), &place.to_le_bytes());
        assert_eq!(path(&ram, at(0x100)).as_deref(), Some("/mnt/disk/usr/bin/ls"));
        // Mounts in a circle.
        ram.put(above, &mount.0.to_le_bytes());
        ram.put(above.add(8), &at(0x400).0.to_le_bytes());
        assert_eq!(path(&ram, at(0x100)), None);
    }

    #[test]
    fn a_path_without_an_end_is_none() {
        let ram = Ram::new();
        file(&ram, at(0x100), &["a"]);
        let only = at(0x100 + 0x320);
        let put = |offset: u64, word: u64| ram.put(only.add(offset), &word.to_le_bytes());
        put(16, 256);
        assert_eq!(path(&ram, at(0x100)), None, "no name is so long");
        put(16, 2);
        assert_eq!(path(&ram, at(0x100)), None, "no name has a NUL");
        put(16, u64::MAX);
        assert_eq!(path(&ram, at(0x100)), None);
        for name in ["..", ".", "a/b", ""] {
            file(&ram, at(0x100), &[name]);
            assert_eq!(path(&ram, at(0x100)), None, "{name} is no name");
        }
        file(&ram, at(0x100), &["a"]);
        put(0, only.0);
        assert_eq!(path(&ram, at(0x100)), None, "it is in no folder");
        let ring = entries(&ram, at(0x2000), at(0x2800), &["a", "b"]);
        ram.put(at(0x2000), &ring.0.to_le_bytes());
        ram.put(at(0x108), &ring.0.to_le_bytes());
        assert_eq!(path(&ram, at(0x100)), None, "names in a circle");
        let long = vec!["x".repeat(30); 9];
        let names: Vec<&str> = long.iter().map(String::as_str).collect();
        file(&ram, at(0x100), names.get(..8).unwrap());
        assert_eq!(path(&ram, at(0x100)).map(|path| path.len()), Some(8 * 31));
        file(&ram, at(0x100), &names);
        assert_eq!(path(&ram, at(0x100)), None, "it is longer than paths are told");
    }
}
