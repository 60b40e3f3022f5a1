//! A guest that does not come to an end by itself: its time is over, or all of its CPUs have halted for good.

use std::time::{Duration, Instant};

/// How long a guest leaves KVM_RUN not once before somebody looks whether it can go on.
const SILENCE: Duration = Duration::from_secs(1);

/// When to look after a guest.
pub(super) struct Standstill {
    deadline: Option<Instant>,
    looked: Instant,
    exits: Option<u64>,
}

impl Standstill {
    /// Of a guest that starts now, and may take so long.
    pub(super) fn new(now: Instant, timeout: Option<Duration>) -> Self {
        Self { deadline: timeout.and_then(|timeout| now.checked_add(timeout)), looked: now, exits: None }
    }

    /// Its time is over `now`.
    pub(super) fn expire(&mut self, now: Instant) {
        self.deadline = Some(now);
    }

    /// Whether its time is over.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Whether it has done nothing for a while that could be seen from here, by the exits that KVM counts (`None` where
    /// it does not): asked as often as one likes.
    pub(super) fn is_silent(&mut self, now: Instant, exits: impl FnOnce() -> Option<u64>) -> bool {
        if now.saturating_duration_since(self.looked) < SILENCE {
            return false;
        }
        let exits = exits();
        let is_silent = exits.is_none() || exits == self.exits;
        (self.looked, self.exits) = (now, exits);
        is_silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_is_looked_at_when_it_has_been_silent_for_a_second() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut standstill = Standstill::new(start, Some(Duration::from_secs(5)));
        assert!(!standstill.is_silent(after(10), || unreachable!()));
        assert!(!standstill.is_silent(after(1000), || Some(7)));
        assert!(!standstill.is_silent(after(2000), || Some(8)));
        assert!(standstill.is_silent(after(3000), || Some(8)));
        assert!(standstill.is_silent(after(4000), || None), "nobody counts");
        assert!(!standstill.is_over(after(4999)) && standstill.is_over(after(5000)));
        let mut endless = Standstill::new(start, None);
        assert!(!endless.is_over(after(u64::from(u32::MAX))));
        endless.expire(after(10));
        assert!(endless.is_over(after(10)));
    }
}
