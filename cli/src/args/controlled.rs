//! Commands to a guest while it runs.

use super::{GdbPlace, MetricsPlace, heading};
use clap::Args;
use std::path::PathBuf;

/// Commands to a guest while it runs
#[derive(Args, Default)]
#[command(next_help_heading = heading::OUTPUT)]
pub(crate) struct Controlled {
    /// Take commands at this socket while the guest runs, which `vmm ctl` sends
    ///
    /// The socket is yours alone, and is removed at the end. docs/control.md describes what is spoken there, for other programs.
    /// Probes that are added so are shown, recorded and counted as those of the command line are.
    #[arg(long, value_name = "SOCKET", hide_short_help = true, conflicts_with_all = ["bundle", "dry_run", "fail_nth"])]
    pub(crate) control: Option<PathBuf>,
    /// Serve what is counted as metrics for Prometheus, at this port of 127.0.0.1, ADDRESS:PORT or socket
    ///
    /// They are at http://127.0.0.1:PORT/metrics: hits, misses and durations of each probe, and what the guard has seen.
    #[arg(long, value_name = "WHERE", hide_short_help = true, conflicts_with_all = ["bundle", "dry_run", "fail_nth"])]
    pub(crate) metrics: Option<MetricsPlace>,
    /// Let gdb control the guest: it connects to this socket, or to this port of 127.0.0.1
    ///
    /// `target remote guest.gdb` in gdb. CPUs are threads; breakpoints and watchpoints are probes. The socket is yours alone, and a port is
    /// every local user's. docs/gdb.md says more.
    #[arg(long, value_name = "SOCK|PORT", hide_short_help = true, conflicts_with_all = ["bundle", "dry_run", "fail_nth"])]
    pub(crate) gdb: Option<GdbPlace>,
    /// Have the guest stand still in front of its first instruction until gdb lets it go on
    #[arg(long, requires = "gdb", hide_short_help = true)]
    pub(crate) gdb_wait: bool,
    /// Let debuggers read the guest at this socket, as they read one of QEMU's: `drgn --qemu SOCKET`
    ///
    /// The socket is yours alone, and is removed at the end. docs/drgn.md shows how to begin.
    #[arg(long, value_name = "SOCKET", hide_short_help = true, conflicts_with_all = ["bundle", "dry_run", "fail_nth"])]
    pub(crate) qmp: Option<PathBuf>,
    /// Commands come from outside of this host
    #[arg(long, hide = true)]
    pub(crate) control_port: bool,
}
