//! Time stamps that cost no system call: the time-stamp counter, converted when a record is read.
//!
//! `clock_gettime` is a system call wherever the host's clock source is not its TSC (as in an emulated host),
//! and a hit may make only one.
#![allow(unsafe_code, reason = "rdtsc is an intrinsic")]

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

/// Reads the host's time-stamp counter, in ticks of an unknown constant rate.
#[must_use]
pub fn ticks() -> u64 {
    // SAFETY: RDTSC is unprivileged unless CR4.TSD is set, which Linux does only for a process that asked for
    // it by prctl(PR_SET_TSC); it reads no memory.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Relates ticks to nanoseconds since a start.
pub struct Clock {
    started: Instant,
    first: u64,
    /// See [`Clock::start`].
    khz: Option<NonZeroU32>,
}

impl Clock {
    /// Starts counting now. `khz` is the rate of the counter, when the host's kernel knows it
    /// ([`KvmVcpu::tsc_khz`](crate::kvm::KvmVcpu::tsc_khz)). With it, the time of a tick does not depend on when
    /// it is asked for; otherwise the rate is measured, and gets more exact as the run goes on.
    #[must_use]
    pub fn start(khz: Option<NonZeroU32>) -> Self {
        Self { started: Instant::now(), first: ticks(), khz }
    }

    /// The rate of the counter.
    #[must_use]
    pub fn rate(&self) -> Rate {
        const NANOS_PER_MILLI: u64 = 1_000_000;
        let (ticks, nanos) = match self.khz {
            Some(khz) => (u64::from(khz.get()), NANOS_PER_MILLI),
            None => (
                ticks().saturating_sub(self.first).max(1),
                u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
            ),
        };
        Rate { first: self.first, ticks, nanos }
    }
}

/// The rate of the counter: so many `ticks` in so many `nanos`.
#[derive(Clone, Copy)]
pub struct Rate {
    first: u64,
    ticks: u64,
    nanos: u64,
}

impl Rate {
    /// Nanoseconds from the start of the clock to the moment at which `ticks` was read.
    #[must_use]
    pub fn nanos(&self, ticks: u64) -> u64 {
        self.duration(ticks.saturating_sub(self.first))
    }

    /// How many nanoseconds `ticks` ticks take.
    #[must_use]
    pub fn duration(&self, ticks: u64) -> u64 {
        let nanos = u128::from(ticks) * u128::from(self.nanos) / u128::from(self.ticks);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }

    /// How many ticks there are in `time`.
    #[must_use]
    pub fn ticks(&self, time: Duration) -> u64 {
        let ticks = time.as_nanos() * u128::from(self.ticks) / u128::from(self.nanos.max(1));
        u64::try_from(ticks).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_rate_gives_a_tick_the_same_time_whenever_it_is_asked() {
        let clock = Clock::start(NonZeroU32::new(2_000_000));
        let tick = clock.first + 5_000_000;
        assert_eq!(clock.rate().nanos(tick), 2_500_000);
        assert_eq!(clock.rate().nanos(tick), 2_500_000);
        assert_eq!(clock.rate().nanos(clock.first.wrapping_sub(1)), 0);
        assert_eq!(clock.rate().ticks(Duration::from_micros(2500)), 5_000_000);
    }
}
