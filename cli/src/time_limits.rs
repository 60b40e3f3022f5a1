//! How long a guest may take.

use crate::args::Guest;
use std::io::{self, IsTerminal};
use std::time::Duration;

/// A guest that hangs is told from one that works slowly. One whose console is a person's has no end of its own.
pub(crate) const RUN: Option<Duration> = Some(Duration::from_secs(600));
/// So long a guest may take until its init is there.
pub(crate) const BOOT: Option<Duration> = Some(Duration::from_secs(60));

/// How long an emulated host may take that watches the guest's time itself. `None`: for ever.
pub(crate) fn longest(guest: &Guest) -> Option<Duration> {
    /// What it takes on a busy machine to begin and to end.
    const MARGIN: Duration = Duration::from_secs(60);
    let otherwise = if io::stdin().is_terminal() { None } else { RUN };
    limit(guest.timeout, otherwise, true)?.checked_add(MARGIN)
}

/// How long something may take here, where the user has `asked` for it or not.
pub(crate) fn timeout(asked: Option<u64>, otherwise: Option<Duration>) -> Option<Duration> {
    limit(asked, otherwise, vmm::boot::on_emulated_cpu())
}

/// The same, on a processor that is emulated or not.
fn limit(asked: Option<u64>, otherwise: Option<Duration>, is_emulated: bool) -> Option<Duration> {
    /// An emulated processor takes so many times as long.
    const EMULATED: u32 = 6;
    match asked {
        Some(0) => None,
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None if is_emulated => otherwise.map(|time| time * EMULATED),
        None => otherwise,
    }
}
