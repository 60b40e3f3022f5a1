//! `vmm top`.

use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Watch the probes of a guest that runs
///
/// The guest was started by `vmm run --control SOCKET` or `vmm guard --control SOCKET`. Each row is a probe, with its hits and misses, how
/// many there were in the last second, and how long the calls took that returned meanwhile. Below it is a histogram, the most frequent
/// key first. Keys: q ends, p has the guest stand still or go on, s sorts by another column, the arrows choose a probe, Space disables or
/// enables it, Tab shows the next histogram.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm top guest.sock
  vmm top guest.sock --batch 2 --every 0.5

Exit codes:
  0  the guest has ended, or you have
  2  there is no such guest")]
pub(crate) struct Top {
    /// The socket that --control has named
    pub(crate) socket: PathBuf,
    /// Print so many tables as text, and end
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: Option<u32>,
    /// Look each so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub(crate) every: Duration,
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or("write a number of seconds from 0.1 to 3600")
}
