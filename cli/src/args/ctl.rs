//! `vmm ctl`.

use super::heading;
use crate::record::Address;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// Control a guest that runs
///
/// The guest was started by `vmm run --control SOCKET` or `vmm guard --control SOCKET`. Several of these commands, and other programs,
/// can be connected at a time. PROBE is a number, as `list` has them, or a name: that of a definition, a function, or a pattern, which
/// means all that it has found.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm ctl guest.sock list
  vmm ctl guest.sock add do_sys_openat2 'r:back vfs_read ret=$retval'
  vmm ctl guest.sock remove back 0
  vmm ctl guest.sock stack
  vmm ctl guest.sock read 0xffffffff81000000 64

Exit codes:
  0  it was done
  2  it was not done, and why was said")]
pub(crate) struct Ctl {
    /// The socket that --control has named
    pub(crate) socket: PathBuf,
    #[command(subcommand)]
    pub(crate) command: CtlCommand,
    /// Print the answer as one JSON object
    #[arg(long, global = true, help_heading = heading::OUTPUT)]
    pub(crate) json: bool,
}

#[derive(Subcommand)]
pub(crate) enum CtlCommand {
    /// List the probes as /sys/kernel/debug/kprobes/list does, with their numbers
    List,
    /// Show hits and misses as /sys/kernel/tracing/kprobe_profile does
    Stats,
    /// Show histograms as they are at this moment: that of this name, or all
    Hist { name: Option<String> },
    /// Add probes, all or none: definitions as for --probe
    Add {
        #[arg(value_name = "DEF", required = true)]
        definitions: Vec<String>,
    },
    /// Remove probes. The run's table keeps what they have seen
    Remove {
        #[arg(value_name = "PROBE", required = true)]
        probes: Vec<String>,
    },
    /// Let probes stand again
    Enable {
        #[arg(value_name = "PROBE", required = true)]
        probes: Vec<String>,
    },
    /// Take probes out, and keep them
    Disable {
        #[arg(value_name = "PROBE", required = true)]
        probes: Vec<String>,
    },
    /// Let all probes stand that are enabled
    Arm,
    /// Take all probes out, and keep them as they are
    Disarm,
    /// Have all CPUs stand still until this command ends, or somebody says resume
    Pause,
    /// Let all CPUs go on
    Resume,
    /// List the tasks that are held (--hold)
    Held,
    /// Let a task go on that is held, or all
    Release {
        /// Which --hold, counted from 0.
        gate: Option<u32>,
    },
    /// Show the registers of a CPU, or of all
    Regs { vcpu: Option<usize> },
    /// Show who called whom on a CPU, or on all
    Stack { vcpu: Option<usize> },
    /// Show memory at an address, as the kernel sees it
    Read {
        /// The address, as the guest runs: 0xffffffff81000000.
        #[arg(value_parser = address)]
        address: Address,
        /// So many bytes.
        length: usize,
        /// By the page tables of what this CPU runs.
        #[arg(long, value_name = "N")]
        vcpu: Option<usize>,
        /// Write the bytes as they are.
        #[arg(long, conflicts_with = "json")]
        raw: bool,
    },
    /// Write the guest's memory to a file, as it is at one moment: an ELF core, which drgn, crash and `vmm scan` read
    Dump { file: PathBuf },
    /// End the guest
    Quit,
}

fn address(text: &str) -> Result<Address, &'static str> {
    Address::parse(text).ok_or("write a hexadecimal number, as in 0xffffffff81000000")
}
