//! What follows from reports of the guest's kernel.

use super::heading;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Reports of the kernel
#[derive(Args, Default)]
#[command(next_help_heading = heading::OUTPUT)]
pub(crate) struct SplatArgs {
    /// What follows when the kernel reports a bug of its own: fail, report, hold, dump or ignore
    ///
    /// Panics, oopses, warnings, stalls, and what lockdep, KASAN and the like find are read from the kernel's own log, which has
    /// them whatever its loglevel is, and which no process can write them to.
    ///
    /// - fail: it is said and recorded, and the run ends with 123
    ///
    /// - report: it is said and recorded. A guest that panics has died, which ends with 123 as ever
    ///
    /// - hold: the same, and the guest stands still, its CPU still in the report where the kernel marks itself as tainted. It waits for
    ///   whoever is at --control or --qmp, and goes on when `vmm ctl SOCKET resume` says so
    ///
    /// - dump: the same, and the first report that is not allowed leaves the guest's memory in the file that --vmcore names
    ///
    /// - ignore: nobody looks
    #[arg(long, value_enum, default_value_t, hide_possible_values = true, value_name = "MODE")]
    pub(crate) splat: SplatChoice,
    /// Reports that are allowed: a file of TOML; may be repeated
    ///
    /// It has a list, allow = [{ match = "WARNING in foo", reason = "known, see #12", until = "2027-06" }]. `match` is a regular
    /// expression, which is looked for in a report's title and in its fingerprint. `until` may be left out; behind that day or month
    /// the report fails again.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) allow_splats: Vec<PathBuf>,
    /// Where --splat dump leaves the guest's memory: an ELF core, which drgn, crash and `vmm scan` read
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub(crate) vmcore: Option<PathBuf>,
    /// Keep the last N hits of each CPU, and show them at a splat, a time-out or a standstill; no others
    ///
    /// What is shown are the hits before the moment at which the report began. All hits are counted in the table at the end.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10000), hide_short_help = true)]
    pub(crate) recent: Option<u16>,
}

/// See [`SplatArgs::splat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum SplatChoice {
    /// The run fails
    Fail,
    /// It is said and recorded
    #[default]
    Report,
    /// So it is, and the guest stands still
    Hold,
    /// So it is, and the guest's memory is kept
    Dump,
    /// Nobody looks
    Ignore,
}
