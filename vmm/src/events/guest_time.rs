//! The guest's own clock, as far back as it is known.

use crate::clock;
use probe_engine::linux::sched_clock::SchedClock;

/// What it was from when on. KVM and the guest change it now and then, by a little.
#[derive(Debug, Default)]
pub(super) struct GuestTime {
    now: Option<ClockLine>,
    before: Option<ClockLine>,
    /// By how many ticks the guest's time-stamp counters are ahead of the host's.
    ahead: u64,
}

#[derive(Debug, Clone, Copy)]
struct ClockLine {
    /// When it was seen first, in ticks of the guest's.
    from: u64,
    clock: SchedClock,
}

impl GuestTime {
    pub(super) fn new(ahead: u64) -> Self {
        Self { now: None, before: None, ahead }
    }

    /// It is `clock` at this moment.
    pub(super) fn know(&mut self, clock: SchedClock) {
        self.know_at(self.of_host(clock::ticks()), clock);
    }

    fn know_at(&mut self, from: u64, clock: SchedClock) {
        if self.now.is_none_or(|line| line.clock != clock) {
            self.before = self.now.replace(ClockLine { from, clock });
        }
    }

    /// The guest's counter when the host's was at `ticks`.
    pub(super) fn of_host(&self, ticks: u64) -> u64 {
        ticks.wrapping_add(self.ahead)
    }

    /// The host's counter when the guest's was at `ticks`.
    pub(super) fn to_host(&self, ticks: u64) -> u64 {
        ticks.wrapping_sub(self.ahead)
    }

    /// Nanoseconds of the guest's clock when its counter was at `ticks`, if that is known. The guest's memory may say anything: a
    /// clock that is beyond 2^53, where not every reader tells one nanosecond from the next, is none.
    pub(super) fn nanos(&self, ticks: u64) -> Option<u64> {
        let is_past = |line: &ClockLine| ticks.wrapping_sub(line.from).cast_signed() >= 0;
        let line = self.now.filter(is_past).or(self.before.filter(is_past))?;
        Some(line.clock.nanos(ticks)).filter(|nanos| *nanos < 1 << 53)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_the_clock_of_its_time() {
        let mut time = GuestTime::new(5);
        let clock = |nanos| SchedClock { ticks: 0, nanos, multiplier: 1, shift: 0 };
        assert_eq!((time.of_host(10), time.to_host(15), time.nanos(15)), (15, 10, None));
        time.know_at(100, clock(1000));
        time.know_at(150, clock(1000));
        assert_eq!((time.nanos(99), time.nanos(100)), (None, Some(1100)));
        time.know_at(200, clock(2000));
        assert_eq!((time.nanos(199), time.nanos(200), time.nanos(99)), (Some(1199), Some(2200), None));
        time.know_at(300, clock(1 << 62));
        assert_eq!((time.nanos(299), time.nanos(300)), (Some(2299), None));
    }
}
