//! `vmm scan`.

use super::{KernelArg, SymbolSource, heading};
use clap::{Args, ValueEnum};
use std::ffi::OsString;

/// Check the integrity of a kernel in a memory dump, or in another virtual machine
///
/// The memory of a guest that runs under QEMU or another monitor, or that was written to a file, is compared with the file of its
/// kernel: code and constants, page tables, executable pages that belong to nobody, modules that hide, the interrupt table, hooks of ftrace
/// and kprobes, pointers to functions, and credentials. The memory is only read, and the guest is not stopped.
///
/// What is found has a line each. A scan with findings ends with exit code 123.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm scan --kernel debian:6.12 guest.core
  vmm scan --kernel bzImage --ps guest.core

Exit codes:
  0      nothing was found
  2      the words are wrong, or the memory or its kernel cannot be read
  123    something was found
  125    nothing was found, and a check could not be made")]
pub(crate) struct Scan {
    /// The file with the memory, or the number of the process that has it
    ///
    /// A file is an ELF core, as QEMU's dump-guest-memory, `virsh dump --memory-only`, makedumpfile -E or kdump write it; a file in LiME's
    /// format; or the bytes of the memory from physical address 0 on. A process is a monitor of virtual machines, as QEMU, whose memory
    /// may be read by its user or root. A file that is called 4711 is written ./4711.
    #[arg(value_name = "FILE|PID", required = true)]
    pub(crate) memory: OsString,
    #[command(flatten)]
    pub(crate) kernel: KernelArg,
    #[command(flatten)]
    pub(crate) symbols: SymbolSource,
    /// List the processes, and make no checks
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) ps: bool,
    /// List the modules, and make no checks
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) modules: bool,
    /// List who is called at ftrace's places and at kprobes, and make no checks
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) hooks: bool,
    /// List the symbols with their addresses at run time, and make no checks
    #[arg(long, help_heading = heading::OUTPUT)]
    pub(crate) kallsyms: bool,
    /// What is written to standard output
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = ScanFormat::Text, help_heading = heading::OUTPUT)]
    pub(crate) format: ScanFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScanFormat {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
    /// Findings as events of OCSF (Detection Finding, 2004), one a line: for what collects security events
    Ocsf,
}
