//! Probes that stand for as many places as a file has: when these are known, each gets a probe of its own, which is a part of the
//! first one. Whoever has registered that sees it alone.

use super::{RegisteredProbe, Registry};
use crate::errands::FoundPlaces;
use crate::events::Reader;
use crate::probe::{Handlers, Kin, Kind};
use crate::session::report::{PlaceReport, ProbeReport, ProbeState};
use crate::session::resolver::ResolvedProbe;
use probe_engine::guest_text::Escaped;
use probe_engine::linux::program_file::FoundPlace;
use probe_engine::linux::program_place::{InFile, KnownFile, ProgramPlace};
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::ProbePlan;
use probe_engine::probe::table::ProbeId;
use std::collections::HashMap;

impl Registry {
    /// Registers a part of `whole` for each of `places`: all of them or none.
    ///
    /// # Errors
    /// Why one of them cannot be, for people.
    pub(in crate::session) fn unfold(&mut self, whole: ProbeId, places: &FoundPlaces) -> Result<(), String> {
        let mut parts = Vec::new();
        for found in &places.all {
            let resolved = self.entries.get(&whole).map(|entry| part(entry, found, &places.file));
            let Some(resolved) = resolved else { break };
            let active = self.entries.get(&whole).map(|entry| entry.active.clone());
            let kin = active.as_deref().map_or(Kin::Nobody, Kin::PartOf);
            let registered =
                resolved.and_then(|part| self.insert(part, kin).map_err(|error| error.to_string()));
            match registered {
                Ok(id) => parts.push(id),
                Err(error) => {
                    self.unregister(&parts);
                    return Err(error);
                }
            }
        }
        if let Err(error) = self.know_beginnings(&parts) {
            self.unregister(&parts);
            return Err(error.to_string());
        }
        if let Some(entry) = self.entries.get_mut(&whole) {
            entry.parts = parts;
        }
        Ok(())
    }

    /// `ids`, their parts, and what sees the beginnings of the calls of all of them.
    pub(super) fn with_parts(&self, ids: &[ProbeId]) -> Vec<ProbeId> {
        let entries = |ids: &[ProbeId]| ids.iter().filter_map(|id| self.entries.get(id)).collect::<Vec<_>>();
        let parts = entries(ids).into_iter().flat_map(|entry| &entry.parts);
        let mut all: Vec<_> = ids.iter().chain(parts).copied().collect();
        let beginnings: Vec<_> = entries(&all).into_iter().filter_map(|entry| entry.beginnings).collect();
        all.extend(beginnings);
        all
    }

    /// Why a probe cannot stand, where it cannot: what stands for several places cannot if none of its parts can.
    pub(in crate::session) fn refusal(&self, id: ProbeId) -> Option<String> {
        let entry = self.entries.get(&id)?;
        let states = entry.parts.iter().filter_map(|part| self.entries.get(part)).map(|part| &part.state);
        let reason = |state: &ProbeState| match state {
            ProbeState::Refused(reason) => Some(reason.clone()),
            ProbeState::Gone(_) => Some("the guest has freed its text".to_owned()),
            _ => None,
        };
        reason(&entry.state).or_else(|| states.map(reason).collect::<Option<Vec<_>>>()?.into_iter().next())
    }

    /// As whose hits those of a probe are told.
    pub(in crate::session) fn told_as(&self, id: ProbeId) -> ProbeId {
        self.entries.get(&id).and_then(|entry| entry.part_of).unwrap_or(id)
    }

    /// What is said of a probe: what it and all of its parts have seen, of which `lost` was not handed on.
    pub(super) fn report_with_parts(
        &self,
        id: ProbeId,
        reader: &Reader,
        lost: u64,
        detoured: &HashMap<u32, usize>,
    ) -> Option<ProbeReport> {
        let entry = self.entries.get(&id)?;
        let parts = entry.parts.iter().filter_map(|id| Some((id, self.entries.get(id)?)));
        let parts: Vec<_> = parts.map(|(id, part)| part.report(*id, reader, 0, detoured)).collect();
        if parts.is_empty() {
            return Some(entry.report(id, reader, lost, detoured));
        }
        let mut whole = entry.report(id, reader, 0, detoured);
        if let Some(part) = parts.iter().min_by_key(|part| rank(&part.state)) {
            (whole.address, whole.trapped) = (part.address, part.trapped.clone());
            if !matches!(whole.state, ProbeState::Broken(_)) {
                whole.state = part.state.clone();
            }
        }
        let path = entry.active.plan.program.as_ref().map_or(0, |program| program.path.len() + 1);
        for part in parts {
            whole.hits += part.hits;
            whole.outside += part.outside;
            whole.missed += part.missed;
            whole.outstanding += part.outstanding;
            whole.has_stood |= part.has_stood;
            let refused = match part.state {
                ProbeState::Refused(reason) => Some(reason),
                _ => None,
            };
            let place = part.name.get(path..).unwrap_or(&part.name).to_owned();
            whole.places.push(PlaceReport { place, hits: part.hits, refused });
        }
        whole.hits = whole.hits.saturating_sub(lost);
        whole.missed.output += lost;
        Some(whole)
    }
}

/// Which of its parts' states a probe has: that of the first.
fn rank(state: &ProbeState) -> u8 {
    match state {
        ProbeState::Broken(_) | ProbeState::Overwritten(_) => 0,
        ProbeState::Spent(_) => 1,
        ProbeState::Armed(_) | ProbeState::Optimized(_) => 2,
        ProbeState::DisplacedByFtrace(_) | ProbeState::Gone(_) => 3,
        ProbeState::Waiting | ProbeState::Pending(_) | ProbeState::NoFile(_) | ProbeState::Disabled => 4,
        ProbeState::Refused(_) => 5,
    }
}

/// The part of `whole` that is at `found`.
fn part(whole: &RegisteredProbe, found: &FoundPlace, file: &KnownFile) -> Result<ResolvedProbe, String> {
    let (Some(program), Place::Kernel { info, .. }, Kind::Instruction(handlers)) =
        (&whole.active.plan.program, &whole.place, &whole.active.kind)
    else {
        return Err("it stands for one place".to_owned());
    };
    let at = InFile::Offset(found.offset);
    let name = match &found.name {
        Some(name) => format!("{}:{}", program.path, Escaped(name.as_bytes())),
        None => format!("{}:{at}", program.path),
    };
    // In another file, other code would be there.
    let known = Some(file.clone());
    let own = ProgramPlace { at, counter: found.counter, known, ..program.clone() };
    let plan = ProbePlan::clone(&whole.active.plan);
    let capture = match &program.at {
        InFile::Tracepoint { .. } => plan.capture.at_usdt(own.saved(), &found.arguments),
        _ => Ok(plan.capture),
    };
    let capture = capture.map_err(|error| format!("at {name}, {error}"))?;
    Ok(ResolvedProbe {
        place: Place::Kernel { name, info: info.clone() },
        plan: ProbePlan { capture, program: Some(own), ..plan },
        handlers: Handlers::Instruction(handlers.clone()),
        enabled: whole.enabled,
    })
}
