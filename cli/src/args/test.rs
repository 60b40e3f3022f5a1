//! `vmm test`.

use super::{HostArgs, heading};
use crate::kernel_choice::Choice;
use clap::Args;
use std::path::PathBuf;

/// Run cases: boot a guest for each, and hold what it did to what its case expects
///
/// A file of cases says which kernels are booted, what runs in each guest, and what is expected of it: its exit code, hits of
/// probes, their numbers, values and order, and words of its output. docs/testing.md has the format. Every case is checked
/// before anything boots; each then runs in a process of its own.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm test cases.toml
  vmm test cases.toml --list

Exit codes:
  0    all cases have passed, but for those that were skipped
  1    a case has failed
  2    there is a mistake in the file or in the words, and nothing was run
  77   all cases were skipped
  125  none has failed, and one was inconclusive, or could not be run for reasons of this machine")]
pub(crate) struct Cases {
    /// The file of cases
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Only cases whose names have one of these texts in them
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Boot these kernels instead of those of the file; may be repeated
    #[arg(
        long = "kernel",
        short = 'k',
        value_name = "KERNEL",
        value_parser = Choice::parser(),
        help_heading = heading::MACHINE,
    )]
    pub(crate) kernels: Vec<Choice>,
    #[command(flatten)]
    pub(crate) place: HostArgs,
    /// How many guests run side by side [default: as many as cores and free memory allow]
    #[arg(long, short = 'j', value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = heading::MACHINE)]
    pub(crate) jobs: Option<u16>,
    /// List the cases that would run, and run none
    #[arg(long)]
    pub(crate) list: bool,
}
