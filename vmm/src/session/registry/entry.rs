//! One probe: what is known of it, and what is said of it.

use crate::events::Reader;
use crate::probe::{Active, Kind, Miss};
use crate::session::reasons::OnTrap;
use crate::session::report::{Missed, ProbeKind, ProbeReport, ProbeState};
use probe_engine::addr::Gva;
use probe_engine::probe::place::{Place, SiteInfo};
use probe_engine::probe::returns::Pool;
use probe_engine::probe::table::ProbeId;
use std::collections::HashMap;
use std::sync::Arc;

/// One probe.
pub(in crate::session) struct RegisteredProbe {
    pub(in crate::session) active: Arc<Active>,
    /// For whom it is there, if nobody has asked for it: what stands for several places, of which this is at one, or a return of
    /// calls of which this sees the beginnings.
    pub(super) part_of: Option<ProbeId>,
    /// Those that are at its places, if it stands for several.
    pub(super) parts: Vec<ProbeId>,
    /// That which sees when the calls began whose returns are its hits, if another one has to.
    pub(super) beginnings: Option<ProbeId>,
    pub(in crate::session) place: Place,
    /// What is there, at link-time addresses for the kernel and at run-time addresses for a module that is
    /// loaded.
    pub(in crate::session) info: Option<SiteInfo>,
    pub(in crate::session) enabled: bool,
    pub(in crate::session) state: ProbeState,
    /// Why it stands on a trap and not on a detour, where that has been asked for.
    pub(in crate::session) trapped: Option<OnTrap>,
    /// Where it stood last (GVA).
    pub(in crate::session) stood: Option<Gva>,
    /// Whether it has stood in the guest at some time.
    pub(in crate::session) has_stood: bool,
    /// Whether it has left its place to the guest's ftrace: it stands behind that since, where it can.
    pub(in crate::session) moved_for_ftrace: bool,
    /// The tracepoint of a module that has to be switched on for it (GVA), while that is loaded.
    pub(in crate::session) tracepoint: Option<Gva>,
    /// Whether the guest's kernel calls what it is at: its tracepoint is switched on, or its place in a program is registered.
    pub(in crate::session) is_switched_on: bool,
    /// Whether the file of its program was not there when it was looked for last.
    pub(in crate::session) was_missing: bool,
    /// How often the guest wanted its text when there was no room behind it: hits are missed then.
    pub(in crate::session) yields: u64,
}

impl RegisteredProbe {
    /// Whether it takes no hit any more, wherever its text is.
    pub(in crate::session) fn is_over(&self) -> bool {
        self.active.is_broken() || self.active.is_spent()
    }

    /// Whether it would have hits if it stood: the guest's kernel calls what it is at, or need not do that.
    pub(in crate::session) fn is_called(&self) -> bool {
        let plan = &self.active.plan;
        (plan.tracepoint.is_none() && plan.program.is_none()) || self.is_switched_on
    }

    /// Whether it never stands itself: it stands for several places, each of which has a probe.
    pub(in crate::session) fn stands_for_others(&self) -> bool {
        self.active.plan.program.as_ref().is_some_and(|program| program.at.is_several())
    }

    /// Whether it cannot stand any more.
    pub(in crate::session) fn is_lost(&self) -> bool {
        matches!(self.state, ProbeState::Refused(_) | ProbeState::Gone(_) | ProbeState::Overwritten(_))
    }

    /// Its place, as users write it.
    pub(in crate::session) fn name(&self) -> String {
        match &self.active.plan.tracepoint {
            Some(tracepoint) => tracepoint.written.clone(),
            None => self.place.name(),
        }
    }

    /// `detoured`: how many calls detours follow, by the probe.
    pub(super) fn report(
        &self,
        id: ProbeId,
        reader: &Reader,
        lost: u64,
        detoured: &HashMap<u32, usize>,
    ) -> ProbeReport {
        let missed_by_detours = reader.missed_by_detours(id, self.active.plan.records());
        let missed = |miss| self.active.missed(miss);
        let state = match &self.state {
            ProbeState::Armed(at) if self.active.is_spent() => ProbeState::Spent(*at),
            ProbeState::Waiting => match (&self.place, &self.active.plan.program) {
                (Place::Module { module, .. }, _) => ProbeState::Pending(module.clone()),
                (_, Some(program)) if self.was_missing => ProbeState::NoFile(program.path.clone()),
                (Place::Kernel { .. } | Place::Watch(_), _) => ProbeState::Waiting,
            },
            state => state.clone(),
        };
        let address = match state {
            ProbeState::Armed(at)
            | ProbeState::Optimized(at)
            | ProbeState::Gone(at)
            | ProbeState::Overwritten(at)
            | ProbeState::DisplacedByFtrace(at)
            | ProbeState::Spent(at) => at,
            ProbeState::Waiting
            | ProbeState::Pending(_)
            | ProbeState::NoFile(_)
            | ProbeState::Disabled
            | ProbeState::Refused(_)
            | ProbeState::Broken(_) => match (&self.place, &self.info, self.stood) {
                (.., Some(at)) => at,
                (Place::Watch(watch), ..) => watch.at,
                (_, Some(info), _) => info.at,
                (_, None, _) => Gva(0),
            },
        };
        ProbeReport {
            id,
            name: self.name(),
            kind: match self.active.kind {
                Kind::Instruction(_) => match &self.active.plan.program {
                    Some(program) if program.returns => ProbeKind::Return,
                    _ => ProbeKind::Instruction,
                },
                Kind::Return(..) => ProbeKind::Return,
                Kind::Watch(_) => ProbeKind::Watch,
            },
            module: match &self.place {
                Place::Module { module, .. } => Some(module.clone()),
                Place::Kernel { .. } | Place::Watch(_) => None,
            },
            address,
            enabled: self.enabled,
            hits: reader
                .hits(id)
                .saturating_sub(lost + missed_by_detours.full + missed_by_detours.unfinished),
            outside: self.active.outside() + reader.outside_by_detours(id),
            missed: Missed {
                output: lost,
                ring: missed_by_detours.full,
                unfinished: missed_by_detours.unfinished,
                instance: missed(Miss::NoInstance) + missed_by_detours.unfollowed,
                stack: missed(Miss::NoStack) + missed(Miss::Stray) + missed_by_detours.strays,
                unread: missed_by_detours.unread,
                yields: self.yields,
            },
            trapped: self
                .trapped
                .as_ref()
                .filter(|_| matches!(self.state, ProbeState::Armed(_)))
                .map(OnTrap::to_string),
            outstanding: self.active.pool().map_or(0, Pool::outstanding)
                + detoured.get(&id.0).copied().unwrap_or(0),
            has_stood: self.has_stood,
            places: Vec::new(),
            state,
        }
    }
}
