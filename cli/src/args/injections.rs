//! Calls of the guest's functions that are to fail.

use super::heading;
use clap::Args;

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
    /// Also have calls fail whose callers may not be prepared for that
    ///
    /// What the function cannot return is refused all the same, as far as the kernel's types tell.
    #[arg(long, requires = "injects", conflicts_with = "target", hide_short_help = true)]
    pub(crate) force: bool,
}
