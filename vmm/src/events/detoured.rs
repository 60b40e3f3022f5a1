//! What the guest's detours write, read while it runs.

use super::guest_time::GuestTime;
use super::ring_space::RingEnds;
use super::{Captured, Event, Nanos, What};
use crate::clock::{Rate, ticks};
use crate::memory::GuestRam;
use crate::probe::Active;
use crate::reserved;
use probe_engine::addr::Gva;
use probe_engine::capture::tally::Group;
use probe_engine::detour::groups::groups;
use probe_engine::detour::instances::Instances;
use probe_engine::detour::layout::{self, Rings};
use probe_engine::detour::ring::{Drained, Record, Returned, Ring, counter, hits};
use probe_engine::detour::work::{RecordedAt, Work};
use probe_engine::probe::table::ProbeId;
use std::collections::HashMap;
use std::sync::Arc;

/// Hits of a probe that its detours have missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MissedByDetours {
    /// Hits that found no room in a ring.
    pub full: u64,
    /// Hits that found room, and of which nothing has come out of it in the end.
    pub unfinished: u64,
    /// Calls that were not followed: too many were.
    pub unfollowed: u64,
    /// Calls that were followed, and came back elsewhere.
    pub strays: u64,
    /// Passes for which memory had to be read when it could not be, or more of it than can be.
    pub unread: u64,
}

/// A probe that a detour records for.
pub struct DetouredProbe {
    pub(crate) probe: Arc<Active>,
    pub(crate) work: Work,
    /// Where it stands (GVA).
    pub(crate) at: Gva,
    /// What KASLR added to the kernel's link-time addresses.
    pub(crate) slide: u64,
}

/// The reader's end.
pub(super) struct DetourRings {
    ram: Arc<GuestRam>,
    rings: Vec<Ring>,
    instances: Instances,
    /// How many hits of a probe have been read: their records, and in the end its groups.
    read: HashMap<u32, u64>,
    /// Whether there will be no more.
    is_closed: bool,
    ends: RingEnds,
}

/// The clocks by which records are told, at one moment.
pub(super) struct Times<'a> {
    /// From ticks to nanoseconds.
    pub(super) rate: Rate,
    /// The guest's own.
    pub(super) guest: &'a GuestTime,
    /// Nanoseconds since the guest was started.
    pub(super) now: u64,
}

impl DetourRings {
    pub(super) fn new(ram: Arc<GuestRam>, cpus: u8, ends: RingEnds) -> Self {
        let rings = Rings::of(cpus);
        let rings = (0..rings.cpus).map(|cpu| Ring::new(rings, reserved::DATA, cpu)).collect();
        let instances = Instances::new(reserved::DATA, cpus);
        Self { ram, rings, instances, read: HashMap::new(), is_closed: false, ends }
    }

    /// Appends what has come in until now. Records of no probe are not ours.
    /// Returns until when all has been read: where there is more in a ring than is read at a time, that is not now.
    pub(super) fn drain(
        &mut self,
        times: &Times<'_>,
        known: &HashMap<u32, DetouredProbe>,
        batch: &mut Vec<Event>,
    ) -> u64 {
        let Times { rate, guest, now } = *times;
        let mut until = now;
        if known.is_empty() {
            return until;
        }
        let Self { ram, rings, read, ends, .. } = self;
        for (vcpu, ring) in rings.iter_mut().enumerate() {
            let mut last = now;
            ends.begin(vcpu);
            // The memory is there as long as the guest is.
            let drained = ring.drain(&**ram, |record| {
                last = rate.nanos(guest.to_host(record.ticks));
                if last > now {
                    // It has come in since. Whatever the guest says, it was not later than this.
                    last = last.min(rate.nanos(ticks()));
                }
                let known = known.get(&record.probe);
                let when = (last, guest.nanos(record.ticks));
                if let Some(event) = known.and_then(|known| known.event(vcpu, when, &record, rate)) {
                    *read.entry(record.probe).or_default() += 1;
                    batch.push(event);
                }
            });
            let drained = drained.unwrap_or(Drained::Broken);
            if drained == Drained::More {
                until = until.min(last);
            }
            ends.end(vcpu, drained);
        }
        until
    }

    /// There will be no more: reads what hits of `known` probes came to that were counted in the guest, by their first hits.
    pub(super) fn close(&mut self, known: &HashMap<u32, DetouredProbe>) -> Vec<(ProbeId, Group)> {
        self.is_closed = true;
        let read = self.groups(known);
        for (probe, group) in &read {
            let hits = self.read.entry(probe.0).or_default();
            *hits = hits.saturating_add(group.hits());
        }
        read
    }

    /// What hits of `known` probes have come to so far that are counted in the guest, by their first hits.
    pub(super) fn groups(&self, known: &HashMap<u32, DetouredProbe>) -> Vec<(ProbeId, Group)> {
        let plan = |probe: &u32| known.get(probe)?.work.groups.as_ref();
        if known.keys().all(|probe| plan(probe).is_none()) {
            return Vec::new();
        }
        let mut read = Vec::new();
        for (probe, groups) in groups(&*self.ram, reserved::DATA) {
            let Some(plan) = plan(&probe) else { continue };
            read.extend(groups.iter().map(|raw| (ProbeId(probe), plan.read(raw))));
        }
        read.sort_by_key(|(_, group)| group.first());
        read
    }

    /// Hits of `probe`.
    pub(super) fn hits(&self, probe: ProbeId) -> u64 {
        hits(&*self.ram, reserved::DATA, self.rings.len() as u32, probe.0)
    }

    /// Passes of `probe` that were not in its scope.
    pub(super) fn outside(&self, probe: ProbeId) -> u64 {
        self.counter(layout::OUTSIDE, probe)
    }

    /// How many calls are followed, by the probe.
    pub(super) fn outstanding(&self) -> HashMap<u32, usize> {
        self.instances.outstanding(&*self.ram)
    }

    /// What `probe` has missed, which writes its hits down or not.
    pub(super) fn missed(&self, probe: ProbeId, is_recorded: bool) -> MissedByDetours {
        let counter = |table| self.counter(table, probe);
        let full = if is_recorded { counter(layout::DROPS) } else { 0 };
        let read = self.read.get(&probe.0).copied().unwrap_or(0);
        let left = self.hits(probe).saturating_sub(read.saturating_add(full));
        MissedByDetours {
            full,
            // Before the end, they may come yet.
            unfinished: if is_recorded && self.is_closed { left } else { 0 },
            unfollowed: counter(layout::UNFOLLOWED),
            strays: counter(layout::STRAYS),
            unread: counter(layout::UNREAD),
        }
    }

    /// A counter of `probe`, from a table of the data window.
    fn counter(&self, table: u64, probe: ProbeId) -> u64 {
        counter(&*self.ram, reserved::DATA, table, probe.0)
    }
}

impl DetouredProbe {
    /// The event that `record` is of, with its time by our clock and by the guest's; `None` when that cannot be, or nobody
    /// waits for the return any more.
    fn event(
        &self,
        vcpu: usize,
        (nanos, guest_nanos): (u64, Option<u64>),
        record: &Record,
        rate: Rate,
    ) -> Option<Event> {
        let (capture, mut captured) = (&self.probe.plan.capture, Vec::new());
        let (rip, what) = match self.work.calls {
            None => (self.at, What::Hit { args: record.args }),
            Some(_) if self.probe.is_retired() => return None,
            Some(_) => {
                let Returned { value, began, back } = record.returned();
                let duration = Nanos(rate.duration(record.ticks.saturating_sub(began)));
                (back, What::Return { value, duration })
            }
        };
        let is_its = self.work.replay(
            capture,
            record,
            RecordedAt { rip, slide: self.slide, cpu: vcpu },
            &mut captured,
        );
        is_its.then(|| Event {
            nanos,
            guest_nanos,
            vcpu,
            probe: self.probe.told_as,
            rip,
            what,
            task: Some(record.task),
            captured: Captured::new(captured, Some(self.probe.plan.clone())),
            stack: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::memory::PhysMemory;

    #[test]
    fn what_is_not_read_in_the_end_was_dropped_or_never_finished() {
        let ram = Arc::new(GuestRam::new(2 << 20).unwrap());
        for (table, count) in [(layout::HITS, 5u64), (layout::DROPS, 2)] {
            ram.write(reserved::DATA.add(table + 8 * 3), &count.to_le_bytes()).unwrap();
        }
        let mut detours = DetourRings::new(ram, 1, RingEnds::new(1));
        let missed = |detours: &DetourRings, is_recorded| {
            let missed = detours.missed(ProbeId(3), is_recorded);
            (missed.full, missed.unfinished)
        };
        assert_eq!(missed(&detours, true), (2, 0), "they may come yet");
        detours.close(&HashMap::new());
        assert_eq!(missed(&detours, true), (2, 3));
        assert_eq!(missed(&detours, false), (0, 0), "nobody wants to read them");
    }
}
