//! Traps that have been taken out, and whose hits may still be on their way to us.
//!
//! A vCPU may have met a trap just before the stop in which that went; what it brings is nobody's breakpoint then, and
//! must not be given to the guest. So the places are remembered, and a guest that loads a probed module again and again, at
//! one place after the other, would have that grow without bound. A vCPU that is on its way stands at the trap or behind it,
//! or is at the guest's handler for breakpoints, or in an interrupt before that: then the CPU has saved as an aligned word of
//! RAM where the trap was (Intel SDM volume 3, 6.14.2). Where there is no such word, nobody comes any more.

use crate::probe::Active;
use crate::session::stop::Stop;
use crate::touched;
use probe_engine::addr::Gva;
use probe_engine::probe::table::ProbeSet;
use std::collections::BTreeSet;
use std::sync::Arc;

/// So many places are worth no look through RAM.
const FEW: usize = 64 << 10;

/// When to forget.
pub(super) struct Stale {
    /// With so many places it is time.
    limit: usize,
}

impl Default for Stale {
    fn default() -> Self {
        Self { limit: FEW }
    }
}

impl Stale {
    /// Forgets the places in `set` that nobody comes from any more, when they have become many.
    pub(super) fn forget(&mut self, set: &mut ProbeSet<Arc<Active>>, stop: &Stop<'_>) {
        if set.removed().count() <= self.limit {
            return;
        }
        let (first, last) =
            (set.removed().min().unwrap_or_default(), set.removed().max().unwrap_or_default());
        // The CPU saves the address behind the int3.
        let of = |at: Gva| [at, at.offset(-1)].into_iter().filter(|at| set.was_removed(*at));
        // Without an answer, everyone may come.
        if let Ok(mut expected) = touched::pointed_to(stop.parked, stop.ram, &(first..last.add(2)), of) {
            expected.extend(stop.parked.rips().into_iter().flat_map(of));
            let expected: BTreeSet<Gva> = expected;
            set.retain_removed(|at| expected.contains(&at));
        }
        self.limit = FEW.max(2 * set.removed().count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::GuestRam;
    use crate::world::{AfterStop, World};
    use probe_engine::addr::Gpa;
    use probe_engine::memory::PhysMemory;
    use probe_engine::probe::once::OneShot;
    use probe_engine::probe::table::{Site, StepMethod};
    use std::thread;
    use std::time::Duration;
    use vmm_sys_util::eventfd::EventFd;

    const AT: Gva = Gva(0xffff_ffff_c000_0000);

    #[test]
    fn only_places_that_somebody_may_come_from_are_remembered() {
        let ram = GuestRam::new(2 << 20).unwrap();
        for (at, word) in [(0x1000, AT.add(0x10)), (0x2008, AT.add(0x21)), (0x3004, AT.add(0x30))] {
            ram.write(Gpa(at), &word.0.to_le_bytes()).unwrap();
        }
        let mut set = ProbeSet::default();
        for n in 0..100 {
            let step = StepMethod::PutBack(Arc::new(OneShot::new(Gpa(0), 0x90)));
            set.insert(AT.add(0x10 * n), Site { probes: Vec::new(), internal: None, step });
            set.remove(AT.add(0x10 * n));
        }
        let world = World::<(), ()>::new(1, (), EventFd::new(0).unwrap().into());
        thread::scope(|scope| {
            scope.spawn(|| {
                while let AfterStop::Run(_) = world.pause(0, AT.add(0x50), Duration::from_millis(1)) {}
                world.ended(0);
            });
            let parked = world.park(|_| {});
            let stop = Stop { parked: &parked, ram: &ram };
            Stale { limit: 100 }.forget(&mut set, &stop);
            assert_eq!(set.removed().count(), 100, "they are few");
            let mut stale = Stale { limit: 99 };
            stale.forget(&mut set, &stop);
            let kept: BTreeSet<u64> = set.removed().map(|at| at.0 - AT.0).collect();
            assert_eq!(kept, [0x10, 0x20, 0x50].into());
            assert_eq!(stale.limit, FEW);
            drop(parked);
            world.end(|_| {});
        });
    }
}
