//! Space in the rings that the guest's detours write to, for CPUs that wait for it.

use crate::memory::GuestRam;
use crate::reserved;
use probe_engine::addr::Gpa;
use probe_engine::detour::layout::Rings;
use probe_engine::detour::ring::{Drained, Occupied};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What there is for a CPU whose detour has found its ring full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RingSpace {
    /// Its record finds room now.
    Some,
    /// None, until more has been read.
    None,
    /// None, however long it waits.
    Never,
}

/// What the reader has found at the end of each ring: 0 where it will go on reading, [`BROKEN`], or one more than the
/// number of cells before a record that is not finished.
#[derive(Clone)]
pub(super) struct RingEnds {
    rings: Rings,
    ends: Arc<[AtomicU64]>,
}

const BROKEN: u64 = u64::MAX;

impl RingEnds {
    pub(super) fn new(cpus: u8) -> Self {
        let rings = Rings::of(cpus);
        Self { rings, ends: (0..rings.cpus).map(|_| AtomicU64::new(0)).collect() }
    }

    /// The reader is about to read the ring of `cpu`, and to take away what it has read.
    pub(super) fn begin(&self, cpu: usize) {
        self.set(cpu, 0);
    }

    /// It has read it.
    pub(super) fn end(&self, cpu: usize, drained: Drained) {
        match drained {
            Drained::All | Drained::More => {}
            Drained::Unfinished { tail } => self.set(cpu, tail.saturating_add(1)),
            Drained::Broken => self.set(cpu, BROKEN),
        }
    }

    fn set(&self, cpu: usize, end: u64) {
        if let Some(word) = self.ends.get(cpu) {
            word.store(end, Ordering::SeqCst);
        }
    }

    /// Whether there is room in the ring that begins at `at` (GPA), for the CPU that writes to it. It is the guest's word
    /// that a ring begins there.
    pub(super) fn space(&self, ram: &GuestRam, at: Gpa) -> RingSpace {
        let cpu = at.0.checked_sub(reserved::DATA.0).and_then(|offset| self.rings.cpu(offset));
        let Some((cpu, word)) = cpu.and_then(|cpu| Some((cpu, self.ends.get(cpu as usize)?))) else {
            return RingSpace::Never;
        };
        let end = word.load(Ordering::SeqCst);
        match Occupied::of(ram, self.rings, reserved::DATA, cpu) {
            _ if end == BROKEN => RingSpace::Never,
            Err(_) => RingSpace::Never,
            Ok(Occupied::Partly) => RingSpace::Some,
            // It is the record of this CPU, which an NMI has interrupted. What has just been read looks unpublished, too,
            // but then the reader has begun anew.
            Ok(Occupied::Full { tail, is_published: false })
                if end == tail.wrapping_add(1) && word.load(Ordering::SeqCst) == end =>
            {
                RingSpace::Never
            }
            Ok(Occupied::Full { .. }) => RingSpace::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::detour::layout::{CELLS, HEAD, TAIL, sequence};
    use probe_engine::memory::PhysMemory;

    const RING: Gpa = Gpa(reserved::DATA.0);

    struct Guest {
        ram: GuestRam,
        ends: RingEnds,
        ring: Gpa,
    }

    impl Guest {
        fn new() -> Self {
            let ends = RingEnds::new(2);
            let ring = RING.add(ends.rings.offset(1));
            Self { ram: GuestRam::new(2 << 20).unwrap(), ends, ring }
        }

        fn write(&self, offset: u64, value: u64) {
            self.ram.write(self.ring.add(offset), &value.to_le_bytes()).unwrap();
        }

        fn space(&self) -> RingSpace {
            self.ends.space(&self.ram, self.ring)
        }
    }

    #[test]
    fn a_cpu_waits_until_the_reader_has_read() {
        let guest = Guest::new();
        assert_eq!(guest.space(), RingSpace::Some);
        guest.write(HEAD, guest.ends.rings.cells);
        guest.write(CELLS, sequence(0));
        assert_eq!(guest.space(), RingSpace::None);
        guest.write(TAIL, 64);
        assert_eq!(guest.space(), RingSpace::Some);
    }

    #[test]
    fn it_does_not_wait_for_what_it_has_not_finished_itself() {
        let guest = Guest::new();
        guest.write(HEAD, guest.ends.rings.cells);
        assert_eq!(guest.space(), RingSpace::None, "the reader may have read it just now");
        guest.ends.end(1, Drained::Unfinished { tail: 0 });
        assert_eq!(guest.space(), RingSpace::Never);
        guest.ends.begin(1);
        assert_eq!(guest.space(), RingSpace::None);
        guest.ends.end(1, Drained::Unfinished { tail: 5 });
        assert_eq!(guest.space(), RingSpace::None, "it has read more since");
        guest.ends.end(1, Drained::Broken);
        assert_eq!(guest.space(), RingSpace::Never);
    }

    #[test]
    fn a_ring_that_is_none_has_no_room() {
        let guest = Guest::new();
        for at in [Gpa(0), RING, guest.ring.add(8), Gpa(u64::MAX)] {
            assert_eq!(guest.ends.space(&guest.ram, at), RingSpace::Never, "{at}");
        }
    }
}
