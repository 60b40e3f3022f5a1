//! What a hit does to the order in which the guest's CPUs go on.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The number of a gate, at which one probe holds CPUs and which another one opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GateId(pub u32);

impl GateId {
    /// From here on gates are those of turns.
    const TURNS: u32 = 1 << 31;

    /// The gate of this number among those at which tasks wait for their [turns](super::turns).
    #[must_use]
    pub fn of_turns(number: u32) -> Self {
        Self(Self::TURNS | number)
    }

    /// Whether it is one of those.
    #[must_use]
    pub fn is_of_turns(self) -> bool {
        self.0 & Self::TURNS != 0
    }
}

/// What the CPU of a task does that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum HoldMode {
    /// It waits with the task, and takes interrupts as it did there. The guest's kernel cannot tell by anything that it does itself.
    #[default]
    Cpu,
    /// It runs other tasks, where the kernel may be preempted: the waiting task calls the kernel's scheduler again and again. Elsewhere it
    /// waits with the task.
    Task,
}

/// What a hit does to the order in which the guest's CPUs go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pace {
    /// The task waits in front of the probed instruction, or behind a return, until another one opens the gate. The gate holds one task at a time; a task that comes meanwhile passes.
    Hold {
        /// Where it waits.
        gate: GateId,
        /// When it goes on all the same.
        within: Duration,
        /// What its CPU does meanwhile.
        mode: HoldMode,
    },
    /// The task that waits at the gate goes on, unless this task is the one.
    Open {
        /// Which one is opened.
        gate: GateId,
    },
    /// The CPU waits for a time that chance chooses.
    Delay(Delay),
    /// The task waits in front of the probed instruction until its [turn](super::turns) has come, in the order that is imposed on the
    /// guest. The hit is one when it goes on.
    Turn {
        /// When it goes on all the same, and the order is lost.
        within: Duration,
    },
    /// All CPUs stand still: this one in front of the probed instruction, or behind the access that is watched. They go on when
    /// somebody says so. A pass is a hit when its CPU goes on there.
    Stop,
}

/// Times that chance chooses, the same ones for the same seed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delay {
    /// What chance begins with.
    pub seed: u64,
    /// No time is longer.
    pub most: Duration,
}

impl Delay {
    /// How long hit number `hit` of the probe of this number waits: not at all for every second hit, and up to [`most`](Self::most) for the
    /// others.
    #[must_use]
    pub fn of(&self, probe: u32, hit: u64) -> Duration {
        let chosen = mixed(self.seed ^ mixed(u64::from(probe) << 40 ^ hit));
        if chosen & 1 == 0 {
            return Duration::ZERO;
        }
        let most = u64::try_from(self.most.as_nanos()).unwrap_or(u64::MAX);
        let part = (u128::from(chosen >> 1) * u128::from(most)) >> 63;
        Duration::from_nanos(u64::try_from(part).unwrap_or(most))
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014), behind one step of its state.
pub(super) fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_millis(2);

    fn times(seed: u64, probe: u32) -> Vec<Duration> {
        (0..1000).map(|hit| Delay { seed, most: MOST }.of(probe, hit)).collect()
    }

    #[test]
    fn the_numbers_are_those_of_split_mix() {
        // The first two outputs for the seed 1234567, as published with the generator.
        assert_eq!(mixed(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(mixed(1_234_567_u64.wrapping_add(0x9e37_79b9_7f4a_7c15)), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_seed_has_its_times_and_each_probe_others() {
        assert_eq!(times(7, 0), times(7, 0));
        assert_ne!(times(7, 0), times(8, 0));
        assert_ne!(times(7, 0), times(7, 1));
    }

    #[test]
    fn about_half_of_the_hits_wait_for_all_times_up_to_the_longest() {
        let times = times(1, 3);
        let waiting: Vec<_> = times.iter().filter(|time| !time.is_zero()).collect();
        assert!((400..600).contains(&waiting.len()), "{}", waiting.len());
        assert!(waiting.iter().all(|time| **time < MOST));
        assert!(waiting.iter().any(|time| **time > MOST / 10 * 9));
        assert!(waiting.iter().any(|time| **time < MOST / 10));
    }
}
