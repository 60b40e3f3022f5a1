//! What a session that runs has counted so far.

use super::report::ProbeReport;
use crate::events::{Event, What};
use crate::guard::GuardReport;
use probe_engine::capture::tally::Group;
use probe_engine::probe::table::ProbeId;
use std::collections::BTreeMap;
use std::time::Duration;

/// Everything that is counted, at one moment.
#[derive(Debug)]
pub struct Counters {
    /// How long ago the guest was started.
    pub ran: Duration,
    /// How many CPUs it has.
    pub vcpus: usize,
    /// Whether its text is final, and all probes stand that can.
    pub is_armed: bool,
    /// Whether all CPUs stand still because somebody wants that.
    pub is_paused: bool,
    /// How often its CPUs have left the guest, for KVM or for us, where KVM counts that.
    pub exits: Option<u64>,
    /// How often a vCPU has waited because hits were not read fast enough.
    pub waits: u64,
    /// Records of the kernel's log that were gone before anyone had read them.
    pub log_lost: u64,
    /// All probes that there are.
    pub probes: Vec<ProbeReport>,
    /// How long the calls took whose returns were handed on, by their probes.
    pub durations: BTreeMap<ProbeId, Durations>,
    /// What hits came to so far that are counted for a [histogram](crate::probe::Probe::histogram) in the guest.
    pub groups: Vec<(ProbeId, Group)>,
    /// What the guard has seen, where the guest is guarded.
    pub guard: Option<GuardReport>,
}

/// How long many calls took: how many took less than each power of two of nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durations {
    /// Of all together, in nanoseconds.
    sum: u64,
    /// Element N counts calls of less than 2^N nanoseconds that are in no element before.
    below: [u64; Self::POWERS],
}

impl Default for Durations {
    fn default() -> Self {
        Self { sum: 0, below: [0; Self::POWERS] }
    }
}

impl Durations {
    /// How many powers there are. The last element has all calls that took longer, which is from four and a half minutes on.
    pub const POWERS: usize = 40;

    fn add(&mut self, nanos: u64) {
        self.sum = self.sum.saturating_add(nanos);
        let power = (u64::BITS - nanos.leading_zeros()) as usize;
        if let Some(count) = self.below.get_mut(power.min(Self::POWERS - 1)) {
            *count += 1;
        }
    }

    /// How many calls.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.below.iter().sum()
    }

    /// How long all of them took, in nanoseconds.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// How many calls took less than 2^N nanoseconds and no less than half of that, for N from 0 on. Those of the last element took any
    /// longer time.
    #[must_use]
    pub fn below_powers_of_two(&self) -> &[u64] {
        &self.below
    }
}

/// Those of all probes of a session.
#[derive(Debug, Default)]
pub(super) struct AllDurations(BTreeMap<ProbeId, Durations>);

impl AllDurations {
    /// Adds those of the returns among `events`.
    pub(super) fn add(&mut self, events: &[Event]) {
        for event in events {
            if let What::Return { duration, .. } = event.what {
                self.0.entry(event.probe).or_default().add(duration.0);
            }
        }
    }

    /// There are no calls of `probes` any more.
    pub(super) fn forget(&mut self, probes: &[ProbeId]) {
        self.0.retain(|probe, _| !probes.contains(probe));
    }

    pub(super) fn all(&self) -> &BTreeMap<ProbeId, Durations> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_below_its_power_of_two() {
        let mut durations = Durations::default();
        for (nanos, power) in [(0, 0), (1, 1), (2, 2), (3, 2), (1023, 10), (1024, 11), (u64::MAX, 39)] {
            let before = durations.below_powers_of_two()[power];
            durations.add(nanos);
            assert_eq!(durations.below_powers_of_two()[power], before + 1, "{nanos}");
        }
        assert_eq!((durations.calls(), durations.sum()), (7, u64::MAX));
    }
}
