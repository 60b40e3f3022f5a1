//! From the name of a tracepoint to the function at which its probe stands, and what it is called with.

use super::PlaceError;
use super::error::SYSTEM_CALL_EVENTS;
use super::target::Target;
use crate::capture::filter::{Filter, Order, Test};
use crate::capture::shape::Shape;
use crate::capture::typed::Signature;
use crate::capture::{Base, Capture, Fetch, Field};
use crate::linux::btf::Btf;
use crate::linux::glob::Glob;
use crate::linux::kernel::Kernel;
use crate::linux::tracepoints::{NO_SYSTEM, NoTracepoints, Tracepoint, Tracepoints};
use crate::probe::place::{Place, in_kernel};
use crate::probe::plan::SwitchedTracepoint;
use crate::probe::resolve::{Refused, ResolveError};

/// How many names are offered for one that is unknown.
const SUGGESTIONS: usize = 3;

/// What a name, or a pattern, came to.
#[derive(Default)]
pub(super) struct FoundTracepoints {
    pub(super) targets: Vec<Target>,
    /// Matches of a pattern that cannot be probed.
    pub(super) refused: Vec<Refused>,
    /// Whether a pattern was written.
    pub(super) is_pattern: bool,
}

/// Finds those of `all` tracepoints of `kernel` that are called `[system:]name`, both of which may be patterns. Where the kernel has no such
/// system, the tracepoint is that of a module of this name.
pub(super) fn find(
    system: Option<&str>,
    name: &str,
    all: &Tracepoints,
    kernel: &Kernel,
    btf: Option<&Btf<'_>>,
) -> Result<FoundTracepoints, PlaceError> {
    let written = system.map_or_else(|| name.to_owned(), |system| format!("{system}:{name}"));
    let is_pattern = [system.unwrap_or_default(), name].into_iter().any(Glob::is_pattern);
    let glob = |text| Glob::new(text).map_err(|_| PlaceError::NoTracepointMatches(written.clone()));
    let (system_glob, name_glob) = (system.map(glob).transpose()?, glob(name)?);
    let mut found = FoundTracepoints { is_pattern, ..FoundTracepoints::default() };
    // Without types it is not known which system is whose.
    let system_glob = system_glob.filter(|_| all.know_systems());
    for tracepoint in all.matching(system_glob.as_ref(), &name_glob) {
        match target(tracepoint, kernel, btf) {
            Ok(target) => found.targets.push(target),
            Err(reason) if is_pattern => found.refused.push(reason),
            Err(Refused { name, reason }) => return Err(ResolveError::Unprobeable { name, reason }.into()),
        }
    }
    let of_module = system.filter(|system| *system != NO_SYSTEM && !all.has_system(system));
    match (found.targets.first(), found.refused.first(), of_module) {
        (Some(_), ..) => Ok(found),
        (None, Some(first), _) => Err(ResolveError::AllRefused {
            pattern: written,
            count: found.refused.len(),
            name: first.name.clone(),
            reason: first.reason.clone(),
        }
        .into()),
        (None, None, _) if is_pattern => Err(PlaceError::NoTracepointMatches(written)),
        (None, None, Some(SYSTEM_CALL_EVENTS)) => Err(system_call_event(name)),
        (None, None, Some(_)) if all.calls.module_notify.is_none() => {
            Err(NoTracepoints::ModulesUnseen.into())
        }
        (None, None, Some(module)) => {
            found.targets.push(in_module(module, name, all));
            Ok(found)
        }
        (None, None, None) => {
            Err(PlaceError::UnknownTracepoint { nearest: all.nearest(name, SUGGESTIONS), written })
        }
    }
}

/// What to write for an event that the kernel makes of system calls.
fn system_call_event(name: &str) -> PlaceError {
    let (raw, call) = match name.strip_prefix("sys_exit_") {
        Some(call) => ("sys_exit", format!("r syscall:{call}")),
        None => ("sys_enter", format!("p syscall:{}", name.strip_prefix("sys_enter_").unwrap_or(name))),
    };
    PlaceError::SystemCallEvent(name.to_owned(), raw, call)
}

fn target(tracepoint: &Tracepoint, kernel: &Kernel, btf: Option<&Btf<'_>>) -> Result<Target, Refused> {
    let refused = |reason| Refused { name: tracepoint.written(), reason };
    let at = kernel
        .symbol(&tracepoint.function)
        .ok_or_else(|| refused(crate::probe::place::Unprobeable::NoFunction))?;
    let info = in_kernel(at, kernel).map_err(refused)?;
    let signature = btf.and_then(|btf| Signature::of(btf, &tracepoint.function).ok()).map(|signature| {
        // The first one is `data`.
        Signature { parameters: signature.parameters.into_iter().skip(1).collect(), ..signature }
    });
    Ok(Target {
        place: Place::Kernel { name: tracepoint.written(), info },
        function: signature.map(|signature| (tracepoint.function.clone(), Some(signature))),
        tracepoint: Some(SwitchedTracepoint {
            written: tracepoint.written(),
            name: tracepoint.name.clone(),
            at: Some(tracepoint.at),
        }),
        program: None,
        event: tracepoint.class.clone(),
    })
}

/// One of a module, of which nothing is known until the guest has loaded that.
fn in_module(module: &str, name: &str, all: &Tracepoints) -> Target {
    let symbol = format!("{}{name}", all.calls.callee.prefix());
    Target {
        place: Place::Module { module: module.replace('-', "_"), symbol, offset: 0 },
        function: None,
        tracepoint: Some(SwitchedTracepoint {
            written: format!("{module}:{name}"),
            name: name.to_owned(),
            at: None,
        }),
        program: None,
        event: None,
    }
}

/// Has `capture` count those calls alone whose first argument is `tag`: the others are for users in the guest.
pub(super) fn count_own(capture: &mut Capture, tag: u64) {
    let fetch = Fetch::word(Base::Argument(0), 8);
    let data = Field { name: String::new(), fetch, shape: Shape::Unsigned };
    capture.count_only(data, |data| Filter::Test(data, Test::Number(Order::Equal, tag.into())));
}
