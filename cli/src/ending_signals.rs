//! Signals that end what this process does, and not the process: a run of several guests, or a part of a pipe.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

const ENDING: [i32; 3] = [SIGHUP, SIGINT, SIGTERM];

/// Whether the run is to end, and by which signal. From now on no such signal ends this process.
pub(crate) fn ending_signals() -> Result<(Arc<AtomicBool>, Arc<AtomicUsize>)> {
    let (is_over, which) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for signal in ENDING {
        let number = usize::try_from(signal).unwrap_or_default();
        flag::register_usize(signal, which.clone(), number)
            .and_then(|_| flag::register(signal, is_over.clone()))
            .context("cannot take signals")?;
    }
    Ok((is_over, which))
}

/// From now on the first such signal ends nothing, and the second one this process: a terminal sends the first one to who writes to
/// this process as well, and what that one has to say of its end is still wanted.
pub(crate) fn only_the_second_ends() -> Result<()> {
    let is_second = Arc::new(AtomicBool::new(false));
    for signal in ENDING {
        // In this order, or the first one would be taken for the second.
        flag::register_conditional_shutdown(signal, 128 + signal, is_second.clone())
            .and_then(|_| flag::register(signal, is_second.clone()))
            .context("cannot take signals")?;
    }
    Ok(())
}
