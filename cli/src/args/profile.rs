//! `vmm profile`: `vmm run` with samples and without probes.

use super::sampled::{FREQUENCY, Sampled, frequency};
use super::{Arming, Guest, Records, Run, heading};
use clap::Args;
use std::num::NonZeroU32;

/// Show where the guest's CPUs spend their time
///
/// Each CPU is interrupted so many times a second, and it is noted down what it runs: the task, the kernel's stack, and the
/// process's as far as its code keeps frame pointers. Code with interrupts off is seen as any other, and so is a guest that hangs.
/// A CPU that is halted is idle, which is told apart. The guest is not changed. What follows when it has ended is the functions in
/// which it was most often; with --output, `vmm report` shows more. Exit codes are those of `vmm run`.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm profile -- ls -R /etc
  vmm profile -F 499 --cpus 2 --scope boot --append workload=pipe:2000
  vmm profile --output samples.json --append workload=walk:2")]
pub(crate) struct Profile {
    /// How often in a second each CPU is looked at
    #[arg(
        long,
        short = 'F',
        value_name = "HZ",
        default_value = FREQUENCY,
        value_parser = frequency,
        help_heading = heading::PROBES,
    )]
    frequency: NonZeroU32,
    #[command(flatten)]
    guest: Guest,
    #[command(flatten)]
    records: Records,
}

impl From<Profile> for Run {
    fn from(Profile { frequency, guest, records }: Profile) -> Self {
        let sampled = Sampled { profile: Some(frequency) };
        Self { sampled, ..Self::of(guest, records, Arming::default()) }
    }
}
