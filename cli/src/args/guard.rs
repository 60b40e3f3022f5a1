//! `vmm guard`: `vmm run` with a guarded kernel and without probes.

use super::guarded::{Guarded, ScanChoice, WriteChoice};
use super::{Arming, Guest, Records, Run, heading};
use clap::Args;

/// Watch the integrity of the guest's kernel
///
/// Once the kernel has booted, its code, its read-only data and its interrupt table are sealed. Each write there is looked at
/// before it is made, whatever the guest's page tables and control registers say. The kernel's own changes are made and counted: jump
/// labels, static calls, ftrace and kprobes, where its own patching code writes what belongs to a place that its own tables list. All
/// else is a finding, which a line tells with who wrote, and is made or not. The guest has no agent, and nothing in it can tell, but for
/// the time that a write takes.
///
/// When the guest has ended, its memory is scanned for what an attacker has changed in data, and for modules that hide. Modules' code
/// is not sealed. A run with findings ends with exit code 123.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm guard -- ls /
  vmm guard --on-write deny --output findings.json -- cat /proc/version
  vmm guard --cpus 2 --append workload=open:100

Exit codes are those of `vmm run`, and
  123    something was found, whatever CMD's own exit code is")]
pub(crate) struct Guard {
    /// What becomes of a write that is none of the kernel's own changes
    #[arg(long, value_enum, value_name = "WHAT", default_value_t, help_heading = heading::PROBES)]
    on_write: WriteChoice,
    /// When the memory is scanned for what an attacker has changed, as `vmm scan` does
    #[arg(long, value_enum, value_name = "WHEN", default_value_t, help_heading = heading::PROBES)]
    scan: ScanChoice,
    #[command(flatten)]
    guest: Guest,
    #[command(flatten)]
    records: Records,
}

impl From<Guard> for Run {
    fn from(Guard { on_write, scan, guest, records }: Guard) -> Self {
        let guarded = Guarded { guard: Some(on_write), scan };
        Self { guarded, ..Self::of(guest, records, Arming::default()) }
    }
}
