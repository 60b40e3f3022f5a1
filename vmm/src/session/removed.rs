//! Probes that were unregistered, as they are in the end.
//!
//! A vCPU may be in the code of a detour when the probe of that goes: its hit is counted and written down all the same. A call that
//! returns by a detour after its probe has gone is counted there, and is no hit: nobody waits for it any more.

use super::report::{ProbeKind, ProbeReport, Unregistered};
use crate::events::Reader;

/// A probe that was unregistered.
pub(super) struct RemovedProbe {
    /// As it was then.
    report: ProbeReport,
    /// Whether its hits are written down.
    records: bool,
    counts: Counts,
}

/// What is counted of hits.
#[derive(Clone, Copy)]
struct Counts {
    hits: u64,
    lost: u64,
    full: u64,
    unfinished: u64,
}

impl Counts {
    /// Those of `report`'s probe by now. Of its hits, `lost` were not handed on.
    fn of(report: &ProbeReport, records: bool, reader: &Reader, lost: u64) -> Self {
        let missed = reader.missed_by_detours(report.id, records);
        Self { hits: reader.hits(report.id), lost, full: missed.full, unfinished: missed.unfinished }
    }

    fn since(self, then: Self) -> Self {
        Self {
            hits: self.hits.saturating_sub(then.hits),
            lost: self.lost.saturating_sub(then.lost),
            full: self.full.saturating_sub(then.full),
            unfinished: self.unfinished.saturating_sub(then.unfinished),
        }
    }
}

impl RemovedProbe {
    /// That of which `report` tells, at this moment.
    pub(super) fn new(report: &ProbeReport, records: bool, reader: &Reader, lost: u64) -> Self {
        let counts = Counts::of(report, records, reader, lost);
        Self { report: report.clone(), records, counts }
    }

    /// What it has seen with all that came later.
    pub(super) fn finish(&self, reader: &Reader, lost: u64) -> ProbeReport {
        let later = Counts::of(&self.report, self.records, reader, lost).since(self.counts);
        let mut report = self.report.clone();
        report.hits = (report.hits + later.hits).saturating_sub(later.lost + later.full + later.unfinished);
        let unwanted = match report.kind {
            ProbeKind::Return => later.hits.min(later.unfinished),
            ProbeKind::Instruction | ProbeKind::Watch => 0,
        };
        report.missed.output += later.lost;
        report.missed.ring += later.full;
        report.missed.unfinished += later.unfinished - unwanted;
        report
    }

    pub(super) fn report(&self) -> &ProbeReport {
        &self.report
    }
}

/// What all of `removed` saw.
pub(super) fn sum(removed: &[ProbeReport]) -> Unregistered {
    let mut sum = Unregistered { probes: removed.len() as u64, ..Unregistered::default() };
    for probe in removed {
        sum.hits += probe.hits;
        sum.missed += probe.missed.hits();
        sum.yields += probe.missed.yields;
    }
    sum
}
