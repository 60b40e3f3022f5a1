//! Tasks that are held: those whose time is over go on, and the sink is told what became of each.

use super::control::Control;
use super::report::{Held, HoldEnd};
use crate::clock;
use crate::gate::HeldTask;

impl Control<'_> {
    /// Has those go on whose time is over.
    pub(super) fn end_holds(&mut self) {
        let now = clock::ticks();
        let gates = self.registry.known_gates();
        if !gates.0.values().any(|gate| gate.is_overdue(now)) {
            return;
        }
        let parked = self.world.park(|id| self.threads.kick(id));
        let stands = self.stands(&parked.positions(), &self.world.tables());
        // Until the guest stood still, one may have gone on, and another one may have come.
        for gate in gates.0.values() {
            if gate.give_up(now, &self.ram) {
                self.holds.stands.insert(gate.id(), stands.clone());
            }
        }
    }

    /// Keeps what became of `held` until all is handed on that comes before.
    pub(super) fn note_held(&mut self, held: HeldTask) {
        let HeldTask { gate, probe, vcpu, task, begun, ended, by, mode, .. } = held;
        let stands = self.holds.stands.remove(&gate).unwrap_or_default();
        // What became of an order is told in the end.
        if gate.is_of_turns() {
            return;
        }
        let rate = self.clock.rate();
        let held = Held {
            gate,
            probe,
            vcpu,
            task,
            nanos: rate.nanos(begun),
            guest_nanos: self.reader.guest_nanos(begun),
            waited: rate.duration(ended.saturating_sub(begun)),
            mode,
            end: by.map_or(HoldEnd::TimedOut(stands), |by| HoldEnd::Opened { by }),
        };
        self.holds.ended.push(held);
    }

    /// Hands on what became of tasks that were held.
    pub(super) fn hand_on_held(&mut self) {
        let sink = &mut self.sink;
        self.holds.ended.drain(..).for_each(|held| sink.held(&held));
    }
}
