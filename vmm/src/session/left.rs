//! The memory that a guest leaves behind.

use crate::layout::{RESERVED, RESERVED_SIZE};
use crate::memory::GuestRam;
use probe_engine::addr::Gpa;
use probe_engine::memory::{NoMemory, PhysMemory};

/// The guest's memory without what it does not know of. It is only read.
pub(super) struct Left<'a>(pub(super) &'a GuestRam);

impl PhysMemory for Left<'_> {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        let end = at.add(buf.len() as u64);
        if at < RESERVED.add(RESERVED_SIZE) && RESERVED < end {
            return Err(NoMemory(at));
        }
        self.0.read(at, buf)
    }

    /// Nothing is written.
    fn write(&self, at: Gpa, _: &[u8]) -> Result<(), NoMemory> {
        Err(NoMemory(at))
    }

    /// Nothing is written.
    fn compare_exchange(&self, at: Gpa, _: u64, _: u64) -> Result<bool, NoMemory> {
        Err(NoMemory(at))
    }
}
