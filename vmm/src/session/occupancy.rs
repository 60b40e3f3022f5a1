//! Who would be caught by a jump over several instructions: whoever goes on behind the first of them.
//!
//! That is a vCPU that stands there, a task that was interrupted there, and one that comes there from code of ours: from
//! a copy of one of these instructions, or from a stub that leads back to one. The CPU saves the RIP of what it
//! interrupts as an aligned word on a stack (Intel SDM volume 3, 6.14.2): where no word of RAM is such a place, nobody
//! is there, asleep, preempted or on the stack of an interrupt. A return address is none of these places, as no region
//! has a call in its middle. A word that is one by chance, or because the guest wants it to, only delays.

use super::stop::Stop;
use crate::touched;
use probe_engine::addr::Gva;
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

/// Places where nobody may be when jumps are written.
#[derive(Default)]
pub(super) struct Occupancy {
    /// Apart from each other, each with the place of the jump (GVA).
    ranges: Vec<(Range<Gva>, Gva)>,
}

impl Occupancy {
    /// Nobody may be in `range` when a jump is written at `jump`.
    pub(super) fn add(&mut self, range: Range<Gva>, jump: Gva) {
        self.ranges.push((range, jump));
    }

    /// The jumps that someone would be caught by. Reads all RAM that was ever touched.
    ///
    /// # Errors
    /// The host does not tell which memory was touched.
    pub(super) fn occupied(mut self, stop: &Stop<'_>) -> io::Result<BTreeSet<Gva>> {
        self.ranges.sort_unstable_by_key(|(range, _)| range.start);
        let (Some((first, _)), Some((last, _))) = (self.ranges.first(), self.ranges.last()) else {
            return Ok(BTreeSet::new());
        };
        let all = first.start..last.end;
        let mut occupied = touched::pointed_to(stop.parked, stop.ram, &all, |at| self.jump_over(at))?;
        occupied.extend(stop.parked.rips().into_iter().filter_map(|at| self.jump_over(at)));
        Ok(occupied)
    }

    fn jump_over(&self, at: Gva) -> Option<Gva> {
        let behind = self.ranges.partition_point(|(range, _)| range.start <= at);
        let (range, jump) = self.ranges.get(behind.checked_sub(1)?)?;
        at.is_in(range).then_some(*jump)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_belongs_to_one_jump() {
        let mut occupancy = Occupancy::default();
        occupancy.add(Gva(0x103)..Gva(0x104), Gva(0x100));
        occupancy.add(Gva(0x101)..Gva(0x102), Gva(0x100));
        occupancy.add(Gva(0x200)..Gva(0x220), Gva(0x110));
        occupancy.ranges.sort_unstable_by_key(|(range, _)| range.start);
        let jumps = [0x100, 0x101, 0x102, 0x103, 0x104, 0x1ff, 0x200, 0x21f, 0x220];
        let jumps = jumps.map(|at| occupancy.jump_over(Gva(at)).map(|at| at.0));
        let (first, second) = (Some(0x100), Some(0x110));
        assert_eq!(jumps, [None, first, None, first, None, None, second, second, None]);
    }
}
