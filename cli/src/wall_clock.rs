//! What time it is outside of an emulated host, whose own clock stands still between its runs.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

static AHEAD: AtomicI64 = AtomicI64::new(0);

/// Nanoseconds since 1970 (UTC), by this machine's clock.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(now).unwrap_or(u64::MAX)
}

/// Nanoseconds since 1970 (UTC), by the clock of whoever has started this process.
pub(crate) fn now_outside() -> u64 {
    now().saturating_add_signed(AHEAD.load(Ordering::Relaxed))
}

/// It is this late outside.
pub(crate) fn set(outside: u64) {
    AHEAD.store(outside.wrapping_sub(now()).cast_signed(), Ordering::Relaxed);
}
