//! Kernels with their debugging information, which is fetched here: some hundreds of megabytes each.

use super::guests::Guests;
use super::say;
use crate::kernels::gdb_scripts;
use crate::setup;
use guest_kernels::{Cache, DEFAULT_KERNEL, Fetcher, Series};

/// The series that Debian's `crash` reads; newer ones have changed what it looks at.
const OF_CRASH: Series = Series::Is(6, 1);

/// Has debuggers read guests of the kernel.
pub(super) fn run(guests: Guests<'_>) -> anyhow::Result<()> {
    let cache = Cache::open()?;
    let notice = |line: &str| say(guests.start, line);
    let debug_info = Fetcher::new(&cache.lock()?, &notice).debug_info(guests.kernel)?;
    let mut variables = vec![("VMM_DEBUG_INFO", debug_info.as_os_str())];
    if guests.kernel.series == OF_CRASH {
        setup::install(&[("crash", "reading dumps, a second opinion")])?;
        variables.push(("VMM_CRASH", "crash".as_ref()));
    }
    let scripts = match *guests.kernel == DEFAULT_KERNEL {
        true => Some(gdb_scripts::bring(guests.start)?),
        false => None,
    };
    variables.extend(scripts.iter().map(|scripts| ("VMM_GDB_SCRIPTS", scripts.as_os_str())));
    guests.long_product_with("debug_info", &variables)
}
