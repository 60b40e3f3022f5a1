//! Guest-physical memory as the engine sees it: a small trait, implemented by the VMM and by byte arrays in tests.

use crate::addr::Gpa;

#[cfg(test)]
pub(crate) mod testing;

/// Guest-physical memory.
pub trait PhysMemory {
    /// Fills `buf` from `at`, or reads nothing.
    ///
    /// # Errors
    /// [`NoMemory`] when any byte of the range is not backed by guest RAM.
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory>;

    /// The little-endian u64 at `at`, a multiple of 8. Where the guest writes it meanwhile, this is what was there before or is
    /// there afterwards, if the memory can tell.
    ///
    /// # Errors
    /// [`NoMemory`] when `at` is not backed by guest RAM.
    fn read_u64(&self, at: Gpa) -> Result<u64, NoMemory> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Writes `bytes` to `at`, or nothing.
    ///
    /// # Errors
    /// [`NoMemory`] when any byte of the range is not backed by guest RAM.
    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory>;

    /// Replaces the little-endian u64 at `at`, a multiple of 8, by `new` if it is `old`, atomically against the guest's
    /// CPUs. Says whether it was.
    ///
    /// # Errors
    /// [`NoMemory`] when `at` is not backed by guest RAM, or no multiple of 8.
    fn compare_exchange(&self, at: Gpa, old: u64, new: u64) -> Result<bool, NoMemory>;
}

/// The guest-physical range is not (entirely) RAM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no guest memory at physical address {0}")]
pub struct NoMemory(pub Gpa);
