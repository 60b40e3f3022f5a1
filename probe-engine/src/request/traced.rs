//! Functions that ftrace could trace: their entries are final early in boot, and a detour may stand there.

use super::ProbeRequest;
use crate::linux::ftrace::FtraceSites;
use crate::linux::kernel::Kernel;
use crate::probe::place::Place;
use crate::probe::plan::Trigger;
use crate::probe::resolve::{ResolveError, resolve};
use crate::probe::spec::{Location, ProbeSpec};
use std::collections::HashSet;

/// What patterns of traced functions came to.
#[derive(Debug, Default)]
pub struct Traced {
    /// A probe on each function, once.
    pub probes: Vec<ProbeRequest>,
    /// Patterns of which functions are left out that ftrace leaves out: how many, of how many that match.
    pub left_out: Vec<(String, usize, usize)>,
}

/// A pattern that means no traced function.
#[derive(Debug, thiserror::Error)]
pub enum TracedError {
    /// It can mean none.
    #[error("`{0}` is neither a function of the kernel nor a pattern: write vfs_read or vfs_*")]
    NoFunction(String),
    /// The kernel has no such function.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// The kernel has no ftrace.
    #[error(
        "`{pattern}` is for functions that ftrace could trace, and this kernel has no ftrace (CONFIG_FUNCTION_TRACER)"
    )]
    NoFtrace {
        /// The pattern.
        pattern: String,
        /// How many functions match, on which traps can stand.
        matches: usize,
    },
    /// Ftrace leaves out all of them.
    #[error("none of the {matches} functions that match `{pattern}` can be traced by ftrace")]
    AllLeftOut {
        /// The pattern.
        pattern: String,
        /// How many functions match.
        matches: usize,
    },
}

/// The functions of `kernel` that match one of `patterns` and that ftrace could trace, each once.
///
/// # Errors
/// [`TracedError`] of the first pattern that means none.
pub fn traced_functions(patterns: &[ProbeSpec], kernel: &Kernel) -> Result<Traced, TracedError> {
    let (mut traced, mut seen) = (Traced::default(), HashSet::new());
    for spec in patterns {
        let pattern = spec.to_string();
        let is_function = matches!(spec.location(), Location::Glob(_) | Location::Symbol { offset: 0, .. });
        if spec.returns() || !is_function {
            return Err(TracedError::NoFunction(pattern));
        }
        let resolved = resolve(spec, kernel)?;
        let matches = resolved.places.len() + resolved.refused.len();
        let is_traceable =
            |place: &Place| matches!(place, Place::Kernel { info, .. } if info.ftrace.is_some());
        let mut places = resolved.places;
        places.retain(is_traceable);
        if places.is_empty() {
            return Err(match kernel.ftrace() {
                FtraceSites::None => TracedError::NoFtrace { pattern, matches },
                _ => TracedError::AllLeftOut { pattern, matches },
            });
        }
        if places.len() < matches {
            traced.left_out.push((pattern, matches - places.len(), matches));
        }
        places.retain(|place| matches!(place, Place::Kernel { info, .. } if seen.insert(info.at)));
        let probe = |place| ProbeRequest::plain(place, Trigger::Pass).found_by(spec);
        traced.probes.extend(places.into_iter().map(probe));
    }
    Ok(traced)
}
