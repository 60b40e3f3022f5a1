//! Time stamps that cost no system call: the time-stamp counter, converted when a record is read.
//!
//! `clock_gettime` is a system call wherever the host's clock source is not its TSC (as in an emulated host),
//! and a hit may make only one.
#![allow(unsafe_code, reason = "rdtsc is an intrinsic")]

use std::time::Instant;

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
}

impl Clock {
    /// Starts counting now.
    #[must_use]
    pub fn start() -> Self {
        Self { started: Instant::now(), first: ticks() }
    }

    /// The rate so far, which gets more exact as the run goes on.
    #[must_use]
    pub fn rate(&self) -> Rate {
        Rate {
            first: self.first,
            ticks: ticks().saturating_sub(self.first).max(1),
            nanos: u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        }
    }
}

/// The rate of the counter, measured over the run so far.
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
        let elapsed = u128::from(ticks.saturating_sub(self.first));
        u64::try_from(elapsed * u128::from(self.nanos) / u128::from(self.ticks)).unwrap_or(u64::MAX)
    }
}
