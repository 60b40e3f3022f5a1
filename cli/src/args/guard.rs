//! `vmm guard`: `vmm run` with a guarded kernel and without probes but for those of rules.

use super::guarded::{FailChoice, Guarded, Rules, ScanChoice, WriteChoice, scan_choice};
use super::{Arming, Controlled, Dropped, GdbPlace, Guest, MetricsPlace, Records, Run, heading};
use clap::Args;
use std::path::PathBuf;

/// Watch the integrity of the guest's kernel
///
/// Once the kernel has booted, its code, its read-only data and its interrupt table are sealed. Each write there is looked at
/// before it is made, whatever the guest's page tables and control registers say. The kernel's own changes are made and counted: jump
/// labels, static calls, ftrace and kprobes, where its own patching code writes what belongs to a place that its own tables list. All
/// else is a finding, which a line tells with who wrote, and is made or not. The guest has no agent, and nothing in it can tell, but for
/// the time that a write takes.
///
/// When the guest has ended, and with `--scan 10s` also while the guest runs, its memory is scanned for what an attacker has changed in
/// data, and for modules that hide. A run with findings ends with exit code 123.
///
/// Rules (--rules) say what else is told: calls of the kernel's functions, as a module that is loaded or a process that becomes root.
/// They are written as Tetragon's TracingPolicy. A hit of a rule is told, and changes the exit code only where the rule ends the guest.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm guard -- ls /
  vmm guard --on-write deny --output findings.json -- cat /proc/version
  vmm guard --scan 1s --append workload=open:100
  vmm guard --keep-files dropped -- sh -c 'echo x > /tmp/x'
  vmm guard --rules default -- ls /
  vmm guard --rules default --format json -- ls / | vmm report - --format otlp --to http://127.0.0.1:4318
  vmm guard --list
  vmm guard --explain module-load

Exit codes are those of `vmm run`, and
  123    something was found, or a rule ended the guest, whatever CMD's own exit code is")]
pub(crate) struct Guard {
    /// What becomes of a write that is none of the kernel's own changes
    #[arg(long, value_enum, value_name = "WHAT", default_value_t, help_heading = heading::PROBES)]
    on_write: WriteChoice,
    /// When the memory is scanned as `vmm scan` does: end, never, or so often and at the end, as in 10s
    #[arg(
        long,
        value_name = "WHEN",
        value_parser = scan_choice,
        default_value = "end",
        help_heading = heading::PROBES
    )]
    scan: ScanChoice,
    /// What becomes of a guest whose memory cannot be scanned
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t,
        hide_short_help = true,
        help_heading = heading::PROBES
    )]
    fail: FailChoice,
    /// Keep the files that the command makes or changes in this new folder
    ///
    /// When the command has ended, what it has left running is ended as well, and the guest sends what was changed in its root. In DIR, files
    /// have the paths that they had there; nobody can run them, and only you can read them. Links, pipes, devices and what is too large are
    /// told of and not made. Nothing is kept of a guest that ends before its command does.
    #[arg(long, value_name = "DIR", requires = "command", help_heading = heading::COMMAND)]
    keep_files: Option<PathBuf>,
    #[command(flatten)]
    rules: Rules,
    /// List the rules: the shipped ones, and those of --rules
    #[arg(long, conflicts_with_all = ["explain", "command"], help_heading = heading::PROBES)]
    pub(crate) list: bool,
    /// Say what a rule is for, its probes in the kernel, and what it misses
    #[arg(long, value_name = "RULE", conflicts_with = "command", help_heading = heading::PROBES)]
    pub(crate) explain: Option<String>,
    #[command(flatten)]
    guest: Guest,
    #[command(flatten)]
    records: Records,
    /// Take commands at this socket while the guest runs, which `vmm ctl` sends: see `vmm run --help`
    #[arg(long, value_name = "SOCKET", hide_short_help = true, help_heading = heading::OUTPUT)]
    control: Option<PathBuf>,
    /// Serve what is counted as metrics for Prometheus, at this port of 127.0.0.1, ADDRESS:PORT or socket
    #[arg(long, value_name = "WHERE", hide_short_help = true, help_heading = heading::OUTPUT)]
    metrics: Option<MetricsPlace>,
    /// Let gdb control the guest: see `vmm run --help`
    #[arg(long, value_name = "SOCK|PORT", hide_short_help = true, help_heading = heading::OUTPUT)]
    gdb: Option<GdbPlace>,
    /// Have the guest stand still in front of its first instruction until gdb lets it go on
    #[arg(long, requires = "gdb", hide_short_help = true, help_heading = heading::OUTPUT)]
    gdb_wait: bool,
    /// Let debuggers read the guest at this socket, as they read one of QEMU's: see `vmm run --help`
    #[arg(long, value_name = "SOCKET", hide_short_help = true, help_heading = heading::OUTPUT)]
    qmp: Option<PathBuf>,
}

impl From<Guard> for Run {
    fn from(guard: Guard) -> Self {
        let Guard {
            on_write,
            scan,
            fail,
            keep_files,
            rules: Rules { rules },
            guest,
            records,
            control,
            metrics,
            gdb,
            gdb_wait,
            qmp,
            ..
        } = guard;
        let guarded = Guarded { guard: Some(on_write), scan, fail, rules };
        let dropped = Dropped { keep_files, dropped_to: None };
        let controlled = Controlled { control, metrics, gdb, gdb_wait, qmp, control_port: false };
        Self { guarded, dropped, controlled, ..Self::of(guest, records, Arming::default()) }
    }
}
