//! `vmm replay`.

use super::orders::within;
use super::{HostArgs, heading};
use crate::kernel_choice::Choice;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Run once more what a bundle has, and compare
///
/// The bundle is what --bundle of `vmm run` or `vmm shake` has left. Its command runs on the files that are in it, with the kernel that is
/// in it. The order in which tasks came to its probes is imposed again: a task whose turn has not come waits in front of its probe. What comes of it
/// is compared with what came of it then: the exit code, the kernel's reports, and the order of hits, by probes and tasks. It is the replay
/// of an order, and no determinism: what happens between two probes takes the time that it takes.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm replay race.bundle

Exit codes:
  0    verdict and order are the same
  1    one of them differs, and which was said
  2    the bundle cannot be used, and nothing was run
  125  the guest did not come to run the command, or the emulated host died, which says nothing about the guest")]
pub(crate) struct Replay {
    /// The bundle
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
    /// Another kernel than that of the bundle: a file, a build's folder, debian:V or host
    #[arg(long, short = 'k', value_name = "KERNEL", value_parser = Choice::parser(), help_heading = heading::MACHINE)]
    pub(crate) kernel: Option<Choice>,
    #[command(flatten)]
    pub(crate) place: HostArgs,
    /// Do not impose the order that was observed, and only compare
    #[arg(long)]
    pub(crate) free: bool,
    /// How long a task waits for its turn at most: 500us, 20ms, 2s; 5s is the longest
    ///
    /// When the time is over, the task goes on, and the order is lost from there on.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = within)]
    pub(crate) within: Duration,
    /// Record this run in a file, for `vmm report`
    #[arg(long, short = 'o', value_name = "FILE", help_heading = heading::OUTPUT)]
    pub(crate) output: Option<PathBuf>,
}
