//! Which of the guest's tracepoints are switched on, and which should be: those that probes are at.

use super::handle::{CommandError, Done};
use super::registry::{RegisteredProbe, Registry};
use crate::errands::{Nothing, Registrations, Step, Wanted};
use probe_engine::addr::Gva;
use probe_engine::linux::tracepoints::{Callee, TracepointCalls};
use probe_engine::probe::plan::SwitchedTracepoint;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// How long the guest may take for one tracepoint.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many errands are under way at most: a guest that comes by again and again makes no more.
const MOST_UNDER_WAY: usize = 32;

/// The tracepoints of a guest.
#[derive(Default)]
pub(super) struct Tracepoints {
    /// Those that are switched on, by their addresses (GVA).
    pub(super) on: BTreeMap<Gva, Step>,
    /// What errands know of each other.
    pub(super) registrations: Arc<Registrations>,
    /// What is being switched.
    under_way: Vec<UnderWay>,
    /// Commands that are answered when everything is as they want it.
    pub(super) answering: Vec<Answering>,
}

/// Tracepoints that are being switched.
struct UnderWay {
    steps: Vec<Step>,
    wanted: Wanted<Vec<Result<(), Errno>>>,
    results: Option<Vec<Result<(), Errno>>>,
    begun: Instant,
}

/// A command and its answer.
pub(super) struct Answering {
    pub(super) answer: SyncSender<Result<Done, CommandError>>,
    pub(super) result: Result<Done, CommandError>,
    /// Whether tracepoints are switched for it.
    pub(super) is_switching: bool,
    /// Whether it has registered its probes.
    pub(super) is_register: bool,
}

/// Whom tracepoints are to be switched for.
#[derive(Clone, Copy)]
pub(super) struct Switching {
    pub(super) calls: TracepointCalls,
    /// What was added to the kernel's link-time addresses.
    pub(super) slide: u64,
    /// Whether a worker of the guest's kernel can be sent for. Where none can, a tracepoint stays switched on as long as anybody is
    /// registered for it.
    pub(super) has_workers: bool,
}

impl Tracepoints {
    /// Whether any results have come. What has been dropped comes to nothing, and so does what does not get on: switching all of them
    /// takes a busy guest its time.
    pub(super) fn has_results(&mut self) -> bool {
        let (now, moved) = (Instant::now(), self.registrations.moved());
        let is_late = |begun: Instant| now >= moved.map_or(begun, |moved| moved.max(begun)) + PATIENCE;
        for under_way in self.under_way.iter_mut().filter(|under_way| under_way.results.is_none()) {
            let nothing = |error| Some(vec![Err(error); under_way.steps.len()]);
            under_way.results = match under_way.wanted.come_to() {
                Ok(results) => Some(results),
                Err(Nothing::Dropped) => nothing(Errno::CANCELED),
                Err(Nothing::Overdue) if is_late(under_way.begun) => nothing(Errno::TIMEDOUT),
                Err(Nothing::Overdue) => None,
            };
        }
        self.under_way.iter().any(|under_way| under_way.results.is_some())
    }

    /// The steps that are over, with what has come of each.
    pub(super) fn results(&mut self) -> Vec<(Step, Result<(), Errno>)> {
        self.has_results();
        let (done, under_way) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition::<Vec<_>, _>(|under_way| under_way.results.is_some());
        self.under_way = under_way;
        done.into_iter()
            .flat_map(|done| done.steps.into_iter().zip(done.results.unwrap_or_default()))
            .collect()
    }

    /// These are being switched from now on.
    pub(super) fn begin(&mut self, steps: Vec<Step>, wanted: Wanted<Vec<Result<(), Errno>>>) {
        self.under_way.push(UnderWay { steps, wanted, results: None, begun: Instant::now() });
    }

    /// Whether something can be begun.
    pub(super) fn has_room(&self) -> bool {
        self.under_way.len() < MOST_UNDER_WAY
    }

    /// Whether anything is being switched.
    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether anything is switched on, or may be in a moment.
    pub(super) fn has_switched(&self) -> bool {
        self.is_busy() || !self.on.is_empty()
    }

    /// What has to be switched. Where nobody waits for it, what is being switched already is left to whoever does that.
    pub(super) fn due(&self, switching: &Switching, registry: &Registry, waits: bool) -> Vec<Step> {
        let wanted = wanted(switching, registry);
        let all = self.under_way.iter().flat_map(|under_way| &under_way.steps);
        let busy: BTreeSet<Gva> = all.filter(|_| !waits).map(|step| step.tracepoint).collect();
        let may_switch_off = waits || switching.has_workers;
        let off = self.on.iter().filter(|(at, _)| may_switch_off && !wanted.contains_key(at));
        let off: Vec<_> = off.map(|(_, step)| Step { on: false, ..step.clone() }).collect();
        let on = wanted.into_values().filter(|step| !self.on.contains_key(&step.tracepoint));
        off.into_iter().chain(on).filter(|step| !busy.contains(&step.tracepoint)).collect()
    }

    /// These tracepoints are about to go: what has to be done before, whatever is being done about them.
    pub(super) fn going(&mut self, tracepoints: &[Gva]) -> Vec<Step> {
        self.registrations.gone(tracepoints);
        let known = self.on.values().chain(self.under_way.iter().flat_map(|under_way| &under_way.steps));
        let mut steps = BTreeMap::new();
        for step in known.filter(|step| tracepoints.contains(&step.tracepoint)) {
            steps.insert(step.tracepoint, Step { on: false, ..step.clone() });
        }
        self.on.retain(|at, _| !tracepoints.contains(at));
        steps.into_values().collect()
    }
}

/// The tracepoints that probes are at which should stand.
fn wanted(switching: &Switching, registry: &Registry) -> BTreeMap<Gva, Step> {
    let mut wanted = BTreeMap::new();
    for entry in registry.iter() {
        let is_enabled = registry.is_armed() && entry.enabled && !entry.is_over();
        if (is_enabled || !switching.has_workers)
            && !entry.is_lost()
            && let Some(step) = switched_on(entry, switching)
        {
            wanted.insert(step.tracepoint, step);
        }
    }
    wanted
}

/// What has to be done for a probe; nothing where it is at no tracepoint, or at one of a module that is not loaded.
pub(super) fn switched_on(entry: &RegisteredProbe, switching: &Switching) -> Option<Step> {
    let SwitchedTracepoint { name, at, .. } = entry.active.plan.tracepoint.as_ref()?;
    let (own, slide) = (entry.info.as_ref()?.at, switching.slide);
    let (tracepoint, own) = match at {
        Some(link) => (link.add(slide), own.add(slide)),
        None => (entry.tracepoint?, own),
    };
    let function = match switching.calls.callee {
        Callee::Own => own,
        Callee::Shared(link) => link.add(slide),
    };
    Some(Step { tracepoint, name: name.clone(), function, on: true })
}
