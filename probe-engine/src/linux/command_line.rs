//! The words with which the program of a task was started, as `/proc/PID/cmdline` has them: `mm->arg_start` to `mm->arg_end`, in the
//! process's own memory (fs/proc/base.c), where the process may change them.

use super::btf::Btf;
use crate::addr::Gva;
use crate::paging::PageFault;
use crate::virt_memory::{ReadVirt, page_rest};
use serde::{Deserialize, Serialize};

/// So many bytes of the words are read.
pub const LONGEST: usize = 1024;
/// Addresses below belong to processes: the lower half of the address space, with 4 and with 5 levels.
const USER_END: u64 = 1 << 56;

/// Where to read about it. Offsets in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandLineLayout {
    /// `task_struct.mm`
    space: u64,
    /// `mm_struct.arg_start` and `mm_struct.arg_end`
    start: u64,
    end: u64,
}

/// How much of a command line was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Words {
    /// All of it.
    Whole,
    /// It goes on.
    Cut,
}

impl CommandLineLayout {
    /// Finds it; `None` in a kernel whose types do not say it.
    #[must_use]
    pub fn find(btf: &Btf<'_>) -> Option<Self> {
        let offset = |structure: &str, member: &str| btf.member(structure, member)?.offset();
        Some(Self {
            space: offset("task_struct", "mm")?,
            start: offset("mm_struct", "arg_start")?,
            end: offset("mm_struct", "arg_end")?,
        })
    }

    /// Appends the words of the task at `task` (its `task_struct`), which runs, to `words`, with spaces between them. A task of the
    /// kernel's own has none.
    ///
    /// # Errors
    /// The [`PageFault`] of reading there.
    pub fn words<M: ReadVirt + ?Sized>(
        &self,
        memory: &M,
        task: Gva,
        words: &mut Vec<u8>,
    ) -> Result<Words, PageFault> {
        let space = Gva(memory.read_u64(task.add(self.space))?);
        if space.0 == 0 {
            return Ok(Words::Whole);
        }
        let start = memory.read_u64(space.add(self.start))?;
        let end = memory.read_u64(space.add(self.end))?;
        if start >= USER_END {
            return Err(PageFault { at: Gva(start), code: 0, canonical: true });
        }
        let length = usize::try_from(end.saturating_sub(start)).unwrap_or(usize::MAX);
        let mut left = length.min(LONGEST);
        let (mut at, first) = (Gva(start), words.len());
        while left > 0 {
            let have = words.len();
            let piece = page_rest(at).min(left);
            words.resize(have + piece, 0);
            memory.read(at, words.get_mut(have..).unwrap_or_default())?;
            (at, left) = (at.add(piece as u64), left - piece);
        }
        // Each word ends in a NUL.
        while words.len() > first && words.last() == Some(&0) {
            words.pop();
        }
        words.iter_mut().skip(first).filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
        Ok(if length > LONGEST { Words::Cut } else { Words::Whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::testing::Ram;

    const LAYOUT: CommandLineLayout = CommandLineLayout { space: 8, start: 0, end: 8 };

    fn words(ram: &Ram) -> Result<(String, Words), PageFault> {
        let mut words = b"before".to_vec();
        let read = LAYOUT.words(&ram.memory(), Ram::BASE, &mut words)?;
        assert_eq!(&words[..6], b"before");
        Ok((String::from_utf8(words[6..].to_vec()).unwrap(), read))
    }

    #[test]
    fn words_have_spaces_between_them() {
        let ram = Ram::new();
        let at = |offset| Ram::BASE.add(offset);
        let put = |place, to: u64| ram.put(at(place), &to.to_le_bytes());
        assert_eq!(words(&ram), Ok((String::new(), Words::Whole)), "a task of the kernel's own");
        put(8, at(0x100).0);
        put(0x100, Ram::USER.add(0x200).0);
        put(0x108, Ram::USER.add(0x209).0);
        ram.put(at(0x200), b"ls\0-l\0/a\0next");
        assert_eq!(words(&ram), Ok(("ls -l /a".to_owned(), Words::Whole)));
        put(0x108, Ram::USER.add(0x200 + 5000).0);
        assert_eq!(words(&ram).map(|(text, read)| (text.len() <= LONGEST, read)), Ok((true, Words::Cut)));
        put(0x108, 0);
        assert_eq!(words(&ram), Ok((String::new(), Words::Whole)));
        // It is no process's memory.
        put(0x100, at(0x200).0);
        assert!(words(&ram).is_err());
    }
}
