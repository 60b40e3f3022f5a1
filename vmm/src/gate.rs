//! Where one CPU of the guest is held until another one opens.

use probe_engine::linux::task::Task;
use probe_engine::probe::pace::GateId;
use probe_engine::probe::table::ProbeId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// No vCPU is held longer: Linux takes a CPU for dead that does nothing for 20 s (`watchdog_thresh`) or 21 s
/// (`rcu_cpu_stall_timeout`).
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Nobody is held.
const FREE: u64 = 0;
/// The CPU of the other bits may go on.
const OPENED: u64 = 1 << 63;

/// Holds one CPU at a time. Nobody waits for a lock here.
#[derive(Debug)]
pub(crate) struct Gate {
    id: GateId,
    /// [`FREE`], the number of the vCPU that is held, plus one, or [`OPENED`] and that of the vCPU that has opened.
    state: AtomicU64,
    reached: AtomicU64,
    timed_out: AtomicU64,
    entered: AtomicU64,
    passed: AtomicU64,
}

/// A vCPU was held.
#[derive(Debug, Clone, Copy)]
pub struct HeldVcpu {
    pub(crate) gate: GateId,
    /// The probe that holds.
    pub(crate) probe: ProbeId,
    pub(crate) vcpu: usize,
    pub(crate) task: Option<Task>,
    /// Since when and until when, in ticks.
    pub(crate) ticks: (u64, u64),
    /// Which vCPU has opened the gate.
    pub(crate) by: Option<usize>,
}

/// What a gate came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateReport {
    /// Its number.
    pub gate: GateId,
    /// How often the CPU that was held went on because another one had opened the gate.
    pub reached: u64,
    /// How often its time was over first.
    pub timed_out: u64,
    /// How often the guest ended first.
    pub unfinished: u64,
    /// How many CPUs passed because another one was held.
    pub passed: u64,
}

impl Gate {
    pub(crate) fn new(id: GateId) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            id,
            state: AtomicU64::new(FREE),
            reached: zero(),
            timed_out: zero(),
            entered: zero(),
            passed: zero(),
        }
    }

    pub(crate) fn id(&self) -> GateId {
        self.id
    }

    /// Has `vcpu` held from now on. Returns false when another one is.
    pub(crate) fn enter(&self, vcpu: usize) -> bool {
        let held = vcpu as u64 + 1;
        let is_held = self.state.compare_exchange(FREE, held, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if is_held { &self.entered } else { &self.passed }.fetch_add(1, Ordering::Relaxed);
        is_held
    }

    /// Lets the one go on that is held, if `vcpu` is another one.
    pub(crate) fn open(&self, vcpu: usize) {
        let held = self.state.load(Ordering::Acquire);
        if held != FREE && held & OPENED == 0 && held != vcpu as u64 + 1 {
            let opened = OPENED | (vcpu as u64 + 1);
            // Otherwise its time was over just now, or another one has opened.
            let _ = self.state.compare_exchange(held, opened, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Whether the one that is held may go on.
    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::Acquire) & OPENED != 0
    }

    /// The one that was held goes on: which vCPU has opened, or `None` when nobody has.
    pub(crate) fn leave(&self) -> Option<usize> {
        let state = self.state.swap(FREE, Ordering::AcqRel);
        let by = (state & OPENED != 0).then(|| (state & !OPENED) as usize - 1);
        if by.is_some() { &self.reached } else { &self.timed_out }.fetch_add(1, Ordering::Relaxed);
        by
    }

    pub(crate) fn report(&self) -> GateReport {
        let [reached, timed_out, entered, passed] =
            [&self.reached, &self.timed_out, &self.entered, &self.passed]
                .map(|count| count.load(Ordering::Relaxed));
        let unfinished = entered.saturating_sub(reached).saturating_sub(timed_out);
        GateReport { gate: self.id, reached, timed_out, unfinished, passed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(reached: u64, timed_out: u64, unfinished: u64, passed: u64) -> GateReport {
        GateReport { gate: GateId(3), reached, timed_out, unfinished, passed }
    }

    #[test]
    fn another_cpu_opens_for_the_one_that_is_held() {
        let gate = Gate::new(GateId(3));
        gate.open(1);
        assert!(!gate.is_open(), "nobody was held");
        assert!(gate.enter(0));
        gate.open(0);
        assert!(!gate.is_open(), "nobody opens for itself");
        assert!(!gate.enter(2), "one is held at a time");
        gate.open(1);
        gate.open(2);
        assert!(gate.is_open());
        assert_eq!(gate.leave(), Some(1));
        assert_eq!(gate.report(), report(1, 0, 0, 1));
    }

    #[test]
    fn time_may_be_over_first_and_so_may_the_guest() {
        let gate = Gate::new(GateId(3));
        assert!(gate.enter(5));
        assert_eq!(gate.leave(), None);
        assert!(gate.enter(5));
        assert_eq!(gate.report(), report(0, 1, 1, 0));
    }

    #[test]
    fn each_opening_lets_one_go_on() {
        const ROUNDS: u64 = 2_000;
        let gate = Gate::new(GateId(3));
        std::thread::scope(|scope| {
            for vcpu in 0..2 {
                let gate = &gate;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        if gate.enter(vcpu) {
                            for _ in 0..50 {
                                if gate.is_open() {
                                    break;
                                }
                                std::hint::spin_loop();
                            }
                            assert_ne!(gate.leave(), Some(vcpu));
                        } else {
                            gate.open(vcpu);
                        }
                    }
                });
            }
        });
        let GateReport { reached, timed_out, unfinished, passed, .. } = gate.report();
        assert_eq!((reached + timed_out + passed, unfinished), (2 * ROUNDS, 0));
    }
}
