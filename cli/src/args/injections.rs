//! Calls of the guest's functions that are to fail.

use super::heading;
use clap::Args;
use std::path::PathBuf;

/// Calls of the guest's functions that are to fail
#[derive(Args, Default)]
#[command(next_help_heading = heading::PROBES)]
pub(crate) struct Injections {
    /// Have calls of a function fail: 'kmem_cache_alloc*=NULL every 100', 'syscall:openat=-EIO if filename ~ "/etc/*"'
    ///
    /// May be repeated. SYM=VALUE is a function, a pattern or a system call, and what its caller gets: an error (-ENOMEM), NULL, true, false
    /// or a number. The function is not executed then. Behind that may come, in any order: `if FILTER`, which calls count, as in a
    /// definition; `under SYM`, only those that the same task makes below a call of this function; `after M`, so many are spared first;
    /// `every N`, every Nth one fails; `times K`, no more than K fail; `seed S`, chance chooses one of N. The functions of a pattern count
    /// their calls together. Calls with __GFP_NOFAIL are spared.
    ///
    /// Only functions fail whose callers are prepared: those of the kernel's own list (CONFIG_FUNCTION_ERROR_INJECTION), system calls, and
    /// those of a list of ours, if their types are as expected. A hit is a call that failed. A run in which none did ends with exit code
    /// 122.
    #[arg(
        long = "inject",
        value_name = "DEF",
        conflicts_with_all = ["target", "once"],
        hide_short_help = true
    )]
    pub(crate) injects: Vec<String>,
    /// Have each call of a function fail that the command makes, one in each run: 'kmem_cache_alloc*=NULL under syscall:openat'
    ///
    /// The command is run in one guest again and again, with an empty standard input. In the first two runs no call fails: the
    /// first one makes what the kernel keeps for later ones, and in the second one calls are counted. Then the first call fails, in the next run
    /// the second one, and so on, until the command makes no more. What fails is said as for --inject, but for `every`,
    /// `after`, `times` and `seed`. A line for each run says which call failed, where it was made, and the command's exit code. Where the
    /// guest dies, or its kernel reports a bug, the line says after which call that was, and another guest goes on with the next one.
    ///
    /// The exit code is 123 then, and 122 if the command makes no such call. With --output, the recording is that of the first guest with
    /// a finding, or else of the last one.
    #[arg(
        long,
        value_name = "DEF",
        requires = "command",
        conflicts_with_all = ["target", "once", "injects", "repeat", "format", "bundle"],
        hide_short_help = true
    )]
    pub(crate) fail_nth: Option<String>,
    /// Which call fails first
    #[arg(long, value_name = "N", requires = "fail_nth", hide = true)]
    pub(crate) fail_from: Option<u64>,
    /// Where that is recorded
    #[arg(long, value_name = "FILE", requires = "fail_from", hide = true)]
    pub(crate) fail_record: Option<PathBuf>,
    /// Also have calls fail whose callers may not be prepared for that
    ///
    /// What the function cannot return is refused all the same, as far as the kernel's types tell.
    #[arg(long, conflicts_with = "target", hide_short_help = true)]
    pub(crate) force: bool,
}
