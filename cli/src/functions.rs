//! Functions that ftrace could trace: their entries are final early in boot, and a detour may stand there.

use crate::asked::Asked;
use crate::say::note;
use anyhow::{Result, bail};
use probe_engine::linux::ftrace::FtraceSites;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::Trigger;
use probe_engine::probe::resolve::resolve;
use probe_engine::probe::spec::{Location, ProbeSpec};
use std::collections::HashSet;

/// The functions that match, each once.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn functions(patterns: &[ProbeSpec], kernel: &Kernel) -> Result<Vec<Asked>> {
    let (mut functions, mut seen) = (Vec::new(), HashSet::new());
    for pattern in patterns {
        if pattern.returns()
            || !matches!(pattern.location(), Location::Glob(_) | Location::Symbol { offset: 0, .. })
        {
            bail!("`{pattern}` is neither a function of the kernel nor a pattern: write vfs_read or vfs_*");
        }
        let resolved = resolve(pattern, kernel)?;
        let matches = resolved.places.len() + resolved.refused.len();
        let is_traceable =
            |place: &Place| matches!(place, Place::Kernel { info, .. } if info.ftrace.is_some());
        let mut places = resolved.places;
        places.retain(is_traceable);
        if places.is_empty() && *kernel.ftrace() == FtraceSites::None {
            bail!(
                "`{pattern}` is for functions that ftrace could trace, and this kernel has no ftrace (CONFIG_FUNCTION_TRACER): --probe takes {matches} that match, and traps stand there"
            );
        }
        if places.is_empty() {
            bail!("none of the {matches} functions that match `{pattern}` can be traced by ftrace");
        }
        if places.len() < matches {
            let left_out = matches - places.len();
            note(format_args!("{pattern}: {left_out} of {matches} functions are left out, as ftrace does"));
        }
        places.retain(|place| matches!(place, Place::Kernel { info, .. } if seen.insert(info.at)));
        functions
            .extend(places.into_iter().map(|place| Asked::plain(place, Trigger::Pass).found_by(pattern)));
    }
    Ok(functions)
}
