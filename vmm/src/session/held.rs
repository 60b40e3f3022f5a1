//! What became of CPUs that were held, on the way to the sink.

use super::control::Control;
use super::report::{Held, HoldEnd, Stood};
use crate::gate::HeldVcpu;

impl Control<'_> {
    /// Keeps what became of `held` until all is handed on that comes before.
    pub(super) fn note_held(&mut self, held: HeldVcpu, stands: Vec<Stood>) {
        let HeldVcpu { gate, probe, vcpu, task, ticks: (begun, ended), by } = held;
        let rate = self.clock.rate();
        let held = Held {
            gate,
            probe,
            vcpu,
            task,
            nanos: rate.nanos(begun),
            guest_nanos: self.reader.guest_nanos(begun),
            waited: rate.duration(ended.saturating_sub(begun)),
            end: by.map_or(HoldEnd::TimedOut(stands), |by| HoldEnd::Opened { by }),
        };
        self.held.push(held);
    }

    /// Hands on what became of CPUs that were held.
    pub(super) fn hand_on_held(&mut self) {
        let sink = &mut self.sink;
        self.held.drain(..).for_each(|held| sink.held(&held));
    }
}
