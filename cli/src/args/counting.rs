//! `vmm count` and `vmm graph`: `vmm run` with probes that patterns find.

use super::{Arming, Followed, Guest, Probes, Records, Run, heading};
use clap::Args;

/// Count how often functions are called
///
/// How often each function was called follows when the guest has ended, the most frequent first. With detours, which is the
/// default, a call costs the guest eleven instructions more. Exit codes are those of `vmm run`.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm count 'vfs_*' -- ls /
  vmm count 'vfs_*' do_sys_openat2 --append workload=open:10")]
pub(crate) struct Count {
    /// A function, or a pattern as 'vfs_*'; in a program PATH:NAME
    ///
    /// '*' is every function that the kernel's ftrace could trace, some 40,000.
    #[arg(value_name = "PATTERN", required = true, help_heading = heading::PROBES)]
    patterns: Vec<Followed>,
    #[command(flatten)]
    guest: Guest,
    #[command(flatten)]
    records: Records,
    #[command(flatten)]
    arming: Arming,
}

/// Show calls of functions in each other, and how long each takes
///
/// Each call is a line, indented by the calls of other such functions that it is made in, with how long it took; where it
/// makes such calls itself, a line for its beginning and one for its end. Calls that are not followed or cannot be written are
/// counted as missed; a line for the end is then not there. As JSON, calls are hits and returns like any other. At most
/// 4096 functions can be followed. Exit codes are those of `vmm run`.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm graph 'vfs_*' do_sys_openat2 -- cat /etc/passwd
  vmm graph /lib/x86_64-linux-gnu/libc.so.6:fopen do_sys_openat2 -- sort /etc/passwd
  vmm graph 'vfs_*' --output calls.json --append workload=open:5")]
pub(crate) struct Graph {
    /// A function that the kernel's ftrace could trace, or a pattern as 'vfs_*'; in a program PATH:NAME
    #[arg(value_name = "PATTERN", required = true, help_heading = heading::PROBES)]
    patterns: Vec<Followed>,
    #[command(flatten)]
    guest: Guest,
    #[command(flatten)]
    records: Records,
    #[command(flatten)]
    arming: Arming,
}

impl From<Count> for Run {
    fn from(Count { patterns, guest, records, arming }: Count) -> Self {
        let probes = Probes { counts: patterns, ..Probes::default() };
        Self { probes, ..Self::of(guest, records, arming) }
    }
}

impl From<Graph> for Run {
    fn from(Graph { patterns, guest, records, arming }: Graph) -> Self {
        let probes = Probes { graphs: patterns, ..Probes::default() };
        Self { probes, ..Self::of(guest, records, arming) }
    }
}
