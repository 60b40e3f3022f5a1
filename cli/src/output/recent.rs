//! The flight recorder: of each CPU of the guest the last hits are kept, until something happens that they may explain.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use vmm::events::Event;

/// Hits are held back so long for a report that was about to begin.
const HELD: Duration = Duration::from_secs(2);

/// Keeps hits.
pub(super) struct FlightRecorder {
    most: usize,
    cpus: Vec<CpuHits>,
    /// When a report was about to begin, whose text is not there yet.
    began: Option<Instant>,
}

/// Those of one CPU.
#[derive(Default)]
struct CpuHits {
    /// Up to when a report was about to begin, where one was.
    before: VecDeque<Event>,
    /// Since then.
    since: VecDeque<Event>,
}

impl FlightRecorder {
    /// Of each CPU, `most` hits are kept.
    pub(super) fn new(most: u16) -> Self {
        Self { most: usize::from(most), cpus: Vec::new(), began: None }
    }

    /// A hit has come.
    pub(super) fn push(&mut self, event: &Event) {
        if self.cpus.len() <= event.vcpu {
            // A guest has few CPUs.
            self.cpus.resize_with(event.vcpu + 1, CpuHits::default);
        }
        let is_held = self.began.is_some();
        if let Some(hits) = self.cpus.get_mut(event.vcpu) {
            let kept = if is_held { &mut hits.since } else { &mut hits.before };
            kept.push_back(event.clone());
            keep_last(kept, self.most);
        }
    }

    /// A report is about to begin: what came before it is not pushed out by what comes until it can be read. One report has several
    /// such moments, of which the first one counts.
    pub(super) fn hold(&mut self, now: Instant) {
        if self.began.is_none_or(|began| now.saturating_duration_since(began) > HELD) {
            self.release();
            self.began = Some(now);
        }
    }

    /// Gives the last hits of each CPU up to `until`, by the guest's clock, in the order of time. They are not given again.
    pub(super) fn take(&mut self, until: u64) -> Vec<Event> {
        let mut taken = Vec::new();
        for CpuHits { before, since } in &mut self.cpus {
            let is_before = |event: &Event| event.guest_nanos.is_none_or(|nanos| nanos <= until);
            let (mut own, later): (VecDeque<_>, VecDeque<_>) =
                before.drain(..).chain(since.drain(..)).partition(is_before);
            keep_last(&mut own, self.most);
            taken.extend(own);
            *before = later;
        }
        self.began = None;
        taken.sort_by_key(|event| event.nanos);
        taken
    }

    fn release(&mut self) {
        for CpuHits { before, since } in &mut self.cpus {
            before.append(since);
            keep_last(before, self.most);
        }
        self.began = None;
    }
}

fn keep_last(hits: &mut VecDeque<Event>, most: usize) {
    let more = hits.len().saturating_sub(most);
    hits.drain(..more);
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::probe::table::ProbeId;
    use vmm::events::{Captured, What};

    fn hit(vcpu: usize, nanos: u64) -> Event {
        Event {
            nanos,
            guest_nanos: Some(nanos),
            vcpu,
            probe: ProbeId(0),
            rip: Gva(0),
            what: What::Hit { args: [0; 6] },
            task: None,
            captured: Captured::NONE,
            stack: None,
        }
    }

    fn times(hits: Vec<Event>) -> Vec<u64> {
        hits.iter().map(|hit| hit.nanos).collect()
    }

    #[test]
    fn the_last_hits_of_each_cpu_are_given_in_order_and_once() {
        let mut recorder = FlightRecorder::new(2);
        [(0, 1), (1, 2), (0, 3), (0, 4), (0, 6)].iter().for_each(|(cpu, at)| recorder.push(&hit(*cpu, *at)));
        assert_eq!(times(recorder.take(5)), [2, 4]);
        assert!(recorder.take(5).is_empty());
        assert_eq!(times(recorder.take(9)), [6]);
    }

    #[test]
    fn what_comes_while_a_report_is_written_pushes_nothing_out() {
        let (mut recorder, now) = (FlightRecorder::new(2), Instant::now());
        (1..=3).for_each(|at| recorder.push(&hit(0, at)));
        recorder.hold(now);
        (4..=9).for_each(|at| recorder.push(&hit(0, at)));
        // The same report, a bit later.
        recorder.hold(now + HELD / 2);
        (10..=19).for_each(|at| recorder.push(&hit(0, at)));
        assert_eq!(times(recorder.take(3)), [2, 3]);
        // No report came of it.
        recorder.hold(now);
        recorder.hold(now + HELD * 2);
        recorder.push(&hit(0, 20));
        assert_eq!(times(recorder.take(19)), [18, 19]);
    }
}
