//! How long the other CPUs of the guest go on while one waits for a sink that takes nothing.
//!
//! To them it is a CPU that has stalled: after 20 seconds or so the guest's own watchdogs say that, and may end it. Where
//! all stand still, none sees another one stall, and each is excused afterwards, as after any stop of the world.

use std::time::{Duration, Instant};

/// How long they go on: long before a watchdog bites, and no moment of a reader that is merely slow.
const LONGEST: Duration = Duration::from_secs(1);

/// How long the sink has taken nothing, and whether all stand still for it.
#[derive(Default)]
pub(super) struct Patience {
    since: Option<Instant>,
    is_over: bool,
}

impl Patience {
    /// The sink takes nothing now. Whether all have to stand still from now on, where any CPU `waits`.
    pub(super) fn is_over(&mut self, now: Instant, waits: impl FnOnce() -> bool) -> bool {
        let since = *self.since.get_or_insert(now);
        let ends = !self.is_over && now.saturating_duration_since(since) >= LONGEST && waits();
        self.is_over |= ends;
        ends
    }

    /// Whether all stand still.
    pub(super) fn has_ended(&self) -> bool {
        self.is_over
    }

    /// The sink has taken what there was. Whether all stood still for it, who can go on now.
    pub(super) fn begin_anew(&mut self) -> bool {
        std::mem::take(self).is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_stand_still_when_one_has_waited_for_a_second() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let mut patience = Patience::default();
        assert!(!patience.is_over(after(0), || true));
        assert!(!patience.is_over(after(999), || true));
        assert!(!patience.is_over(after(1000), || false), "there is room for more");
        assert!(!patience.has_ended());
        assert!(patience.is_over(after(5000), || true) && patience.has_ended());
        assert!(!patience.is_over(after(5001), || true), "they stand still already");
        assert!(patience.begin_anew() && !patience.begin_anew() && !patience.has_ended());
        assert!(!patience.is_over(after(6000), || true));
        assert!(!patience.begin_anew());
        assert!(!patience.is_over(after(7000), || true), "it has taken something since");
    }
}
