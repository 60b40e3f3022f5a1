//! Processor time: a thread that waits for a processor takes none.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// How much of it this thread has taken until now.
pub fn taken() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
