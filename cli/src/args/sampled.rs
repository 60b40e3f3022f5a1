//! Samples beside probes, and how often they are taken.

use super::heading;
use clap::Args;
use std::num::NonZeroU32;

/// How often each CPU is sampled where nothing else is said: next to what people think of, so that nothing in the guest that is
/// periodic keeps in step with it.
pub(super) const FREQUENCY: &str = "99";

/// Samples beside probes
#[derive(Args, Default)]
#[command(next_help_heading = heading::PROBES)]
pub(crate) struct Sampled {
    /// Sample the guest's CPUs as well, HZ times a second, as `vmm profile` does [default: 99]
    #[arg(
        long,
        value_name = "HZ",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = FREQUENCY,
        value_parser = frequency,
        hide_short_help = true,
        conflicts_with = "target",
    )]
    pub(crate) profile: Option<NonZeroU32>,
}

/// How often a CPU is to be sampled.
pub(super) fn frequency(text: &str) -> Result<NonZeroU32, String> {
    const MOST: u32 = 10_000;
    let number = text.parse::<NonZeroU32>().ok().filter(|number| number.get() <= MOST);
    number.ok_or_else(|| format!("a CPU is sampled 1 to {MOST} times a second"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frequency_has_bounds() {
        assert!(["1", "999", "10000"].iter().all(|text| frequency(text).is_ok()));
        assert!(["", "0", "-1", "10001", "1.5", "1k"].iter().all(|text| frequency(text).is_err()));
    }
}
