//! Which places in programs are registered in the guest, and which should be.

use super::registry::{RegisteredProbe, Registry};
use crate::errands::{Consumers, Nothing, PlaceStep, Placed, Wanted};
use probe_engine::addr::Gva;
use probe_engine::detour::layout;
use probe_engine::linux::scope::Scope;
use probe_engine::probe::table::ProbeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};

/// The places in programs that probes are at.
#[derive(Default)]
pub(super) struct Programs {
    /// Those that are registered, by their probes.
    pub(super) on: BTreeMap<ProbeId, PlaceStep>,
    pub(super) consumers: Arc<Mutex<Consumers>>,
    pub(super) under_way: Option<UnderWay>,
    /// Those that stand for several places, which have become probes of their own.
    pub(super) unfolded: BTreeSet<ProbeId>,
    /// How often registering has begun.
    pub(super) rounds: u64,
    /// Those whose files were not there when they were looked for last.
    pub(super) missing: BTreeSet<ProbeId>,
    /// Whether there are files in which places can be.
    pub(super) has_files: bool,
    /// In which scopes a program has run: what is of a scope is looked for as a program of that scope sees it.
    pub(super) begun: Vec<Scope>,
    /// Programs that wait before they run, each until this round is over.
    pub(super) waiting: Vec<(u64, Wanted<()>)>,
    /// Consumers of which nobody knows whether the guest has them: they are never used again.
    pub(super) unknown: BTreeSet<Gva>,
}

/// Places that are being registered.
pub(super) struct UnderWay {
    pub(super) steps: Vec<PlaceStep>,
    pub(super) results: Receiver<Vec<(PlaceStep, Placed)>>,
    pub(super) has_come: Option<Vec<(PlaceStep, Placed)>>,
}

impl Programs {
    /// Whether any results have come.
    pub(super) fn has_results(&mut self) -> bool {
        let Some(under_way) = &mut self.under_way else { return false };
        if under_way.has_come.is_none() {
            under_way.has_come = match under_way.results.try_recv() {
                Ok(results) => Some(results),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => Some(Vec::new()),
            };
        }
        under_way.has_come.is_some()
    }

    /// Whether anything is being done, or has to be.
    pub(super) fn is_busy(&self, registry: &Registry, window: Option<Gva>) -> bool {
        let is_early = !self.has_files && registry.has_programs();
        let is_due = |window| !self.due(registry, window).is_empty();
        is_early || self.under_way.is_some() || window.is_some_and(is_due)
    }

    /// Whether a program is of interest that is about to run.
    pub(super) fn awaits(&self, registry: &Registry) -> bool {
        let is_off = |entry: &RegisteredProbe| is_wanted(entry) && !self.is_on(entry.active.id);
        let is_armed = registry.is_armed() && registry.has_programs();
        self.under_way.is_some() || (is_armed && registry.iter().any(is_off))
    }

    /// Whether anything is registered, or may be in a moment.
    pub(super) fn has_registered(&self) -> bool {
        self.under_way.is_some() || !self.on.is_empty()
    }

    /// Whether a probe's place is registered, or it is known which places it stands for.
    pub(super) fn is_on(&self, probe: ProbeId) -> bool {
        self.on.contains_key(&probe) || self.unfolded.contains(&probe)
    }

    /// Whether the file of a probe's place was not there when it was looked for last.
    pub(super) fn is_missing(&self, probe: ProbeId) -> bool {
        self.missing.contains(&probe)
    }

    /// What has to be registered, and what no more.
    pub(super) fn due(&self, registry: &Registry, window: Gva) -> Vec<PlaceStep> {
        if self.on.is_empty() && !registry.has_programs() {
            return Vec::new();
        }
        let wanted = wanted(registry, window);
        let off = self.on.iter().filter(|(probe, _)| !wanted.contains_key(probe));
        let off: Vec<_> = off.map(|(_, step)| PlaceStep { on: false, ..step.clone() }).collect();
        let has_begun = |probe: ProbeId| {
            let scope = registry.get(probe).map_or(Scope::Boot, |entry| entry.active.plan.scope);
            scope == Scope::Boot || self.begun.contains(&scope)
        };
        let is_new = |step: &PlaceStep| {
            let probe = step.probe;
            !self.is_on(probe) && !self.missing.contains(&probe) && has_begun(probe)
        };
        off.into_iter().chain(wanted.into_values().filter(is_new)).collect()
    }

    /// The numbers of consumers that somebody may still be called for.
    pub(super) fn is_used(&self, window: Gva, number: u32) -> bool {
        let at = window.add(layout::consumer(number));
        let busy = self.under_way.iter().flat_map(|under_way| &under_way.steps);
        self.unknown.contains(&at) || self.on.values().chain(busy).any(|step| step.consumer == at)
    }

    /// Programs that wait do so for another round.
    pub(super) fn wait_longer(&mut self) {
        self.waiting.iter_mut().for_each(|(round, _)| *round += 1);
    }

    /// Programs that have waited for what is done by now: they run when what is returned is dropped.
    pub(super) fn released(&mut self, all: bool) -> Vec<Wanted<()>> {
        let (over, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|(round, wanted)| {
                all || *round <= self.rounds || !matches!(wanted.come_to(), Err(Nothing::Overdue))
            });
        self.waiting = waiting;
        over.into_iter().map(|(_, wanted)| wanted).collect()
    }
}

/// The places that should be registered.
fn wanted(registry: &Registry, window: Gva) -> BTreeMap<ProbeId, PlaceStep> {
    let entries = registry.iter().filter(|entry| registry.is_armed() && is_wanted(entry));
    let step = |entry: &RegisteredProbe| {
        let (place, number) = (entry.active.plan.program.clone()?, entry.active.consumer()?);
        let (probe, consumer) = (entry.active.id, window.add(layout::consumer(number)));
        Some((probe, PlaceStep { probe, place, consumer, on: true }))
    };
    entries.filter_map(step).collect()
}

/// Whether a probe is in a program, and is to stand there.
fn is_wanted(entry: &RegisteredProbe) -> bool {
    entry.active.plan.program.is_some() && entry.enabled && !entry.is_over() && !entry.is_lost()
}
