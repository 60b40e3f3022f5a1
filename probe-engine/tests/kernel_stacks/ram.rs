//! Memory of a guest that has a stack and nothing else.

use std::cell::RefCell;

use probe_engine::addr::{Gpa, Gva};
use probe_engine::memory::{NoMemory, PhysMemory};

/// Where the stack is, and how much of it: what the kernel calls THREAD_SIZE.
pub(crate) const STACK: Gva = Gva(0xffff_c900_0040_0000);
pub(crate) const STACK_LEN: u64 = 0x4000;
/// Four page tables, and the stack behind them.
pub(crate) struct Ram(RefCell<Vec<u8>>);

impl Ram {
    pub(crate) fn new() -> Self {
        let ram = Self(RefCell::new(vec![0; 0x4000 + STACK_LEN as usize]));
        let index = |level: u64| STACK.0 >> (12 + 9 * level) & 0x1ff;
        let entry =
            |table: u64, index: u64, entry: u64| ram.write(Gpa(table + index * 8), &entry.to_le_bytes());
        for (level, table) in [(3, 0), (2, 0x1000), (1, 0x2000)] {
            entry(table, index(level), (table + 0x1000) | 3).unwrap();
        }
        for page in 0..STACK_LEN >> 12 {
            entry(0x3000, index(0) + page, (0x4000 + (page << 12)) | 3).unwrap();
        }
        ram
    }

    pub(crate) fn push(&self, at: u64, word: u64) {
        self.write(Gpa(0x4000 + at - STACK.0), &word.to_le_bytes()).unwrap();
    }
}

impl PhysMemory for Ram {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        let ram = self.0.borrow();
        let bytes = ram.get(at.0 as usize..).and_then(|rest| rest.get(..buf.len()));
        buf.copy_from_slice(bytes.ok_or(NoMemory(at))?);
        Ok(())
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
        let mut ram = self.0.borrow_mut();
        let old = ram.get_mut(at.0 as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
        old.ok_or(NoMemory(at))?.copy_from_slice(bytes);
        Ok(())
    }

    fn compare_exchange(&self, at: Gpa, _: u64, _: u64) -> Result<bool, NoMemory> {
        Err(NoMemory(at))
    }
}
