//! What a process has mapped at an address: which file, and where in it, as `/proc/PID/maps` tells (mm/mmap.c, fs/proc/task_mmu.c).
//!
//! The guest goes on meanwhile, and may change what is read here. What was found is looked at once more: it has the address.

mod path;
mod tree;

use super::btf::Btf;
use crate::addr::Gva;
use crate::virt_memory::ReadVirt;
use path::PathLayout;
pub use path::{LONGEST_PATH, MappedPath};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tree::AreaTree;

/// `vm_pgoff` counts these, in bytes.
const PAGE: u64 = 4096;

/// Where to read about it. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappingsLayout {
    /// Of `task_struct`.
    mm: u64,
    areas: AreaTree,
    file: u64,
    page_offset: u64,
    path: PathLayout,
    inode: u64,
    length: u64,
    modified: Modified,
}

/// When a file was changed last: `inode->i_mtime`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Modified {
    seconds: u64,
    nanos: u64,
}

/// A part of a file that a process has in its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapping {
    /// Where it begins (GVA).
    pub start: Gva,
    /// Where it ends (GVA).
    pub end: Gva,
    /// So many bytes from the file's start.
    pub offset: u64,
    /// How long the file is, in bytes.
    pub length: u64,
    /// When it was changed last, in nanoseconds since 1970.
    pub modified: i64,
}

impl Mapping {
    /// Where in the file an address is, if it is there.
    #[must_use]
    pub fn offset_of(&self, at: Gva) -> Option<u64> {
        let inside = at.offset_from(self.start).filter(|_| at < self.end)?;
        self.offset.checked_add(inside)
    }
}

impl MappingsLayout {
    /// Finds it; `None` for a kernel whose types do not say it.
    #[must_use]
    pub fn find(btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        let inode = |member: &str| offset("inode", member);
        // 6.7 and 6.11 have renamed them.
        let seconds = ["i_mtime_sec", "__i_mtime.tv_sec", "i_mtime.tv_sec"].into_iter().find_map(inode)?;
        let nanos = ["i_mtime_nsec", "__i_mtime.tv_nsec", "i_mtime.tv_nsec"].into_iter().find_map(inode)?;
        Some(Self {
            mm: offset("task_struct", "mm")?,
            areas: AreaTree::find(btf)?,
            file: offset("vm_area_struct", "vm_file")?,
            page_offset: offset("vm_area_struct", "vm_pgoff")?,
            path: PathLayout::find(btf)?,
            inode: offset("file", "f_inode")?,
            length: inode("i_size")?,
            modified: Modified { seconds, nanos },
        })
    }

    /// What the process of `task` (its `task_struct`) has at `at`, and the path of the file, from the topmost mount on that it is seen
    /// in: also of one that has been deleted since. `None` where that is no file, or cannot be read.
    #[must_use]
    pub fn mapping<M: ReadVirt + ?Sized>(
        &self,
        memory: &M,
        task: Gva,
        at: Gva,
    ) -> Option<(Mapping, MappedPath)> {
        let read = |at: Gva, offset: u64| memory.read_u64(at.add(offset)).ok();
        let pointer = |at: Gva, offset: u64| read(at, offset).map(Gva).filter(|to| to.is_kernels());
        let (area, Range { start, end }) = self.areas.area(memory, pointer(task, self.mm)?, at)?;
        let file = pointer(area, self.file)?;
        let inode = pointer(file, self.inode)?;
        let seconds = read(inode, self.modified.seconds)?.cast_signed();
        let nanos = read(inode, self.modified.nanos)? & u64::from(u32::MAX);
        let length = read(inode, self.length)?;
        let mapping = Mapping {
            start,
            end,
            offset: read(area, self.page_offset)?.checked_mul(PAGE).filter(|offset| *offset < length)?,
            length,
            modified: seconds.checked_mul(1_000_000_000)?.checked_add_unsigned(nanos)?,
        };
        Some((mapping, self.path.of(memory, file)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    #[test]
    fn an_address_is_in_a_file_or_not() {
        let mapping =
            Mapping { start: Gva(0x5000), end: Gva(0x7000), offset: 0x2000, length: 1 << 20, modified: 0 };
        assert_eq!(mapping.offset_of(Gva(0x5010)), Some(0x2010));
        assert_eq!(mapping.offset_of(Gva(0x6fff)), Some(0x3fff));
        assert_eq!((mapping.offset_of(Gva(0x4fff)), mapping.offset_of(Gva(0x7000))), (None, None));
        let far = Mapping { offset: u64::MAX - 1, ..mapping };
        assert_eq!(far.offset_of(Gva(0x5002)), None);
    }

    #[test]
    fn a_process_has_a_file_there() {
        let ram = Ram::new();
        let at = |offset: u64| Ram::BASE.add(offset);
        let areas = tree::testing::areas(&ram, at(0x1000), &[(0x40_0000, 0x40_2000, at(0x600))]);
        let layout = MappingsLayout {
            mm: 8,
            areas,
            file: 0x50,
            page_offset: 0x58,
            path: path::testing::LAYOUT,
            inode: 0x18,
            length: 0x20,
            modified: Modified { seconds: 0x28, nanos: 0x30 },
        };
        path::testing::file(&ram, at(0x700), &["usr", "bin", "ls"]);
        let words = [
            (0x8, at(0x1000).0),
            // The area: its file, and its second page.
            (0x650, at(0x700).0),
            (0x658, 2),
            (0x718, at(0x780).0),
            // The inode, whose nanoseconds have another number behind them.
            (0x7a0, 0x5000),
            (0x7a8, 7),
            (0x7b0, 9 | 1 << 40),
        ];
        words.iter().for_each(|(place, word)| ram.put(at(*place), &word.to_le_bytes()));
        let memory = ram.memory();
        let (mapping, path) = layout.mapping(&memory, at(0), Gva(0x40_1234)).unwrap();
        assert_eq!(mapping.offset_of(Gva(0x40_1234)), Some(0x3234));
        assert_eq!((mapping.length, mapping.modified), (0x5000, 7_000_000_009));
        assert_eq!(path.bytes(), b"/usr/bin/ls");
        assert!(layout.mapping(&memory, at(0), Gva(0x40_2000)).is_none());
        ram.put(at(0x650), &0u64.to_le_bytes());
        assert!(layout.mapping(&memory, at(0), Gva(0x40_1234)).is_none(), "it is no file");
        assert!(layout.mapping(&memory, Gva(0), Gva(0x40_1234)).is_none());
    }
}
