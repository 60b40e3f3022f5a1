//! `vmm shake`: `vmm run` with delays at probes.

use super::orders::{Shaken, within};
use super::{Arming, Bundled, Guest, Orders, Records, Run, SplatArgs, heading};
use clap::Args;
use probe_engine::probe::pace::Delay;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Delay CPUs at probes by chance, to meet races
///
/// Every second hit, as chance has it, makes its CPU stand still for a time of up to --most, so that what other CPUs do meanwhile
/// comes in orders in which it seldom does. The same seed gives the hits of each probe the same times; in which order the guest's
/// CPUs come to its probes is not repeated, so that another run may go another way. Exit codes are those of `vmm run`.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm shake 'pipe_*' --seed 7 --cpus 2 -- sh -c 'cat /etc/passwd | head -n 1'
  vmm shake do_exit do_wait --most 5ms --cpus 2 -- sh -c 'true & true & wait'")]
pub(crate) struct Shake {
    /// A place, pattern or definition, as for `vmm run --probe`
    #[arg(value_name = "PATTERN", required = true, help_heading = heading::PROBES)]
    patterns: Vec<String>,
    /// What chance begins with [default: another one each time, which is said]
    #[arg(long, value_name = "N", help_heading = heading::PROBES)]
    seed: Option<u64>,
    /// The longest delay: 500us, 20ms, 2s; 5s is the longest
    #[arg(
        long,
        value_name = "TIME",
        default_value = "1ms",
        value_parser = within,
        help_heading = heading::PROBES,
    )]
    most: Duration,
    #[command(flatten)]
    guest: Guest,
    #[command(flatten)]
    records: Records,
    #[command(flatten)]
    splats: SplatArgs,
    #[command(flatten)]
    arming: Arming,
    #[command(flatten)]
    bundled: Bundled,
}

impl From<Shake> for Run {
    fn from(Shake { patterns, seed, most, guest, records, splats, arming, bundled }: Shake) -> Self {
        let now =
            || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.subsec_nanos().into());
        let delay = Delay { seed: seed.unwrap_or_else(now), most };
        let shaken = Some(Shaken { places: patterns, delay, is_random: seed.is_none() });
        let orders = Orders { shaken, ..Orders::default() };
        Self { orders, splats, bundled, ..Self::of(guest, records, arming) }
    }
}
