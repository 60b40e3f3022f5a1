//! Hits of rules that repeat an earlier one, and are counted instead of being told.

use probe_engine::probe::table::ProbeId;
use probe_engine::request::{Repeats, RepeatsOf, Rule};
use std::collections::{BTreeMap, HashMap};
use vmm::events::Event;

/// So many hits are remembered. When there are more, none is any longer, and each is told once more.
const MOST_REMEMBERED: usize = 4096;

/// What tells a hit from others: whose it is, and what was read.
#[derive(PartialEq, Eq, Hash)]
struct SeenHit {
    probe: u32,
    of: u32,
    values: Box<[u8]>,
}

/// The hits that were told, as far as rules limit them.
#[derive(Default)]
pub(super) struct RuleRepeats {
    /// When each was told last, in nanoseconds since the start.
    told: HashMap<SeenHit, u64>,
    /// How many were not, of each probe.
    untold: BTreeMap<ProbeId, u64>,
}

impl RuleRepeats {
    /// Whether `event` is told, which is a hit of a probe that `rule` has.
    pub(super) fn tells(&mut self, event: &Event, rule: &Rule) -> bool {
        let Some(Repeats { within, of }) = rule.repeats else { return true };
        let of = match of {
            RepeatsOf::Thread => event.task.map(|task| task.pid),
            RepeatsOf::Process => event.task.map(|task| task.tgid),
            RepeatsOf::Guest => None,
        };
        let values = (*event.captured).into();
        let hit = SeenHit { probe: event.probe.0, of: of.unwrap_or_default(), values };
        let within = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        if self.told.get(&hit).is_some_and(|told| event.nanos.saturating_sub(*told) < within) {
            *self.untold.entry(event.probe).or_default() += 1;
            return false;
        }
        if self.told.len() >= MOST_REMEMBERED {
            self.told.clear();
        }
        self.told.insert(hit, event.nanos);
        true
    }

    /// How many hits of each probe were not told.
    pub(super) fn untold(&self) -> impl Iterator<Item = (ProbeId, u64)> {
        self.untold.iter().map(|(probe, count)| (*probe, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::linux::task::{Context, Task};
    use std::time::Duration;
    use vmm::events::{Captured, What};

    fn hit(nanos: u64, pid: u32, probe: u32) -> Event {
        let task =
            Task { at: Gva(0), pid, tgid: 1, ns_pid: None, uid: None, context: Context::Task, comm: [0; 16] };
        Event {
            nanos,
            guest_nanos: None,
            vcpu: 0,
            probe: ProbeId(probe),
            rip: Gva(0),
            what: What::Hit { args: [0; 6] },
            task: Some(task),
            captured: Captured::NONE,
            stack: None,
        }
    }

    #[test]
    fn a_hit_that_repeats_another_one_is_counted_for_a_time() {
        let within = Duration::from_nanos(10);
        let rule = |of| Rule {
            name: "a".to_owned(),
            message: None,
            tags: Vec::new(),
            repeats: Some(Repeats { within, of }),
        };
        let told = |of| {
            let mut repeats = RuleRepeats::default();
            let rule = rule(of);
            let hits = [hit(0, 1, 0), hit(5, 1, 0), hit(6, 2, 0), hit(7, 1, 1), hit(10, 1, 0), hit(11, 1, 0)];
            let told = hits.map(|hit| repeats.tells(&hit, &rule));
            (told, repeats.untold().collect::<Vec<_>>())
        };
        let (each, untold) = told(RepeatsOf::Thread);
        assert_eq!((each, untold), ([true, false, true, true, true, false], vec![(ProbeId(0), 2)]));
        assert_eq!(told(RepeatsOf::Process).0, [true, false, false, true, true, false]);
        assert_eq!(told(RepeatsOf::Guest).0, [true, false, false, true, true, false]);
        let mut unlimited = RuleRepeats::default();
        let plain = Rule { repeats: None, ..rule(RepeatsOf::Guest) };
        assert!((0..3).all(|nanos| unlimited.tells(&hit(nanos, 1, 0), &plain)));
    }

    #[test]
    fn what_is_remembered_has_an_end() {
        let mut repeats = RuleRepeats::default();
        let rule = Rule {
            name: String::new(),
            message: None,
            tags: Vec::new(),
            repeats: Some(Repeats { within: Duration::MAX, of: RepeatsOf::Thread }),
        };
        for pid in 0..3 * MOST_REMEMBERED as u32 {
            assert!(repeats.tells(&hit(0, pid, 0), &rule));
            assert!(repeats.told.len() <= MOST_REMEMBERED);
        }
    }
}
