//! A trap byte that is put back at its first hit, by the vCPU that met it.
//!
//! One byte can be put back without stopping the world: a vCPU sees the trap or the original, and both are right.
//! Whoever meets the trap in between finds the site [done](OneShot::is_done) and runs the instruction again.

use crate::addr::Gpa;
use crate::insn::INT3;
use crate::memory::{NoMemory, PhysMemory};
use std::sync::atomic::{AtomicBool, Ordering};

/// The byte to put back, and whether that was done.
#[derive(Debug)]
pub struct OneShot {
    at: Gpa,
    original: u8,
    done: AtomicBool,
}

impl OneShot {
    /// A trap byte stands at guest-physical `at`, in place of `original`.
    #[must_use]
    pub fn new(at: Gpa, original: u8) -> Self {
        Self { at, original, done: AtomicBool::new(false) }
    }

    /// Puts the byte back, unless the guest has written there.
    ///
    /// Whoever comes later writes the original over the original: an emulated processor that translated the trap just
    /// before it was put back may keep that translation until the byte is written again.
    ///
    /// # Errors
    /// [`NoMemory`] when the text is not in RAM.
    pub fn put_back<M: PhysMemory + ?Sized>(&self, memory: &M) -> Result<(), NoMemory> {
        let ours = if self.done.swap(true, Ordering::AcqRel) { self.original } else { INT3 };
        let mut now = [0];
        memory.read(self.at, &mut now)?;
        if now == [ours] { memory.write(self.at, &[self.original]) } else { Ok(()) }
    }

    /// Whether the byte was put back, or is about to be.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    struct Byte(Cell<u8>);

    impl PhysMemory for Byte {
        fn read(&self, _: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
            buf.fill(self.0.get());
            Ok(())
        }
        fn write(&self, _: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
            bytes.iter().for_each(|b| self.0.set(*b));
            Ok(())
        }
        fn compare_exchange(&self, at: Gpa, _: u64, _: u64) -> Result<bool, NoMemory> {
            Err(NoMemory(at))
        }
    }

    #[test]
    fn the_byte_is_put_back_once_and_never_over_the_guests_own() {
        let memory = Byte(Cell::new(INT3));
        let once = OneShot::new(Gpa(0), 0x0f);
        once.put_back(&memory).unwrap();
        assert!(once.is_done());
        assert_eq!(memory.0.get(), 0x0f);
        memory.0.set(INT3);
        once.put_back(&memory).unwrap();
        assert_eq!(memory.0.get(), INT3, "a breakpoint that the guest has put there since");
        memory.0.set(0x55);
        OneShot::new(Gpa(0), 0x0f).put_back(&memory).unwrap();
        assert_eq!(memory.0.get(), 0x55);
    }
}
