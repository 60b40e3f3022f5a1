//! Which of the guest's tracepoints are switched on, and which should be: those that probes are at.

use super::handle::{CommandError, Done};
use super::registry::{RegisteredProbe, Registry};
use super::report::ProbeState;
use crate::errands::{Step, Wanted};
use probe_engine::addr::Gva;
use probe_engine::linux::tracepoints::{Callee, TracepointCalls};
use probe_engine::probe::plan::SwitchedTracepoint;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::SyncSender;

/// The tracepoints of a guest.
#[derive(Default)]
pub(super) struct Tracepoints {
    /// Those that are switched on, by their addresses (GVA).
    pub(super) on: BTreeMap<Gva, Step>,
    /// What is being switched.
    pub(super) under_way: Vec<UnderWay>,
    /// Commands that are answered when everything is as they want it.
    pub(super) answering: Vec<Answering>,
}

/// Tracepoints that are being switched.
pub(super) struct UnderWay {
    pub(super) steps: Vec<Step>,
    pub(super) wanted: Wanted<Vec<Result<(), Errno>>>,
    pub(super) results: Option<Vec<Result<(), Errno>>>,
}

/// A command and its answer.
pub(super) struct Answering {
    pub(super) answer: SyncSender<Result<Done, CommandError>>,
    pub(super) result: Result<Done, CommandError>,
    /// Whether tracepoints are switched for it.
    pub(super) is_switching: bool,
}

impl Tracepoints {
    /// Whether any results have come.
    pub(super) fn has_results(&mut self) -> bool {
        for under_way in self.under_way.iter_mut().filter(|under_way| under_way.results.is_none()) {
            under_way.results = under_way.wanted.look();
        }
        self.under_way.iter().any(|under_way| under_way.results.is_some())
    }

    /// What has to be switched that is not being switched already, in a kernel with this slide.
    pub(super) fn due(&self, calls: &TracepointCalls, registry: &Registry, slide: u64) -> Vec<Step> {
        let wanted = wanted(calls, registry, slide);
        let busy: BTreeSet<Gva> = self
            .under_way
            .iter()
            .flat_map(|under_way| &under_way.steps)
            .map(|step| step.tracepoint)
            .collect();
        let off = self.on.iter().filter(|(at, _)| !wanted.contains_key(at));
        let off: Vec<_> = off.map(|(_, step)| Step { on: false, ..step.clone() }).collect();
        let on = wanted.into_values().filter(|step| !self.on.contains_key(&step.tracepoint));
        off.into_iter().chain(on).filter(|step| !busy.contains(&step.tracepoint)).collect()
    }
}

/// The tracepoints that probes are at which should stand.
fn wanted(calls: &TracepointCalls, registry: &Registry, slide: u64) -> BTreeMap<Gva, Step> {
    let mut wanted = BTreeMap::new();
    for (_, entry) in registry.iter() {
        let is_wanted = registry.is_armed()
            && entry.enabled
            && !entry.is_over()
            && !matches!(
                entry.state,
                ProbeState::Refused(_) | ProbeState::Gone(_) | ProbeState::Overwritten(_)
            );
        if is_wanted && let Some(step) = switched_on(entry, calls, slide) {
            wanted.insert(step.tracepoint, step);
        }
    }
    wanted
}

/// What has to be done for a probe; nothing where it is at no tracepoint, or at one of a module that is not loaded.
pub(super) fn switched_on(entry: &RegisteredProbe, calls: &TracepointCalls, slide: u64) -> Option<Step> {
    let SwitchedTracepoint { name, at, .. } = entry.active.plan.tracepoint.as_ref()?;
    let own = entry.info.as_ref()?.at;
    let (tracepoint, own) = match at {
        Some(link) => (link.add(slide), own.add(slide)),
        None => (entry.tracepoint?, own),
    };
    let function = match calls.callee {
        Callee::Own => own,
        Callee::Shared(link) => link.add(slide),
    };
    Some(Step { tracepoint, name: name.clone(), function, on: true })
}
