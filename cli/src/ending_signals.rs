//! Signals that end a run of several guests, each a process of its own.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

/// Whether the run is to end, and by which signal. From now on no such signal ends this process.
pub(crate) fn ending_signals() -> Result<(Arc<AtomicBool>, Arc<AtomicUsize>)> {
    let (is_over, which) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, which.clone(), number)
            .and_then(|_| signal_hook::flag::register(signal, is_over.clone()))
            .context("cannot take signals")?;
    }
    Ok((is_over, which))
}
