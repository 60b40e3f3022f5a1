//! Finds where probes are and what they have to do, in the kernel's file: nothing here needs the guest, so whoever
//! registers a probe has it resolved on the own thread, while the guest goes on.

mod error;

pub use error::RegisterError;

use crate::guest::{Guest, Optimize};
use crate::probe::{Handlers, Probe, Where};
use probe_engine::capture::typed::Expand;
use probe_engine::linux::debug_info::DebugInfo;
use probe_engine::linux::kernel::Kernel;
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::{Action, ProbePlan, Trigger};
use probe_engine::probe::resolve::resolve;
use probe_engine::probe::spec::{Location, ProbeSpec};
use probe_engine::probe::watch;
use probe_engine::request::{Definitions, KernelConstraints, trigger_of};
use std::mem::discriminant;
use std::sync::Arc;

/// What probes are resolved with.
#[derive(Default)]
pub(super) struct Resolver {
    /// The kernel, where the session has one.
    kernel: Option<Arc<Kernel>>,
    /// What is in the way of jumps, where probes are served by detours if they can be.
    constraints: Option<KernelConstraints<Arc<Kernel>>>,
    /// Whether stacks can be told.
    unwinds: bool,
}

/// A probe whose place is known.
pub(super) struct ResolvedProbe {
    pub(super) place: Place,
    pub(super) plan: ProbePlan,
    pub(super) handlers: Handlers,
    pub(super) enabled: bool,
}

impl From<ResolvedProbe> for Probe {
    fn from(ResolvedProbe { place, plan, handlers, enabled }: ResolvedProbe) -> Self {
        Self { at: Where::Place(place), plan, handlers, enabled }
    }
}

impl Resolver {
    /// For a session of `guest`.
    pub(super) fn new(guest: &Guest<'_>) -> Self {
        let kernel = guest.symbols.clone();
        let optimized = kernel.clone().filter(|_| guest.optimize != Optimize::Off);
        let constraints = optimized.map(KernelConstraints::new);
        Self { kernel, constraints, unwinds: guest.unwind.is_some() }
    }

    /// Where `probe` is, and what its definition has it do. The first may take a moment.
    pub(super) fn resolve(&self, probe: Probe) -> Result<ResolvedProbe, RegisterError> {
        let Probe { at, mut plan, handlers, enabled } = probe;
        let mut place = self.place(at, &mut plan)?;
        if plan.stack().is_some() && !self.unwinds {
            return Err(RegisterError::NoUnwind(place.name()));
        }
        if let Some(constraints) = self.constraints.as_ref().filter(|_| handlers.are_none()) {
            constraints.note(&mut place, &plan);
        }
        Ok(ResolvedProbe { place, plan, handlers, enabled })
    }

    /// Where a probe is, and what its definition has it do.
    fn place(&self, at: Where, plan: &mut ProbePlan) -> Result<Place, RegisterError> {
        let trigger = plan.trigger;
        let text = match at {
            Where::Place(place) => return Ok(place),
            Where::Definition(text) => return self.defined(&text, plan),
            Where::Spec(text) => text,
        };
        let kernel = || self.kernel.as_ref().ok_or_else(|| RegisterError::NoKernel(text.clone()));
        if trigger == Trigger::Access {
            return Ok(Place::Watch(watch::resolve(&text.parse()?, kernel()?)?));
        }
        let spec: ProbeSpec = text.parse()?;
        if spec.returns() && !matches!(trigger, Trigger::Return { .. }) {
            return Err(RegisterError::Return(text));
        }
        if matches!(spec.location(), Location::Glob(_)) {
            return Err(RegisterError::Pattern(text));
        }
        let mut places = resolve(&spec, kernel()?)?.places.into_iter();
        match (places.next(), places.next()) {
            (Some(place), None) => Ok(place),
            _ => Err(RegisterError::Pattern(text)),
        }
    }

    fn defined(&self, text: &str, plan: &mut ProbePlan) -> Result<Place, RegisterError> {
        if discriminant(&plan.trigger) != discriminant(&trigger_of(text).map_err(Box::new)?) {
            return Err(RegisterError::Trigger(text.to_owned()));
        }
        let kernel = self.kernel.as_ref().ok_or_else(|| RegisterError::NoKernel(text.to_owned()))?;
        let (btf, debug) = (kernel.btf().ok(), DebugInfo::of(kernel));
        let mut definitions = Definitions::of(kernel, btf.as_ref(), &debug, Expand::Small);
        definitions.read(text).map_err(Box::new)?;
        let mut probes = definitions.finish().probes.into_iter();
        let (Some(found), None) = (probes.next(), probes.next()) else {
            return Err(RegisterError::Pattern(text.to_owned()));
        };
        (plan.trigger, plan.capture) = (found.plan.trigger, found.plan.capture);
        (plan.tracepoint, plan.program) = (found.plan.tracepoint, found.plan.program);
        if let Action::Histogram(histogram) = found.plan.action {
            plan.action = Action::Histogram(histogram);
        }
        Ok(found.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a probe is told does not depend on how many functions a kernel happens to have.
    #[test]
    fn a_pattern_is_refused_and_returns_are_not_taken_for_entries() {
        let refused = |probe: Probe| Resolver::default().resolve(probe).err().unwrap();
        assert!(matches!(refused(Probe::at("do_filp_ope*").into()), RegisterError::Pattern(_)));
        assert!(matches!(refused(Probe::on_return("vfs_*").into()), RegisterError::Pattern(_)));
        assert!(matches!(refused(Probe::at("vfs_read%return").into()), RegisterError::Return(_)));
        assert!(matches!(refused(Probe::on_return("vfs_read%return").into()), RegisterError::NoKernel(_)));
    }

    #[test]
    fn a_definition_of_returns_is_refused_where_handlers_of_an_instruction_are() {
        let refused = |probe: Probe| Resolver::default().resolve(probe).err().unwrap();
        let defined = |text: &str| Where::Definition(text.to_owned());
        let returns = Probe::at(defined("r vfs_read")).pre(|_| {});
        assert!(matches!(refused(returns.into()), RegisterError::Trigger(_)));
        let entries = Probe::on_return(defined("p vfs_read")).handler(|_, ()| {});
        assert!(matches!(refused(entries.into()), RegisterError::Trigger(_)));
        assert!(matches!(refused(Probe::at(defined("p vfs_read")).into()), RegisterError::NoKernel(_)));
    }
}
