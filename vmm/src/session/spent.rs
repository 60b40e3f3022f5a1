//! Probes of which only the first hit counts, and whose traps stay until the control thread takes them out: others' passes
//! are not their hits.
//!
//! A stop that looks after tens of thousands of probes takes long, and a pass of a trap that is for nothing takes little: many
//! are taken out in one stop.

use crate::vcpu::Spent;
use std::time::{Duration, Instant};

/// When they are taken out.
#[derive(Debug)]
pub(super) struct Sweep {
    spent: Spent,
    not_before: Instant,
}

impl Sweep {
    pub(super) fn new(spent: Spent, now: Instant) -> Self {
        Self { spent, not_before: now }
    }

    /// Whether it is time.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        now >= self.not_before && self.spent.is_noted()
    }

    /// A stop begins, which takes them out.
    pub(super) fn begin(&self) {
        self.spent.forget();
    }

    /// It has ended `now`, and has taken so long.
    pub(super) fn end(&mut self, now: Instant, took: Duration) {
        /// The guest stands still for one part in so many.
        const REST: u32 = 20;
        self.not_before = now + took * REST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_stop_is_not_made_often() {
        let (spent, start) = (Spent::default(), Instant::now());
        let after = |millis| start + Duration::from_millis(millis);
        let mut sweep = Sweep::new(spent.clone(), start);
        assert!(!sweep.is_due(start), "there is nothing to take out");
        spent.note();
        assert!(sweep.is_due(start));
        sweep.begin();
        spent.note();
        sweep.end(after(100), Duration::from_millis(100));
        assert!(!sweep.is_due(after(2099)) && sweep.is_due(after(2100)));
    }
}
