//! Guest-physical memory for tests.

use super::{NoMemory, PhysMemory};
use crate::addr::Gpa;
use std::cell::RefCell;

/// RAM from guest-physical address 0 on.
#[derive(Clone, PartialEq)]
pub(crate) struct Ram(RefCell<Vec<u8>>);

impl Ram {
    /// `len` bytes, all zero.
    pub(crate) fn new(len: usize) -> Self {
        Self(RefCell::new(vec![0; len]))
    }

    /// Writes an entry of the page table at `table`.
    pub(crate) fn set(&self, table: u64, index: u64, entry: u64) {
        self.write(Gpa(table + index * 8), &entry.to_le_bytes()).unwrap();
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

    fn compare_exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, NoMemory> {
        let mut now = [0; 8];
        self.read(at, &mut now)?;
        let is_old = now == old.to_le_bytes();
        if is_old {
            self.write(at, &new.to_le_bytes())?;
        }
        Ok(is_old)
    }
}
