//! What a guest that runs has come to so far, as clients of a control socket see it.

use super::live_probe::LiveProbe;
use crate::record::GuardLine;
use serde::{Deserialize, Serialize};
use vmm::session::{Counters, Durations};

/// Everything that is counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LiveCounters {
    /// How long ago the guest was started, in nanoseconds.
    pub(crate) ran_ns: u64,
    pub(crate) vcpus: usize,
    /// Whether all probes stand that can.
    pub(crate) armed: bool,
    pub(crate) paused: bool,
    /// How often CPUs have left the guest; null where KVM does not count that.
    pub(crate) exits: Option<u64>,
    /// How often a CPU has waited because hits were not read fast enough.
    pub(crate) waits: u64,
    /// Records of the kernel's log that were gone before anyone had read them.
    pub(crate) log_lost: u64,
    /// The probes that there are.
    pub(crate) probes: Vec<CountedProbe>,
    /// What the guard has seen, where there is one.
    pub(crate) guard: Option<GuardLine>,
}

/// A probe, and how long the calls took whose returns it has seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CountedProbe {
    #[serde(flatten)]
    pub(crate) probe: LiveProbe,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) durations: Option<LiveDurations>,
}

/// How long calls took.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct LiveDurations {
    pub(crate) calls: u64,
    /// Of all of them together.
    pub(crate) sum_ns: u64,
    /// Element N counts calls that took less than 2^N nanoseconds and no less than half of that; the last one those that took longer as
    /// well.
    pub(crate) below_powers_of_two: Vec<u64>,
}

impl LiveCounters {
    /// What `counters` say of the probes, which are seen so.
    pub(super) fn of(counters: &Counters, probes: Vec<LiveProbe>) -> Self {
        let ids = counters.probes.iter().map(|report| report.id);
        let counted = |(probe, id)| CountedProbe {
            probe,
            durations: counters.durations.get(&id).map(LiveDurations::from),
        };
        Self {
            ran_ns: u64::try_from(counters.ran.as_nanos()).unwrap_or(u64::MAX),
            vcpus: counters.vcpus,
            armed: counters.is_armed,
            paused: counters.is_paused,
            exits: counters.exits,
            waits: counters.waits,
            log_lost: counters.log_lost,
            probes: probes.into_iter().zip(ids).map(counted).collect(),
            guard: counters.guard.as_ref().map(|guard| GuardLine::of(guard, None)),
        }
    }
}

impl From<&Durations> for LiveDurations {
    fn from(durations: &Durations) -> Self {
        let mut below = durations.below_powers_of_two().to_vec();
        below.truncate(below.iter().rposition(|calls| *calls > 0).map_or(0, |last| last + 1));
        Self { calls: durations.calls(), sum_ns: durations.sum(), below_powers_of_two: below }
    }
}
