//! The control group of a task, in the unified hierarchy (version 2): `task->cgroups->dfl_cgrp->kn`, whose names lead to
//! the root (include/linux/cgroup-defs.h, kernfs.h).

use super::btf::Btf;
use super::file_name::append_name;
use crate::addr::Gva;
use crate::paging::PageFault;
use crate::virt_memory::ReadVirt;
use serde::{Deserialize, Serialize};

/// Deepest group that is named; what is above is left out.
const DEEPEST: usize = 16;
/// Longest part of a name that is read, in bytes.
const LONGEST_NAME: usize = 64;
/// Longest path: a slash before each name.
pub const LONGEST: usize = DEEPEST * (LONGEST_NAME + 1);

/// Where to read about it. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLayout {
    cgroups: u64,
    default: u64,
    node: u64,
    parent: u64,
    name: u64,
}

impl CgroupLayout {
    /// Finds it; `None` in a kernel without control groups.
    #[must_use]
    pub fn find(btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        let node = |member| offset("kernfs_node", member);
        Some(Self {
            cgroups: offset("task_struct", "cgroups")?,
            default: offset("css_set", "dfl_cgrp")?,
            node: offset("cgroup", "kn")?,
            // 6.15 has renamed it.
            parent: node("parent").or_else(|| node("__parent"))?,
            name: node("name")?,
        })
    }

    /// Appends the path of the group of the task at `task` (its `task_struct`) to `path`, at most [`LONGEST`] bytes:
    /// `/system.slice/ssh.service`, `/` for the root.
    ///
    /// # Errors
    /// The [`PageFault`] of reading there.
    pub fn path<M: ReadVirt + ?Sized>(
        &self,
        memory: &M,
        task: Gva,
        path: &mut Vec<u8>,
    ) -> Result<(), PageFault> {
        let pointer = |at: Gva, offset| memory.read_u64(at.add(offset)).map(Gva);
        let mut node = pointer(pointer(pointer(task, self.cgroups)?, self.default)?, self.node)?;
        // From the group up; the root has a name too, which is not part of any path.
        let mut names = [Gva(0); DEEPEST];
        let mut depth = 0;
        for name in &mut names {
            let parent = pointer(node, self.parent)?;
            if parent.0 == 0 {
                break;
            }
            *name = pointer(node, self.name)?;
            node = parent;
            depth += 1;
        }
        if depth == 0 {
            path.push(b'/');
        }
        for name in names.iter().take(depth).rev() {
            path.push(b'/');
            append_name::<LONGEST_NAME, _>(memory, *name, path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    const LAYOUT: CgroupLayout = CgroupLayout { cgroups: 8, default: 16, node: 24, parent: 0, name: 8 };

    fn at(offset: u64) -> Gva {
        Ram::BASE.add(offset)
    }

    /// A task at 0 whose group is the node at `node`.
    fn ram(node: u64) -> Ram {
        let ram = Ram::new();
        for (place, to) in [(8, 0x100), (0x110, 0x200), (0x218, node)] {
            ram.put(at(place), &at(to).0.to_le_bytes());
        }
        ram
    }

    fn path(ram: &Ram) -> Result<String, PageFault> {
        let mut path = Vec::new();
        LAYOUT.path(&ram.memory(), Ram::BASE, &mut path)?;
        assert!(path.len() <= LONGEST);
        Ok(String::from_utf8(path).unwrap())
    }

    #[test]
    fn names_lead_from_the_root_to_the_group() {
        let ram = ram(0x400);
        assert_eq!(path(&ram).unwrap(), "/");
        ram.put(at(0x400), &at(0x500).0.to_le_bytes());
        ram.put(at(0x408), &at(0x1ffd).0.to_le_bytes());
        ram.put(at(0x1ffd), b"ssh.service\0");
        assert_eq!(path(&ram).unwrap(), "/ssh.service");
        ram.put(at(0x500), &at(0x600).0.to_le_bytes());
        ram.put(at(0x508), &at(0x700).0.to_le_bytes());
        ram.put(at(0x700), b"system.slice\0");
        assert_eq!(path(&ram).unwrap(), "/system.slice/ssh.service");
    }

    #[test]
    fn a_chain_without_an_end_has_a_bounded_path() {
        let ram = ram(0x400);
        ram.put(at(0x400), &at(0x400).0.to_le_bytes());
        ram.put(at(0x408), &at(0x700).0.to_le_bytes());
        ram.put(at(0x700), &[b'x'; 100]);
        assert_eq!(path(&ram).unwrap().len(), LONGEST);
        ram.put(at(0x408), &8u64.to_le_bytes());
        assert!(path(&ram).is_err());
    }
}
