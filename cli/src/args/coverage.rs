//! `vmm coverage`.

use super::{Guest, heading};
use clap::Args;
use probe_engine::probe::spec::ProbeSpec;
use std::path::PathBuf;

/// Show which functions of a kernel run
///
/// Boots a kernel with a one-shot probe on every function that its ftrace could trace, from early boot on: the first
/// call of each is seen, and costs nothing afterwards. A table by prefix of the functions' names (`vfs` is vfs_read,
/// __vfs_getxattr and so on) follows when the guest has ended: how many ran, and how many were probed. The functions that ran
/// are recorded with --output, and shown with --format, in order of their first calls.
///
/// Functions that run only before `arch_cpu_finalize_init`, functions of modules, and what the kernel keeps from its own
/// tracer are not seen. Exit codes are those of `vmm run`.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm coverage 'vfs_*' -- cat /etc/passwd
  vmm coverage --kernel bzImage --initrd initrd.img --cpus 2 --output ran.json
  vmm coverage 'vfs_*' 'ksys_*' --format json --append workload=open:10")]
pub(crate) struct Coverage {
    /// Only functions whose names match one of these, as 'vfs_*' [default: all]
    #[arg(value_name = "PATTERN", conflicts_with = "target", help_heading = heading::PROBES)]
    pub(crate) patterns: Vec<ProbeSpec>,
    /// Boot nothing, and show which functions ran in only one of two runs, by the recordings that --output has made of them
    #[arg(
        long,
        num_args = 2,
        value_names = ["FILE", "FILE"],
        conflicts_with_all = ["patterns", "target"],
        help_heading = heading::OUTPUT,
    )]
    pub(crate) diff: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) guest: Guest,
}
