//! Which kernel, and what is known of it; and `vmm kernel`.

use super::heading;
use crate::kernel_choice::{self, Choice};
use clap::{Args, Subcommand};
use guest_kernels::Kernel;
use std::path::PathBuf;

/// Which kernel
#[derive(Args)]
pub(crate) struct KernelArg {
    /// A file, a build's folder, debian:V or host
    ///
    /// A file is a bzImage or an ELF vmlinux. A folder is where a kernel was built: the image is arch/x86/boot/bzImage or
    /// vmlinux in it, and modules are those of its modules.order, of lib/modules/VERSION in it, or its files *.ko.
    /// debian:6.12 is a kernel as Debian ships it, by the name that `vmm kernel fetch` takes; it is fetched when it is not in
    /// the cache. host is the kernel that this machine runs: /boot/vmlinuz-VERSION, with the modules of
    /// /lib/modules/VERSION. A file that is called host is written ./host.
    #[arg(
        id = "kernel",
        long,
        short = 'k',
        value_name = "KERNEL",
        value_parser = Choice::parser(),
        default_value = "debian:6.12",
        help_heading = heading::MACHINE,
    )]
    pub(crate) which: Choice,
}

/// Where more is said of the kernel
#[derive(Args)]
pub(crate) struct SymbolSource {
    /// The kernel's vmlinux or System.map, for symbols, lines and types
    ///
    /// With the debugging information (DWARF, CONFIG_DEBUG_INFO) of a vmlinux, stacks and panics are shown with file and line,
    /// lines can be probed, variables have names there, and a kernel without BTF has types. A vmlinux must be of the same
    /// build as the kernel, by its build-id. The vmlinux in a folder that --kernel names is used without being named here.
    #[arg(long, alias = "system-map", value_name = "FILE", help_heading = heading::MACHINE)]
    pub(crate) symbols: Option<PathBuf>,
}

/// Fetch Debian's kernels, and list which there are
///
/// Fetched kernels are kept in $VMM_CACHE_DIR, or ~/.cache/vmm, unmodified, with the modules that guests need. `--kernel
/// debian:VERSION` finds them there, and fetches what is missing. Any user of a Debian machine may do that: apt takes the
/// packages out of the archive, and nothing is installed.
#[derive(Args)]
pub(crate) struct KernelTask {
    #[command(subcommand)]
    pub(crate) command: KernelCommand,
}

#[derive(Subcommand)]
pub(crate) enum KernelCommand {
    Fetch(FetchKernels),
    /// List the kernels that can be fetched, with the version and package of those that were
    ///
    /// The newest kernel of Debian's sid is called 7; each series of sid that was fetched has a row of its own.
    #[command(after_long_help = "\
Examples:
  vmm kernel list")]
    List,
    /// Write the symbols of a kernel to an ELF file, for gdb
    ///
    /// Distributions strip their kernels: this is what gdb needs of one to know names, and who called whom. It has neither code nor
    /// types; docs/gdb.md says what that leaves out.
    #[command(after_long_help = "\
Examples:
  vmm kernel symbols -k debian:6.12 vmlinux.sym")]
    Symbols(KernelSymbols),
}

/// Which symbols go where
#[derive(Args)]
pub(crate) struct KernelSymbols {
    #[command(flatten)]
    pub(crate) kernel: KernelArg,
    #[command(flatten)]
    pub(crate) source: SymbolSource,
    /// The file to write
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Fetch kernels, or bring them to the version that Debian offers
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm kernel fetch 6.12")]
pub(crate) struct FetchKernels {
    /// Which: a series, as 6.12, or 7 for the newest of Debian's sid
    ///
    /// A series alone is the kernel for clouds; -rt behind it is the one with PREEMPT_RT, and -amd64 the one with the drivers of
    /// real machines. A series that the machine's own release does not have is looked for in sid. `vmm` is tested with 6.1,
    /// 6.12, 6.12-rt, 7 and 7-rt.
    #[arg(value_name = "VERSION", required = true, value_parser = kernel_choice::debian)]
    pub(crate) kernels: Vec<Kernel>,
}
