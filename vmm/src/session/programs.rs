//! Which places in programs are registered in the guest, and which should be.

use super::registry::Registry;
use super::report::ProbeState;
use crate::errands::{Consumers, PlaceStep, Placed, Wanted};
use probe_engine::addr::Gva;
use probe_engine::detour::layout;
use probe_engine::probe::table::ProbeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::sync::{Arc, Mutex};

/// The places in programs that probes are at.
#[derive(Default)]
pub(super) struct Programs {
    /// Those that are registered, by their probes.
    pub(super) on: BTreeMap<ProbeId, PlaceStep>,
    pub(super) consumers: Arc<Mutex<Consumers>>,
    pub(super) under_way: Option<UnderWay>,
    /// Those whose files were not there when they were looked for last.
    pub(super) missing: BTreeSet<ProbeId>,
    /// Whether there are files in which places can be.
    pub(super) has_files: bool,
    /// Programs that wait before they run.
    pub(super) waiting: Vec<Wanted<()>>,
    /// Consumers of which nobody knows whether the guest has them: they are never used again.
    pub(super) unknown: BTreeSet<Gva>,
}

/// Places that are being registered.
pub(super) struct UnderWay {
    pub(super) steps: Vec<PlaceStep>,
    pub(super) results: Receiver<Vec<(PlaceStep, Placed)>>,
    pub(super) has_come: Option<Vec<(PlaceStep, Placed)>>,
    /// Whether programs may run again.
    pub(super) is_over: Arc<AtomicBool>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
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
        is_early
            || self.under_way.is_some()
            || window.is_some_and(|window| !self.due(registry, window).is_empty())
    }

    /// Whether a program is of interest that is about to run.
    pub(super) fn awaits(&self, registry: &Registry) -> bool {
        registry.has_programs() && (!self.has_files || self.under_way.is_some() || !self.missing.is_empty())
    }

    /// Whether anything is registered, or may be in a moment.
    pub(super) fn has_registered(&self) -> bool {
        self.under_way.is_some() || !self.on.is_empty()
    }

    /// Whether a probe's place is registered.
    pub(super) fn is_on(&self, probe: ProbeId) -> bool {
        self.on.contains_key(&probe)
    }

    /// Whether the file of a probe's place was not there when it was looked for last.
    pub(super) fn is_missing(&self, probe: ProbeId) -> bool {
        self.missing.contains(&probe)
    }

    /// What has to be registered, and what no more.
    pub(super) fn due(&self, registry: &Registry, window: Gva) -> Vec<PlaceStep> {
        let wanted = wanted(registry, window);
        let off = self.on.iter().filter(|(probe, _)| !wanted.contains_key(probe));
        let off: Vec<_> = off.map(|(_, step)| PlaceStep { on: false, ..step.clone() }).collect();
        let is_new =
            |step: &PlaceStep| !self.on.contains_key(&step.probe) && !self.missing.contains(&step.probe);
        off.into_iter().chain(wanted.into_values().filter(is_new)).collect()
    }

    /// The numbers of consumers that somebody may still be called for.
    pub(super) fn is_used(&self, window: Gva, number: u32) -> bool {
        let at = window.add(layout::consumer(number));
        let busy = self.under_way.iter().flat_map(|under_way| &under_way.steps);
        self.unknown.contains(&at) || self.on.values().chain(busy).any(|step| step.consumer == at)
    }
}

/// The places that should be registered.
fn wanted(registry: &Registry, window: Gva) -> BTreeMap<ProbeId, PlaceStep> {
    let mut wanted = BTreeMap::new();
    for entry in registry.iter().filter(|_| registry.is_armed()) {
        let is_lost =
            matches!(entry.state, ProbeState::Refused(_) | ProbeState::Gone(_) | ProbeState::Overwritten(_));
        if let (Some(place), Some(number)) = (&entry.active.plan.program, entry.active.consumer())
            && entry.enabled
            && !entry.is_over()
            && !is_lost
        {
            let (probe, consumer) = (entry.active.id, window.add(layout::consumer(number)));
            wanted.insert(probe, PlaceStep { probe, place: place.clone(), consumer, on: true });
        }
    }
    wanted
}
