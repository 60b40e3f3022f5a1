//! `vmm doctor`.

use super::{HostArgs, heading};
use crate::kernel_choice::Choice;
use clap::Args;
use std::path::PathBuf;

/// Test whether guests can be probed on this machine, and say what to do
///
/// Tests this machine's own KVM and the emulated host, or the one that --host names, and says last what that means and what
/// to do. A check that fails is marked NO where guests with probes need it, and no where a single feature does, or where the
/// kernel cannot confine this program (Landlock, seccomp).
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm doctor
  vmm doctor --host emulated --json

Exit codes:
  0  guests run on one of the hosts that were tested
  1  guests run on none of them, or with --report: a guest differed from what was expected
  2  the test could not be started, and why was said")]
pub(crate) struct Doctor {
    /// Print the result as one JSON object
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) json: bool,
    /// Also run four guests, and write what is wrong with them to this file
    ///
    /// That is for a machine on which something is wrong, or that nobody has tried yet. In the file are the processor,
    /// its flags and its kernel's mitigations, the kernel's version, parameters of KVM's modules, the table that is
    /// printed, a storm of traps, traps with stacks, detours, and counts of hundreds of functions. Names of
    /// the machine and its users are not in it; what `vmm` said of a guest that differs may have names of files. The guests
    /// run where --host says, and take a minute or two in the emulated host.
    #[arg(long, value_name = "FILE", help_heading = heading::OUTPUT)]
    pub(crate) report: Option<PathBuf>,
    /// The kernel of these guests, as `vmm run` takes it [default: debian:6.12]
    #[arg(
        long,
        short = 'k',
        value_name = "KERNEL",
        value_parser = Choice::parser(),
        requires = "report",
        help_heading = heading::MACHINE,
    )]
    pub(crate) kernel: Option<Choice>,
    #[command(flatten)]
    pub(crate) place: HostArgs,
}
