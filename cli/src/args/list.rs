//! `vmm list`.

use super::{Format, KernelArg, SymbolSource, heading};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// List what can be probed in a kernel
///
/// Functions come one a line: address as linked, size in bytes, name. A size reaches to the next symbol. Of several functions
/// that share a name, NAME#2 is the second by address, and can be probed by that; which file each is from is not known, as
/// kallsyms has none. A function with several names is listed by each of them, and can be probed by each: all but the first are
/// marked as aliases. The list is made from the kernel's file; `vmm run` reports functions that turn out not to be
/// probeable once the kernel has patched itself.
///
/// System calls come one a line: number, name, and the function at which `--probe syscall:NAME` stands.
///
/// Tracepoints come one a line, as SYSTEM:NAME. With -v, what `--probe 't SYSTEM:NAME'` has as arguments, and below that the fields of
/// the event that the guest's own tracefs makes of it, with the reason where a probe cannot read one.
///
/// Of a program or a library (--kind user PATH) come its functions, with their offsets in the file and their sizes, and then the
/// tracepoints that it has of its own (USDT), with where their arguments are. With -v, names of C++ and Rust as the source has them.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm list 'vfs_*'
  vmm list -v 'vfs_*'
  vmm list --kind refused '*int3*'
  vmm list --kind syscalls -v 'open*'
  vmm list --kind tracepoints -v 'sched:*'
  vmm list --all --kernel bzImage
  vmm list --kind user '/lib/x86_64-linux-gnu/libc.so.6:mem*'

JSON (--format json): an object a line. A function has address (a hexadecimal string), name, size, alias_of, prototype (with
-v) and refused (why it cannot be probed). A system call has number, name, handler, compat (where 32-bit programs enter instead) and
prototype. Of a program, a function has name, demangled, offset, size and refused, and a tracepoint of its own has provider, name and
places, each with offset and arguments. A tracepoint has
system, name, function (at which the probe stands), refused, and with -v arguments (as C) and fields (declaration and refused). With
--lines, an object has file, line, text (null where the source is not here), address, inlined (the function that the line is
of, where it is inlined), refused and variables (the names of those that can be read there).")]
pub(crate) struct List {
    /// Only names that match, as 'vfs_*'; with --kind user, the program
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: Option<String>,
    /// What is listed
    #[arg(long, value_enum, default_value_t = ListKind::Functions)]
    pub(crate) kind: ListKind,
    /// List also functions that cannot be probed, with the reason
    #[arg(long)]
    pub(crate) all: bool,
    /// Show what each takes and returns, as C
    ///
    /// Prototypes come from the kernel's type information (BTF). Nothing is said of a function that it does not have. Of what
    /// the compiler split off or changed (NAME.isra.0, NAME.constprop.0, NAME.part.0) only that is said: its
    /// parameters are not those that the source has. Where functions of one name differ, the first is shown.
    #[arg(long, short, alias = "proto")]
    pub(crate) verbose: bool,
    /// Show the source of this function beside what can be probed
    ///
    /// That takes debugging information (--symbols vmlinux). Each line that has code has the address at which `--probe
    /// FUNCTION:LINE` stands, one for each copy that is inlined into the function, and why it cannot be probed where it cannot.
    /// Lines are counted from the start of the file. As JSON, the names of the variables follow that a definition can read
    /// there.
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["pattern", "all", "verbose", "timing"])]
    pub(crate) lines: Option<String>,
    /// With --lines: the folder of the kernel's source
    ///
    /// The default is where the kernel was compiled, or the folder that --kernel names.
    #[arg(long, value_name = "DIR", requires = "lines")]
    pub(crate) source: Option<PathBuf>,
    /// How the list is written
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) kernel: KernelArg,
    #[command(flatten)]
    pub(crate) symbols: SymbolSource,
    /// Say on standard error how long it took to understand the kernel, step by step
    #[arg(long, hide_short_help = true, help_heading = heading::ADVANCED)]
    pub(crate) timing: bool,
}

/// What is listed.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListKind {
    /// Functions that can be probed
    Functions,
    /// System calls, by the names that programs know
    #[value(alias = "syscall")]
    Syscalls,
    /// Tracepoints of the kernel's own, by SYSTEM:NAME
    #[value(alias = "tracepoint")]
    Tracepoints,
    /// Functions that cannot be probed, and why
    Refused,
    /// What can be probed in a program or library on this machine: PATH, or PATH:PATTERN
    User,
}
