//! What is probed, and how probes are served.

use super::{Followed, heading};
use clap::{Args, ValueEnum};
use probe_engine::probe::watch::WatchSpec;
use std::path::PathBuf;

/// What is probed
#[derive(Args, Default)]
#[command(next_help_heading = heading::PROBES)]
pub(crate) struct Probes {
    /// A function, pattern, line, syscall:NAME or definition; may be repeated
    ///
    /// A function (do_sys_openat2), a place in one (do_sys_openat2+0x10), an address as the kernel was linked
    /// (0xffffffff81000280), a pattern that names functions (vfs_*), or a function of a module
    /// (dummy:dummy_xmit), which need not be loaded yet. With %return behind a function or a pattern (vfs_read%return), its
    /// returns are probed. Of several functions that share a name, init_once#2 is the second by address, as `vmm list` lists
    /// them. A function is shown as a call, by its own parameters.
    ///
    /// syscall:openat is a system call by the name that programs know, with its own parameters: the function that handles it is
    /// probed, which `vmm list --kind syscalls` names. Where 32-bit programs enter elsewhere, --dry-run says so.
    ///
    /// With debugging information (--symbols), a line of the source is a place: of a file (fs/open.c:1420, or open.c:1420 where
    /// that is one file), or of a function and what is inlined into it (do_sys_openat2:1420). Lines are counted from the start of
    /// the file, as stacks and `vmm list --lines` have them. A line that is inlined in several places is probed in each.
    ///
    /// Or a definition in the language of the kernel's kprobe_events, of which there are examples below: p, or r for
    /// returns, or f for a function's entry, with a name; the place; what is fetched (%REG, $argN, $retval, $comm, $current,
    /// $cgroup, @SYM, +OFFS(FETCH), a parameter or variable, and its members, with a type); which hits count; and by what they
    /// are counted instead of being shown. The fields of a definition that fetches nothing are the function's parameters, or
    /// `return`.
    ///
    /// 't SYSTEM:NAME' is a tracepoint, by the names that `vmm list --kind tracepoints` has, or patterns of them, with its own
    /// arguments. The guest's own kernel switches it on, which the guest can notice (--assist=off refuses that).
    ///
    /// 'p PATH:SYMBOL' and 'r PATH:SYMBOL' are in a program or a library of the guest's, by its whole path; PATH:0xOFFSET is a
    /// place in its file, PATH:PATTERN all functions that are called so, and 'usdt PATH:PROVIDER:NAME' a tracepoint that the
    /// program has of its own, with its arguments as $argN. %REG and $argN are the program's own. The guest's own kernel puts them there, which it can notice.
    ///
    /// $current is the task that runs, and $current->pid a member of it. (STRUCT)VALUE->MEMBER takes a value as the address of
    /// a structure, and (STRUCT,FIELD)VALUE->MEMBER as that of a field of one; a value that is no single name is put in
    /// parentheses. this_cpu_ptr(@SYM) is where the CPU has its own one of a per-CPU variable, and this_cpu_read(@SYM) what
    /// lies there. Kernels have these since 7.3; here they work with every kernel.
    ///
    /// Inside a function, at a line or an offset, debugging information gives names to variables and parameters, and to
    /// those of functions that are inlined there; VAR.MEMBER is a member of a structure. A variable can be read that is in a
    /// register, on the stack, or a constant at that instruction; each other one is refused by its name.
    ///
    /// A histogram (hist:keys=..) follows when the guest has ended, as the kernel's hist file shows it. Its keys, three at most,
    /// are fields, common_pid, comm, cpu and __probe_ip, as they are or with .log2, .buckets=N, .hex, .sym, .sym-offset,
    /// .syscall or .execname. Where a detour serves the probe (--optimize), keys other than strings in memory are counted in
    /// the guest, and hits are not even noted down.
    #[arg(long = "probe", short = 'p', value_name = "DEF", conflicts_with = "target")]
    pub(crate) probes: Vec<String>,
    /// Read definitions from this file, one a line; may be repeated
    ///
    /// A `#` begins a comment, and a line that ends in a `\` goes on in the next. `-:NAME` takes an earlier definition
    /// back. Whatever a line can say can also be said to --probe.
    #[arg(long = "probes", value_name = "FILE", conflicts_with = "target")]
    pub(crate) files: Vec<PathBuf>,
    /// Only hits that meet this condition count, where a probe has none of its own
    ///
    /// Comparisons of a probe's own fields, and of common_pid, comm, cpu and __probe_ip, joined by &&, || and !, as in a
    /// definition: 'comm == "cat" && count > 4096', 'filename ~ "/etc/*"'. The fields of a plain function are its
    /// parameters; where the functions of a pattern have none of that name, that is an error.
    #[arg(long, value_name = "FILTER", conflicts_with = "target")]
    pub(crate) filter: Option<String>,
    /// Watch memory of the kernel: SYMBOL[+OFFSET]:LENGTH:w|rw|x; may be repeated
    ///
    /// Instead of the symbol, an address as the kernel was linked (0xffffffff81000280) will do. Per-CPU variables and
    /// the memory of modules cannot be watched.
    /// The length is 1, 2, 4 or 8 bytes, aligned to that; the access w (writes), rw (reads and writes) or x (execution,
    /// length 1, which leaves the text as it is). jiffies:8:w is an example. At most four places can be watched at a
    /// time, and three where breakpoints reach the guest first, as in the emulated host. They are watched from
    /// rest_init on. Accesses by a device, or by a probed instruction that is emulated, are not seen; and the
    /// guest's own debug registers have no effect while anything is watched.
    #[arg(long = "watch", short = 'w', value_name = "SPEC", conflicts_with = "target")]
    pub(crate) watches: Vec<WatchSpec>,
    /// Show who called at each hit, at most N frames [default: 64]
    ///
    /// One line a frame: function+offset/length, the function's module in brackets. A line <interrupt> comes before what
    /// an interrupt or exception has interrupted, and ? before what had to be guessed. With debugging information
    /// (--symbols), file and line follow, and functions that are inlined there have lines of their own before it, marked so.
    /// Where the kernel was entered from user mode, the process's frames follow, as far as its code keeps frame pointers. When
    /// not all is shown, the last line says why.
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "64",
        value_parser = clap::value_parser!(u16).range(1..=256),
    )]
    pub(crate) stack: Option<u16>,
    /// Only the first hit of each probe counts; then the guest's text is restored
    ///
    /// That costs nothing afterwards, so that every function of a kernel can be probed. Return probes and watches take no part.
    #[arg(long)]
    pub(crate) once: bool,
    /// Only count the calls of these functions, as `vmm count` does
    #[arg(long = "count", value_name = "PATTERN", hide = true, conflicts_with_all = ["target", "once"])]
    pub(crate) counts: Vec<Followed>,
    /// Show calls of these functions and their returns as a graph, as `vmm graph` does
    #[arg(long = "graph", value_name = "PATTERN", hide = true, conflicts_with_all = ["target", "once", "stack"])]
    pub(crate) graphs: Vec<Followed>,
}

/// How probes are armed, or that nothing is
#[derive(Args, Default)]
#[command(next_help_heading = heading::ADVANCED)]
pub(crate) struct Arming {
    /// Say what would be armed, and how, and boot nothing
    ///
    /// A table on standard output has for each probe its kind (p at an instruction, r at returns, w a watch), its name,
    /// its address as the kernel was linked, and how the guest would get past the probed instruction: `emulate` by the
    /// host, `copy` by running a copy of it, `put back` with --once, `debug register`. Behind that comes `detour`, where
    /// one would serve the probe instead, and how many instructions would make room for it where ftrace keeps no 5 bytes, or
    /// why none would. Below are the values that are read with their types, the filter and the histogram. Probes in modules
    /// are pending until those are loaded. Then come all functions that match a pattern and cannot be probed, by reason. The
    /// live text decides again when a probe is armed.
    ///
    /// As JSON (--format json) there is one object a line. {"type":"probe"} has kind, probe, event, address, how,
    /// detour (as in the table), module, fields (each with name, type and fetch) and conditions (filter and histogram);
    /// {"type":"refused"} has pattern, function and reason; {"type":"assisted"} has what: --cat or --exec. All probes are silent.
    #[arg(
        long,
        short = 'n',
        conflicts_with_all = ["target", "output"],
        help_heading = heading::OUTPUT,
    )]
    pub(crate) dry_run: bool,
    /// Serve probes by detours, which cost the guest no exit
    ///
    /// A detour is a jump in place of the five bytes that ftrace keeps at the entries of most functions of the kernel, or
    /// of a few instructions elsewhere. The code behind it counts, filters and records in the guest, runs these instructions, and
    /// jumps back: a hit costs the guest some tens of instructions. Records are read while the guest runs. When they are not
    /// read fast enough, the guest is stopped until they have been; a record that finds no room before anyone looks is counted as
    /// missed. Probes that no detour can serve stand on traps; the table at the end says which do, and why.
    #[arg(long, value_enum, default_value_t = Optimize::Auto, hide_short_help = true)]
    pub(crate) optimize: Optimize,
    /// Move return probes to traps when detours can follow no more of their calls
    ///
    /// Detours follow 32,767 calls at a time, of all return probes together, in equal shares for the CPUs on which the calls
    /// begin. Where that is not enough, because many tasks sleep in probed functions, calls are not followed and are counted as
    /// missed. With this option, a probe that misses a call so goes on by a trap a few milliseconds later, with all others at
    /// its place, and stays there: it then follows as many calls as --maxactive says. The calls that it has missed
    /// stay counted, and calls that were followed still return. The table at the end says which probes were moved. Calls
    /// beyond --maxactive move none.
    #[arg(long, hide_short_help = true)]
    pub(crate) fall_back: bool,
    /// How many calls of a function a return probe follows at a time [default: 10, or twice the CPUs if more]
    ///
    /// Further calls are not followed; they are counted as missed.
    #[arg(long, value_name = "N", hide_short_help = true, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) maxactive: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Optimize {
    /// No probe: all stand on traps
    Off,
    #[default]
    /// Every probe that can be
    Auto,
    /// All probes: those that cannot be are refused
    Require,
}

impl Optimize {
    /// How it is said to the library.
    pub(crate) fn to_session(self) -> vmm::guest::Optimize {
        match self {
            Self::Off => vmm::guest::Optimize::Off,
            Self::Auto => vmm::guest::Optimize::Auto,
            Self::Require => vmm::guest::Optimize::Require,
        }
    }
}
