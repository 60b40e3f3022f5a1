//! `vmm coverage`.

use super::{Guest, heading};
use clap::{Args, ValueEnum};
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
        conflicts_with_all = ["patterns", "target", "kernel", "symbols", "initrd", "append", "raw_append", "command", "output", "format"],
        help_heading = heading::OUTPUT,
    )]
    pub(crate) diff: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) guest: Guest,
    /// Record the functions that ran in this file, for --diff and for programs
    ///
    /// It is JSON, one object a line, and docs/recording.md describes it. Nothing of it is shown then, unless --format says
    /// so.
    #[arg(long, short = 'o', value_name = "FILE", help_heading = heading::OUTPUT)]
    pub(crate) output: Option<PathBuf>,
    /// Show the functions that ran, as text, json or lcov
    ///
    /// text: on standard error. json: what --output would write, on standard output. lcov: all functions that were probed, by
    /// the files of their source, on standard output; for genhtml and others that read lcov's tracefiles. It takes the
    /// kernel's debugging information, in the vmlinux of --symbols or of --kernel DIR. With json and lcov, the guest's
    /// console and the command's standard output go to standard error.
    #[arg(long, value_enum, hide_possible_values = true, help_heading = heading::OUTPUT)]
    pub(crate) format: Option<CoverageFormat>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CoverageFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
    /// A tracefile of lcov
    Lcov,
}

impl Coverage {
    /// How the functions that ran are shown, if they are. Without a word on it, only the table is.
    pub(crate) fn shown(&self) -> Option<CoverageFormat> {
        self.format.or(self.output.is_none().then_some(CoverageFormat::Text))
    }

    /// Whether nothing is wanted but the table.
    pub(crate) fn is_table_only(&self) -> bool {
        self.format.is_none() && self.output.is_none()
    }
}
