//! The guest's memory as the guest has it: without what is ours.

use super::patches::Hidden;
use crate::layout::{RESERVED, RESERVED_DATA};
use crate::memory::GuestRam;
use probe_engine::addr::Gpa;
use probe_engine::memory::{NoMemory, PhysMemory};
use std::collections::BTreeMap;

/// It is only read.
pub(super) struct GuestsOwn<'a> {
    pub(super) ram: &'a GuestRam,
    /// Bytes of ours in the text.
    pub(super) hidden: BTreeMap<Gpa, Hidden>,
}

impl PhysMemory for GuestsOwn<'_> {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        let end = at.add(buf.len() as u64);
        // Data the guest could write there, and run by page tables of its own.
        if at < RESERVED_DATA && RESERVED < end {
            return Err(NoMemory(at));
        }
        self.ram.read(at, buf)?;
        if at < end {
            for (gpa, Hidden { ours, original }) in self.hidden.range(at..end) {
                // What the guest has written over a byte of ours is the guest's.
                if let Some(byte) = buf.get_mut((gpa.0 - at.0) as usize).filter(|byte| **byte == *ours) {
                    *byte = *original;
                }
            }
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ours_is_not_there() {
        let ram = GuestRam::new(1 << 20).unwrap();
        let at = Gpa(0x1000);
        ram.write(at, &[0x55, 0xcc, 0xcc, 0x90]).unwrap();
        let hidden = |original| Hidden { ours: 0xcc, original };
        let overwritten = (at.add(3), hidden(0xc3));
        let hidden = BTreeMap::from([(at.add(1), hidden(0x48)), overwritten]);
        let own = GuestsOwn { ram: &ram, hidden };
        let mut read = [0; 4];
        own.read(at, &mut read).unwrap();
        assert_eq!(
            read,
            [0x55, 0x48, 0xcc, 0x90],
            "the third is the guest's own, and so is what it has written"
        );
        let mut part = [0; 1];
        own.read(at.add(1), &mut part).unwrap();
        assert_eq!(part, [0x48]);
        own.read(at.add(1), &mut []).unwrap();
        assert!(own.read(RESERVED, &mut part).is_err());
        assert!(own.read(RESERVED_DATA, &mut part).is_ok(), "the guest can write there");
        assert!(own.write(at, &part).is_err());
    }
}
