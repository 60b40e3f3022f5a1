//! The guest's RAM: anonymous host memory, laid out around the hole below 4 GiB.

use probe_engine::addr::Gpa;
use probe_engine::memory::{NoMemory, PhysMemory};
use std::ops::Range;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

/// Devices and firmware tables of a PC live between here and 4 GiB; RAM goes on above.
const HOLE_START: u64 = 0xc000_0000;
const HOLE_END: u64 = 0x1_0000_0000;

/// The RAM of one guest. Pages appear when they are first touched.
pub struct GuestRam {
    backing: GuestMemoryMmap,
}

/// The host refused the memory for the guest.
#[derive(Debug, thiserror::Error)]
#[error("cannot reserve {mib} MiB for the guest: give it less with --memory")]
pub struct OutOfMemory {
    mib: u64,
    #[source]
    source: vm_memory::mmap::FromRangesError,
}

impl GuestRam {
    /// Reserves `size` bytes, a multiple of the page size.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the host has no address space for it.
    pub fn new(size: u64) -> Result<Self, OutOfMemory> {
        let ranges: Vec<_> = ranges(size)
            .into_iter()
            .map(|r| (GuestAddress(r.start.0), (r.end.0 - r.start.0) as usize))
            .collect();
        let backing = GuestMemoryMmap::from_ranges(&ranges)
            .map_err(|source| OutOfMemory { mib: size >> 20, source })?;
        Ok(Self { backing })
    }

    /// The RAM in order of guest-physical address.
    #[must_use]
    pub fn ranges(&self) -> Vec<Range<Gpa>> {
        let range = |r: &vm_memory::GuestRegionMmap| {
            let start = Gpa(r.start_addr().0);
            start..start.add(r.len())
        };
        self.backing.iter().map(range).collect()
    }

    /// The end of the RAM below the hole, which is where firmware-era data must be.
    #[must_use]
    pub fn low_end(&self) -> Gpa {
        self.ranges().first().map_or(Gpa(0), |r| r.end)
    }

    /// The memory as the loaders of other crates take it.
    #[must_use]
    pub fn backing(&self) -> &GuestMemoryMmap {
        &self.backing
    }
}

/// Where `size` bytes of RAM lie.
fn ranges(size: u64) -> Vec<Range<Gpa>> {
    let low = size.min(HOLE_START);
    let mut all = vec![Gpa(0)..Gpa(low)];
    if size > low {
        all.push(Gpa(HOLE_END)..Gpa(HOLE_END + (size - low)));
    }
    all
}

impl PhysMemory for GuestRam {
    fn read(&self, at: Gpa, buf: &mut [u8]) -> Result<(), NoMemory> {
        self.backing.read_slice(buf, GuestAddress(at.0)).map_err(|_| NoMemory(at))
    }

    fn write(&self, at: Gpa, bytes: &[u8]) -> Result<(), NoMemory> {
        if !self.backing.check_range(GuestAddress(at.0), bytes.len()) {
            return Err(NoMemory(at));
        }
        self.backing.write_slice(bytes, GuestAddress(at.0)).map_err(|_| NoMemory(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_leaves_the_hole_below_four_gib_free() {
        assert_eq!(ranges(128 << 20), [Gpa(0)..Gpa(128 << 20)]);
        assert_eq!(ranges(3 << 30), [Gpa(0)..Gpa(3 << 30)]);
        assert_eq!(ranges(64 << 30), [Gpa(0)..Gpa(3 << 30), Gpa(4 << 30)..Gpa(65 << 30)]);
    }

    #[test]
    fn a_write_that_leaves_ram_changes_nothing() {
        let ram = GuestRam::new(0x2000).unwrap();
        assert_eq!(ram.write(Gpa(0x1ffc), &[1; 8]), Err(NoMemory(Gpa(0x1ffc))));
        let mut tail = [7; 4];
        ram.read(Gpa(0x1ffc), &mut tail).unwrap();
        assert_eq!(tail, [0; 4]);
    }
}
