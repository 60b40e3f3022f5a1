//! Return probes that leave their detours for traps, because a call of theirs found no instance.
//!
//! Instances are shared by all probes whose calls detours follow, and some may hold many of them for long. A probe on a
//! trap has its own.

use std::collections::BTreeSet;

/// Which probes do, by their numbers.
#[derive(Debug, Default)]
pub(super) struct InstanceExhaustion {
    /// Whether any is to.
    is_wanted: bool,
    /// Those whose calls detours follow, or followed.
    following: BTreeSet<u32>,
    /// Those that stay on traps from now on.
    fallen: BTreeSet<u32>,
    /// Whether some of them may still stand on detours.
    is_due: bool,
}

impl InstanceExhaustion {
    pub(super) fn new(is_wanted: bool) -> Self {
        Self { is_wanted, ..Self::default() }
    }

    /// A detour is going to follow calls of `probe`.
    pub(super) fn follows(&mut self, probe: u32) {
        if self.is_wanted {
            self.following.insert(probe);
        }
    }

    /// Decides who falls back. `ran_out` gives those with numbers below the one it is given whose calls found no instance: it
    /// is the guest's word.
    pub(super) fn look<I: IntoIterator<Item = u32>>(&mut self, ran_out: impl FnOnce(u32) -> I) {
        let Some(last) = self.following.last() else { return };
        for probe in ran_out(last + 1) {
            if self.following.remove(&probe) {
                self.fallen.insert(probe);
                self.is_due = true;
            }
        }
    }

    /// Whether `probe` stays on a trap.
    pub(super) fn has_fallen(&self, probe: u32) -> bool {
        self.fallen.contains(&probe)
    }

    /// Whether someone has fallen back and has to be moved.
    pub(super) fn is_due(&self) -> bool {
        self.is_due
    }

    /// All stand where they have to.
    pub(super) fn done(&mut self) {
        self.is_due = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fallback over probes 3 and 5.
    fn following(is_wanted: bool) -> InstanceExhaustion {
        let mut exhausted = InstanceExhaustion::new(is_wanted);
        [3, 5].into_iter().for_each(|probe| exhausted.follows(probe));
        exhausted
    }

    #[test]
    fn who_misses_a_call_falls_back_once_and_for_all() {
        let mut exhausted = following(true);
        exhausted.look(|end| (0..end).filter(|_| false));
        assert!(!exhausted.is_due());
        exhausted.look(|end| {
            assert_eq!(end, 6, "no more is read than there is to know");
            [5]
        });
        assert!(exhausted.is_due() && exhausted.has_fallen(5) && !exhausted.has_fallen(3));
        exhausted.done();
        exhausted.look(|end| {
            assert_eq!(end, 4);
            [5]
        });
        assert!(!exhausted.is_due(), "it has been moved");
        exhausted.look(|_| []);
        assert!(exhausted.has_fallen(5), "also when the guest says otherwise later");
    }

    #[test]
    fn a_guest_makes_nobody_else_fall_back() {
        let mut exhausted = following(true);
        exhausted.look(|_| [0, 4, u32::MAX]);
        assert!(!exhausted.is_due() && ![0, 3, 4, 5].into_iter().any(|probe| exhausted.has_fallen(probe)));
    }

    #[test]
    fn nobody_does_who_was_not_asked_to() {
        let mut exhausted = following(false);
        exhausted.look(|_| -> [u32; 0] { panic!("nothing is read") });
        assert!(!exhausted.is_due() && !exhausted.has_fallen(3));
    }
}
