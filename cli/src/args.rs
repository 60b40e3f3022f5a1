//! What can be said on the command line.

use crate::kernel_choice::Choice;
use clap::{Args, Parser, Subcommand, ValueEnum};
use guest_kernels::Kernel;
use probe_engine::probe::spec::ProbeSpec;
use probe_engine::probe::watch::WatchSpec;
use std::ffi::OsString;
use std::path::PathBuf;

/// Kprobes from outside the guest.
///
/// Boots an unmodified Linux kernel in a small virtual machine, plants breakpoints in its text from the host, and
/// reports every hit with the guest's registers. The guest needs no agent, no configuration and no privileges.
#[derive(Parser)]
#[command(name = "vmm", version, propagate_version = true, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Coverage(Coverage),
    Symbols(Symbols),
    Types(Types),
    Doctor(Doctor),
    Host(Host),
    Kernel(KernelTask),
    /// Answer a guest's requests for files, which come in over standard input
    #[command(hide = true)]
    ServeFiles {
        /// The folders.
        folders: String,
    },
}

/// Boot a kernel with probes in it
///
/// The guest's console goes to standard output, hits go to standard error or to a file, and a table of all probes
/// follows when the guest has ended. When standard input is a terminal, it is the guest's: Ctrl-A x ends the run.
///
/// Exit codes: 0 the guest powered itself off or reset, or Ctrl-A x; 2 the run could not be started, and why was said;
/// 122 a probe was overwritten, or was never armed, and which and why was said; 123 the guest died (panic, triple fault)
/// or halted without switching itself off; 124 it took longer than --timeout; 125 the emulated host died, which says
/// nothing about the guest, or the guest did not come to run the command; 128 + n ended by signal n. With a command, that
/// command's own comes instead of 0, as a shell gives it: 127 where there is no such program, 126 where it cannot be
/// run. Single functions of a pattern that cannot be armed are no error,
/// as long as others are.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm run --probe do_sys_openat2
  vmm run --kernel bzImage --initrd initrd.img --cpus 2 --probe 'vfs_*' --output hits.txt
  vmm run --probe do_sys_openat2 --rwdir out -- ./my_test --fast
  vmm run --kernel debian:6.1 --probe do_sys_openat2 -- cat /etc/passwd
  vmm run --kernel ~/linux --probe do_sys_openat2 -- cat /etc/passwd
  vmm run --dry-run --probe 'vfs_*' --probe 'p do_sys_openat2 how->flags if dfd == -100'
  vmm run --watch panic_on_oops:4:w --watch jiffies:8:rw
  vmm run --probe do_sys_openat2 --filter 'filename ~ \"/etc/*\"'
  vmm run --graph 'vfs_*' --graph do_sys_openat2 --output calls.txt
  vmm run --probe do_sys_openat2+0x5 --probe 0xffffffff81000280 --format json --output hits.json

Definitions:
  p:reads vfs_read count pos=+0($arg4):s64 file->f_inode->i_ino
  r vfs_read ret=$retval if ret < 0 && comm != \"cat\"
  p do_sys_openat2 if filename ~ \"/etc/*\"
  p do_sys_openat2:1420 fd name=tmp->name:string op.open_flag:x32
  p vfs_read tgid=$current->tgid name=(dentry)(file->f_path.dentry)->d_name.name:string
  p vfs_read hist:keys=common_pid.execname,count.log2:values=count:sort=hitcount.descending")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) guest: Guest,
    /// Where to probe; may be repeated
    ///
    /// A function (do_sys_openat2), a place in one (do_sys_openat2+0x10), an address as the kernel was linked
    /// (0xffffffff81000280), a pattern that names functions (vfs_*), or a function of a module
    /// (dummy:dummy_xmit), which need not be loaded yet. With debugging information (--symbols), a line of the source: of a
    /// file (fs/open.c:1420, or open.c:1420 where that is one file), or of a function and what is inlined into it
    /// (do_sys_openat2:1420), counted from the start of the file as stacks and `vmm symbols --lines` have it. All copies of
    /// a line are probed that are inlined elsewhere, and are called so. Of several functions that share a name, init_once#2 is the
    /// second by address, as `vmm symbols` lists them. With %return behind a function or a pattern
    /// (vfs_read%return), its returns are probed. A function is shown as a call, by its own parameters.
    ///
    /// Or a definition in the language of the kernel's kprobe_events, of which there are examples below: p, r for
    /// returns or f for a function's entry, with a name; the place; what is fetched (%REG, $argN, $retval, $comm, $current,
    /// $cgroup, @SYM, +OFFS(FETCH), a parameter or variable, and its members, with a type); which hits count; and by what they are counted
    /// instead of being shown.
    ///
    /// $current is the task that runs, and $current->pid a member of it. (STRUCT)VALUE->MEMBER takes a value as the address of
    /// a structure, and (STRUCT,FIELD)VALUE->MEMBER as that of a field of one; a value that is no single name is put in
    /// parentheses. this_cpu_ptr(@SYM) is where the CPU has its own one of a per-CPU variable, and this_cpu_read(@SYM) what
    /// lies there. Kernels have these since 7.3; here they work with every kernel.
    ///
    /// Inside a function, at a line or an offset, debugging information (--symbols) gives names to variables and parameters, and to
    /// those of functions that are inlined there; VAR.MEMBER is a member of a structure. One is read that is in a register, on the
    /// stack, or a constant at that instruction; what else there is is refused by its name. `vmm symbols --lines` lists them.
    ///
    /// The fields of a definition that fetches nothing are the function's parameters, or `return`. A histogram follows
    /// the hits when the guest has ended, as the kernel's hist file shows it. Its keys, three at most, are fields,
    /// common_pid, comm, cpu and __probe_ip, as they are or with .log2, .buckets=N, .hex, .sym, .sym-offset, .syscall
    /// or .execname. Where a detour serves the probe (--optimize), keys but for strings in memory are counted in the
    /// guest, and hits are not even noted down.
    #[arg(long = "probe", short = 'p', value_name = "SPEC", conflicts_with = "target")]
    pub(crate) probes: Vec<String>,
    /// Only count the calls of these functions; may be repeated
    ///
    /// A function, or a pattern: '*' is every function that the kernel's ftrace could trace, some 40,000. How often each
    /// was called follows when the guest has ended, the most frequent first. With detours, which is the default, a call
    /// costs the guest eleven instructions more.
    #[arg(long = "count", value_name = "PATTERN", conflicts_with_all = ["target", "once"])]
    pub(crate) counts: Vec<ProbeSpec>,
    /// Show calls of these functions and their returns as a graph; may be repeated
    ///
    /// Functions or patterns, as vfs_*, which the kernel's ftrace could trace. Each call is a line, indented by the calls of
    /// other such functions that it is made in, with how long it took; where it makes such calls itself, a line for its
    /// beginning and one for its end. Calls that are not followed or cannot be written are counted as missed; a line
    /// for the end is then not there. As JSON, they are hits and returns like any other. At most 4096 functions can be
    /// followed.
    #[arg(long = "graph", value_name = "PATTERN", conflicts_with_all = ["target", "once", "stack"])]
    pub(crate) graphs: Vec<ProbeSpec>,
    /// Read definitions from this file, one a line; may be repeated
    ///
    /// A `#` begins a comment, and a line that ends in a `\` goes on in the next. `-:NAME` takes an earlier definition
    /// back. What can be said in a line can also be said to --probe.
    #[arg(long = "probes", value_name = "FILE", conflicts_with = "target")]
    pub(crate) files: Vec<PathBuf>,
    /// Only hits that meet this condition count, at probes whose definitions have none
    ///
    /// Comparisons of a probe's own fields, and of common_pid, comm, cpu and __probe_ip, joined by &&, || and !, as in a
    /// definition: 'comm == "cat" && count > 4096', 'filename ~ "/etc/*"'. The fields of a plain function are its
    /// parameters; where the functions of a pattern have none of that name, that is an error.
    #[arg(long, value_name = "FILTER", conflicts_with = "target")]
    pub(crate) filter: Option<String>,
    /// Memory of the kernel to watch, as SYMBOL[+OFFSET]:LENGTH:ACCESS; may be repeated
    ///
    /// Instead of the symbol, an address as the kernel was linked (0xffffffff81000280) will do. Per-CPU variables and
    /// the memory of modules cannot be watched.
    /// The length is 1, 2, 4 or 8 bytes, aligned to that; the access w (writes), rw (reads and writes) or x (execution,
    /// length 1, which leaves the text as it is). jiffies:8:w is an example. At most four places can be watched at a
    /// time, and three where breakpoints reach the guest first, as in the emulated host. They are watched from
    /// rest_init on. What is accessed by a device, or by a probed instruction that is emulated, is not seen; and the
    /// guest's own debug registers have no effect while anything is watched.
    #[arg(long = "watch", short = 'w', value_name = "SPEC", conflicts_with = "target")]
    pub(crate) watches: Vec<WatchSpec>,
    /// Only the first hit of each probe counts; then the guest's text is restored there
    ///
    /// That costs nothing afterwards, so that every function of a kernel can be probed. Return probes and watches take no part.
    #[arg(long)]
    pub(crate) once: bool,
    /// A module whose functions are probed need not be loaded
    ///
    /// Without this, a probe in a module that was never loaded ends the run with exit code 122, as any probe that was
    /// never armed.
    #[arg(long)]
    pub(crate) allow_pending: bool,
    /// Show the members of every structure that an argument points to, not only of small ones
    #[arg(long)]
    pub(crate) deep: bool,
    /// How many calls of a function a return probe follows at a time [default: 10, or twice the CPUs if more]
    ///
    /// Calls beyond that are not followed; they are counted as missed.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) maxactive: Option<u32>,
    /// Show who called at every hit, with at most N frames of the kernel [default: 64]
    ///
    /// One line a frame: function+offset/length, the function's module in brackets. A line <interrupt> comes before what
    /// an interrupt or exception has interrupted, and ? before what had to be guessed. With debugging information
    /// (--symbols), file and line follow, and functions that are inlined there have lines of their own before it, marked so. Where the kernel was entered from
    /// user mode, the process's frames follow, as far as its code keeps frame pointers. When not all is shown, the last
    /// line says why.
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "64",
        value_parser = clap::value_parser!(u16).range(1..=256),
    )]
    pub(crate) stack: Option<u16>,
    /// Serve probes by detours, which cost the guest no exit
    ///
    /// A detour is a jump in place of the five bytes that ftrace keeps at the entries of most functions of the kernel, or
    /// of a few instructions elsewhere, which run behind what it leads to. That counts, filters and records in the guest, and
    /// is read while the guest runs: a hit costs it some tens of instructions. When hits are not read fast enough, the
    /// guest is stopped until they have been; what finds no room before anyone looks is counted as missed. Probes that
    /// cannot be served so stand on traps; the table at the end says which do, and why.
    #[arg(long, value_enum, default_value_t = Optimize::Auto)]
    pub(crate) optimize: Optimize,
    /// Move return probes to traps when detours can follow no more of their calls
    ///
    /// Detours follow 32,767 calls at a time, of all return probes together, in equal shares for the CPUs on which they
    /// begin. Where that is not enough, as many tasks sleep in probed functions, calls are not followed and are counted as
    /// missed. With this, a probe that misses one so goes on by a trap a few milliseconds later, with all others at its
    /// place, and stays there: it then follows as many calls of its own as --maxactive says, and misses more than before
    /// where that is too few. What it has missed by then stays counted, and calls that were followed still return. The
    /// table at the end says which probes that were. Calls beyond --maxactive move none.
    #[arg(long)]
    pub(crate) fall_back: bool,
    /// Write the hits to this file instead of standard error
    #[arg(long, short = 'o', value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// How hits are written
    ///
    /// As JSON there is one object a line. {"type":"hit"} has time_ns (nanoseconds since the guest was started),
    /// guest_ns (by the clock of the guest's own messages; null where that cannot be told), vcpu, probe, event (the name that a
    /// definition gives), task (comm, pid, tgid, ns_pid, uid and context, as far as they are known), rip and args (rdi, rsi, rdx, rcx, r8, r9; addresses and registers as hexadecimal strings);
    /// {"type":"return"} has value (rax) and duration_ns instead of args; {"type":"access"} has old and new, and its rip
    /// is behind the instruction that accessed the memory. With --stack, each has stack (objects with address, name,
    /// interrupted or guessed where they are, and with debugging information file, line and inlined, the functions that are
    /// inlined there from the innermost on, each with name, file and line), stack_end (bottom, user, or why it goes on), and where the kernel was
    /// entered from user mode user_stack (addresses) and user_stack_end.
    /// What a probe fetches is in fields. A histogram is one
    /// {"type":"entry"} a key, with histogram (its name), keys, hitcount and values, and one {"type":"histogram"} with
    /// definition, hits, entries and dropped. At the end comes one {"type":"probe"} a probe, with probe,
    /// kind (k, r, or w for a watch), module, address, hits, outside (passes that were not in the scope), missed, reasons (of what was missed), outstanding (calls that
    /// had not returned), state, and trapped (why it was not served by a detour), and one {"type":"end"} with end, waits
    /// (how often a CPU, or the whole guest, waited for a slow reader), exits (how often the guest's CPUs were left, by
    /// KVM's own count), and armed_us and disarmed_us (how long the guest stood still for that, in microseconds).
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Say what would be armed, how, and what is read there, and boot nothing
    ///
    /// A table on standard output has for each probe its kind (p at an instruction, r at returns, w a watch), its name,
    /// its address as the kernel was linked, and how the guest would get past the probed instruction: `emulate` by the
    /// host, `copy` by running a copy of it, `put back` with --once, `debug register`. Behind that comes `detour`, where
    /// one would serve the probe instead, and how many instructions would make room for it where ftrace keeps no 5 bytes, or
    /// why none would. Below are the values that are read with their types, the filter and the histogram. Probes in modules are pending until those are loaded. Then
    /// come all functions that match a pattern and cannot be probed, by reason. The live text decides again when a probe
    /// is armed.
    ///
    /// As JSON (--format json) there is one object a line. {"type":"probe"} has kind, probe, event, address, how,
    /// detour (as in the table), module, fields (each with name, type and fetch) and conditions (filter and histogram);
    /// {"type":"refused"} has pattern, function and reason.
    #[arg(long, conflicts_with_all = ["target", "output", "write_target"])]
    pub(crate) dry_run: bool,
    /// Write what was resolved to this folder: `target` for --target, and `kernel` for --kernel. Run nothing
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "target")]
    pub(crate) write_target: Option<PathBuf>,
}

/// Show which functions of a kernel run
///
/// Boots a kernel with a one-shot probe on every function that its ftrace could trace, from early boot on: the first
/// call of each is seen, and costs nothing afterwards. A table by prefix of the functions' names (`vfs` is vfs_read,
/// __vfs_getxattr and so on) follows when the guest has ended: how many ran, and how many were probed.
///
/// Not seen are functions that run only before `arch_cpu_finalize_init`, functions of modules, and what the kernel
/// keeps from its own tracer. Exit codes are those of `vmm run`.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm coverage --cmdline workload=open:10
  vmm coverage --kernel bzImage --initrd initrd.img --cpus 2 --output ran.txt
  vmm coverage 'ext4_*' 'jbd2_*' --output ran.json --format json")]
pub(crate) struct Coverage {
    /// Only functions whose names match one of these, as vfs_* [default: all]
    #[arg(value_name = "PATTERN", conflicts_with = "target")]
    pub(crate) patterns: Vec<ProbeSpec>,
    #[command(flatten)]
    pub(crate) guest: Guest,
    /// Write the functions that ran to this file, in order of their first calls
    #[arg(long, short = 'o', value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// How they are written
    ///
    /// As JSON there is one object a line. {"type":"function"} has time_ns (nanoseconds since the guest was started),
    /// guest_ns (by the clock of the guest's own messages; null where that cannot be told), vcpu, function and address (a hexadecimal string). At the end comes one {"type":"prefix"} a prefix, with prefix,
    /// ran and armed, and one {"type":"end"} with end, ran, armed and waits (as of `vmm run`).
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
}

/// The guest, and where it runs
#[derive(Args)]
pub(crate) struct Guest {
    #[command(flatten)]
    pub(crate) kernel: KernelArg,
    /// The initramfs, for a guest without a command [default: the one that `cargo xtask setup` builds, of a checkout]
    #[arg(long, value_name = "FILE")]
    pub(crate) initrd: Option<PathBuf>,
    /// Added to the kernel command line, which is `console=ttyS0 quiet panic=-1` otherwise
    ///
    /// The initramfs that `cargo xtask setup` builds does what `workload=STEP,STEP..` names, and ends the guest: open:N files
    /// are read, getppid:N calls made, fork:N children waited for, pipe:N bytes sent to a child and back; walk:N,
    /// signal:N, mix:N (seconds of all of these), idle:N (seconds); sh:PATH runs a script, shell is one to type in.
    /// A step that fails ends the run with 123.
    #[arg(long, value_name = "WORDS")]
    pub(crate) cmdline: Option<String>,
    /// The whole kernel command line
    #[arg(long, value_name = "WORDS", conflicts_with = "cmdline")]
    pub(crate) raw_cmdline: Option<String>,
    /// Number of CPUs of the guest
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) cpus: u8,
    /// Memory of the guest, as 512M or 2G (128M to 64G)
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_memory)]
    pub(crate) memory: Memory,
    /// End the guest when it has run so long, and say where its CPUs stood; 0 is never [default: 600, and 3600 where the
    /// processor is emulated; never when standard input is a terminal]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u64>,
    /// What runs before the kernel
    #[arg(long, value_enum, default_value_t = Boot::Direct)]
    pub(crate) boot: Boot,
    #[command(flatten)]
    pub(crate) symbols: SymbolSource,
    #[command(flatten)]
    pub(crate) place: Place,
    /// Run this command in the guest, on this machine's files, and end with its exit code
    ///
    /// Its root is this machine's, or --root: what it changes there is thrown away in the end. It has our working directory,
    /// standard streams and terminal, and of our environment PATH, HOME, TERM, the language and the like: `-- env NAME=VALUE CMD`
    /// gives it more.
    #[arg(last = true, value_name = "CMD", conflicts_with = "raw_cmdline")]
    pub(crate) command: Vec<OsString>,
    /// With a command: the folder that is the guest's root [default: /]
    #[arg(long, value_name = "DIR")]
    pub(crate) root: Option<PathBuf>,
    /// With a command: a folder in which it may change files, which stay changed; may be repeated
    #[arg(long = "rwdir", value_name = "DIR")]
    pub(crate) rwdirs: Vec<PathBuf>,
    /// With a command: where the kernel's modules are, as below /lib/modules [default: those that --kernel finds]
    ///
    /// Of them the guest gets those that it needs to reach its files, where the kernel does not have them built in:
    /// virtio_pci, virtio_console, virtiofs and overlay, with what these need.
    #[arg(long, value_name = "DIR")]
    pub(crate) modules: Option<PathBuf>,
    /// Which hits are shown, counted and made histograms of [default: cmd with a command, boot without]
    ///
    /// The others are counted in a column of their own. A call belongs to where it was entered.
    #[arg(long, value_enum)]
    pub(crate) scope: Option<Scope>,
    /// Show the guest's console on standard error, also with a command
    #[arg(long, short = 'v')]
    pub(crate) verbose: bool,
    /// The command, as it was said elsewhere
    #[arg(long, value_name = "FILE", hide = true)]
    pub(crate) work: Option<PathBuf>,
    /// The files are outside of this host
    #[arg(long, hide = true)]
    pub(crate) files_port: bool,
    /// What was resolved elsewhere, where it takes less time than on an emulated processor
    #[arg(long, value_name = "FILE", hide = true, conflicts_with = "symbols")]
    pub(crate) target: Option<PathBuf>,
    /// The terminal outside is one that the console and hits share
    #[arg(long, hide = true)]
    pub(crate) marked: bool,
}

impl Guest {
    /// Whether it is there for a command.
    pub(crate) fn has_command(&self) -> bool {
        !self.command.is_empty() || self.work.is_some()
    }
}

/// What --kernel takes.
const KERNEL: &str = "FILE|DIR|debian:V|host";

/// Which kernel
#[derive(Args)]
pub(crate) struct KernelArg {
    /// The kernel: a file, the folder of a build, one of Debian's, or this machine's own
    ///
    /// FILE is a bzImage or an ELF vmlinux. DIR is where a kernel was built: the image is arch/x86/boot/bzImage or vmlinux in
    /// it, and modules are those of its modules.order, of lib/modules/VERSION in it, or its files *.ko. debian:V is a
    /// kernel as Debian ships it, by the name that `vmm kernel fetch` takes; when it is not in the cache, it is fetched.
    /// host is /boot/vmlinuz-VERSION of the kernel that runs here, with the modules of /lib/modules/VERSION. A file that is
    /// called host is ./host.
    #[arg(
        id = "kernel",
        long,
        short = 'k',
        value_name = KERNEL,
        value_parser = Choice::parser(),
        default_value = "debian:6.12",
    )]
    pub(crate) which: Choice,
}

/// Where more is said of the kernel
#[derive(Args)]
pub(crate) struct SymbolSource {
    /// Take the kernel's symbols from this file: its ELF vmlinux, with debugging information or without, or its System.map
    ///
    /// By debugging information (DWARF, CONFIG_DEBUG_INFO) stacks and panics are shown with file and line, lines can be
    /// probed, variables have names there, and a kernel without BTF has types. A vmlinux must be of the same build as the kernel, by its build-id. Of a build that --kernel DIR names, the vmlinux in it is
    /// used without being named, and is looked at when something needs it.
    #[arg(long, alias = "system-map", value_name = "FILE")]
    pub(crate) symbols: Option<PathBuf>,
}

/// Where the guest runs
#[derive(Args)]
pub(crate) struct Place {
    /// Where to run the guest
    #[arg(long, value_enum, default_value_t = HostKind::Auto)]
    pub(crate) host: HostKind,
    /// The KVM device
    #[arg(long, value_name = "FILE", default_value = "/dev/kvm")]
    pub(crate) kvm_device: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Boot {
    /// Nothing: the kernel is unpacked on this side, put where its decompressor would put it, at random unless `nokaslr` is
    /// on its command line, and entered
    Direct,
    /// The decompressor that the bzImage brings, in the guest
    Bzimage,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Optimize {
    /// No probe: all stand on traps
    Off,
    /// Every probe that can be
    Auto,
    /// All probes: those that cannot be are refused
    Require,
}

impl Optimize {
    /// How it is said to the library.
    pub(crate) fn to_session(self) -> vmm::session::Optimize {
        match self {
            Self::Off => vmm::session::Optimize::Off,
            Self::Auto => vmm::session::Optimize::Auto,
            Self::Require => vmm::session::Optimize::Require,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scope {
    /// All
    Boot,
    /// All from when the kernel starts process 1
    Init,
    /// Those of the command and of all processes that it starts, without interrupts that came in between
    Cmd,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HostKind {
    /// This machine's KVM when it can, the emulated host otherwise
    Auto,
    /// This machine's KVM
    Kvm,
    /// A Linux with KVM inside QEMU, which emulates the processor: slow, but it runs anywhere
    Emulated,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Lines for people
    Text,
    /// One JSON object a line
    Json,
}

/// List the functions of a kernel that can be probed
///
/// One a line: address as linked, size in bytes, name. A size reaches to the next symbol. Of several functions that
/// share a name, NAME#2 is the second by address, and can be probed by that; which file each is from is not known, as
/// kallsyms has none. Several names of one function are all listed, and each can be probed: all but the first are marked
/// as its aliases. Decided from the file; a few more may turn out not to be probeable once the kernel has patched
/// itself, which `vmm run` then reports.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm symbols 'vfs_*'
  vmm symbols --proto 'vfs_*'
  vmm symbols init_once
  vmm symbols --symbols vmlinux --lines do_sys_openat2 --source ~/linux
  vmm symbols --all --kernel bzImage > symbols.txt")]
pub(crate) struct Symbols {
    /// Only functions whose names match, as vfs_*
    #[arg(value_name = "PATTERN")]
    pub(crate) pattern: Option<String>,
    #[command(flatten)]
    pub(crate) kernel: KernelArg,
    /// Also list what cannot be probed, with the reason
    #[arg(long)]
    pub(crate) all: bool,
    /// Say what each function takes and returns, as C
    ///
    /// That comes from the kernel's type information (BTF). Nothing is said of a function that it does not have. Of what
    /// the compiler split off or changed (NAME.isra.0, NAME.constprop.0, NAME.part.0) only that is said: its
    /// parameters are not those that the source has. Where functions of one name differ, the first is shown.
    #[arg(long)]
    pub(crate) proto: bool,
    /// Show the source of this function beside what can be probed, by debugging information (--symbols)
    ///
    /// Each line that has code has the address at which `--probe FUNCTION:LINE` stands, one for each copy that is inlined
    /// into the function, and why it cannot be probed where it cannot. Lines are counted from the start of the file. As JSON,
    /// the names of the variables follow that a definition can read there.
    #[arg(long, value_name = "FUNCTION", conflicts_with_all = ["pattern", "all", "proto", "timing"])]
    pub(crate) lines: Option<String>,
    /// With --lines: the folder of the kernel's source [default: where it was compiled, or the folder that --kernel names]
    #[arg(long, value_name = "DIR", requires = "lines")]
    pub(crate) source: Option<PathBuf>,
    /// How functions are written
    ///
    /// With --lines, an object has file, line, text (null where the source is not here), address, inlined (the function that the
    /// line is of, where it is inlined), refused and variables (the names of those that can be read there). Otherwise:
    /// As JSON there is one object a line, with address (a hexadecimal string), name, size, alias_of, prototype (with
    /// --proto) and refused (why it cannot be probed, with --all).
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(crate) format: Format,
    /// Say on standard error how long it took to understand the kernel, step by step
    #[arg(long)]
    pub(crate) timing: bool,
    #[command(flatten)]
    pub(crate) symbols: SymbolSource,
}

/// Show types of a kernel as C
///
/// Structures, unions, enumerations, typedefs, functions and per-CPU variables, from the kernel's own type information
/// (BTF). Offsets and sizes are in bytes, offsets of bit-fields in bytes and bits. Members of structures without a name
/// are shown where they are, with offsets from the start of the outermost structure. All types of one name are shown.
#[derive(Args)]
#[command(after_long_help = "\
Examples:
  vmm types task_struct
  vmm types struct open_how enum pid_type gfp_t do_sys_openat2
  vmm types 'tcp_*'
  vmm types --kernel bzImage 'struct bio*'")]
pub(crate) struct Types {
    /// A name, or a pattern that names are listed for, as vfs_*
    ///
    /// With struct, union, enum or typedef before it, only types of that sort.
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    #[command(flatten)]
    pub(crate) kernel: KernelArg,
    #[command(flatten)]
    pub(crate) symbols: SymbolSource,
}

/// Say whether guests can be probed on this machine, and how
///
/// Tests this machine's own KVM and the emulated host, or the one that --host names, and says last what that means and what
/// to do. A check that fails is marked NO where guests with probes need it, and no where a single feature does, or where the
/// kernel cannot confine this program (Landlock, seccomp). Exit codes: 0 guests run on one of the hosts that were tested; 1
/// they run on none. With --report, 1 also says that a guest was not as it was to be.
#[derive(Args)]
pub(crate) struct Doctor {
    /// Print the result as one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Run four guests as well, and write to this file what the machine is and how the guests differ from what was expected
    ///
    /// That is for a machine on which something is wrong, or that nobody has tried yet. In the file are the processor,
    /// its flags and its kernel's mitigations, the kernel's version, parameters of KVM's modules, the table that is
    /// printed, a storm of traps, traps with stacks, detours, and counts of hundreds of functions. Names of
    /// the machine and its users are not; what `vmm` said of a guest that differs may have names of files. The guests
    /// run where --host says, and take a minute or two in the emulated host.
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// The kernel of these guests, as `vmm run` takes it [default: debian:6.12]
    #[arg(long, short = 'k', value_name = KERNEL, value_parser = Choice::parser(), requires = "report")]
    pub(crate) kernel: Option<Choice>,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Look after the emulated host
#[derive(Args)]
pub(crate) struct Host {
    #[command(subcommand)]
    pub(crate) command: HostCommand,
}

#[derive(Subcommand)]
pub(crate) enum HostCommand {
    /// Boot it once and keep a snapshot of it, so that runs start at once
    Prepare,
    /// Run a static program inside it, as its superuser
    Exec {
        /// Set an environment variable for it; may be repeated
        #[arg(long, value_name = "NAME=VALUE", value_parser = parse_variable)]
        env: Vec<(String, String)>,
        /// Copy a file of this machine into it, and set an environment variable to its path there; may be repeated
        #[arg(long = "file", value_name = "NAME=PATH", value_parser = parse_variable)]
        files: Vec<(String, String)>,
        /// The program, a file of this machine
        #[arg(value_name = "FILE")]
        program: PathBuf,
        /// Its arguments
        #[arg(value_name = "ARGUMENT", trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
}

/// Fetch Debian's kernels, and say which there are
///
/// They are kept in $VMM_CACHE_DIR, or ~/.cache/vmm, unmodified, with the modules that guests need. `--kernel debian:V` finds
/// them there, and fetches what is missing. Any user may do that on a Debian machine: packages are taken out of the archive
/// by apt, and nothing is installed.
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
    /// Those of sid are a row, 7, and one more for each series that was fetched.
    List,
}

/// Fetch kernels, or bring them to the version that Debian offers
#[derive(Args)]
pub(crate) struct FetchKernels {
    /// Which: a series, as 6.12, or 7 for the newest of Debian's sid
    ///
    /// Without more it is the kernel for clouds, with -rt behind it the one with PREEMPT_RT, and with -amd64 the one with the
    /// drivers of real machines. A series that the machine's own release does not have is looked for in sid. Others than 6.1,
    /// 6.12, 6.12-rt, 7 and 7-rt are not among those that `vmm` is tested with.
    #[arg(value_name = "V", required = true)]
    pub(crate) kernels: Vec<Kernel>,
}

/// An amount of guest memory, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Memory(pub(crate) u64);

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}M", self.0 >> 20)
    }
}

fn parse_memory(text: &str) -> Result<Memory, String> {
    const LEAST: u64 = 128 << 20;
    const MOST: u64 = 64 << 30;
    let (digits, shift) = match text.strip_suffix(['M', 'm']) {
        Some(digits) => (digits, 20),
        None => (text.strip_suffix(['G', 'g']).ok_or("write it as 512M or 2G")?, 30),
    };
    let count: u64 = digits.parse().map_err(|_| "write it as 512M or 2G")?;
    let bytes = count.saturating_mul(1 << shift);
    match bytes {
        ..LEAST => Err("a guest needs at least 128M".to_owned()),
        LEAST..=MOST => Ok(Memory(bytes)),
        _ => Err("a guest gets at most 64G".to_owned()),
    }
}

/// The name and the value of an environment variable: the name ends at the first `=`.
fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_variable_has_a_name_and_a_value() {
        let pair = |name: &str, value: &str| Ok((name.to_owned(), value.to_owned()));
        assert_eq!(parse_variable("A=b=c"), pair("A", "b=c"));
        assert_eq!(parse_variable("A="), pair("A", ""));
        for wrong in ["", "A", "=b"] {
            assert!(parse_variable(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn memory_is_given_in_mib_or_gib() {
        assert_eq!(parse_memory("128M"), Ok(Memory(128 << 20)));
        assert_eq!(parse_memory("64G"), Ok(Memory(64 << 30)));
        for wrong in ["", "M", "512", "127M", "65G", "18446744073709551615G", "1.5G", "-1G"] {
            assert!(parse_memory(wrong).is_err(), "{wrong}");
        }
    }
}
