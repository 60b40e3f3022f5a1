//! Tasks that are held: those whose time is over go on, and the sink is told what became of each.

use super::control::Control;
use super::report::{Held, HeldNow, HoldEnd};
use crate::clock;
use crate::gate::{HeldTask, WentOn};
use probe_engine::probe::pace::GateId;

impl Control<'_> {
    /// Has those go on whose time is over.
    pub(super) fn end_holds(&mut self) {
        // Nobody comes to a gate while all stand still.
        if self.paused.is_some() {
            return;
        }
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

    /// The tasks that are held now, but for those that wait for their turn.
    pub(super) fn held(&self) -> Vec<HeldNow> {
        let (now, rate) = (clock::ticks(), self.clock.rate());
        let gates = self.registry.known_gates();
        let held = gates.0.values().filter(|gate| !gate.id().is_of_turns()).filter_map(|gate| gate.held());
        let held = held.map(|HeldTask { gate, probe, vcpu, task, begun, .. }| HeldNow {
            gate,
            probe,
            vcpu,
            task,
            waited: rate.duration(now.saturating_sub(begun)),
        });
        held.collect()
    }

    /// Lets the task go on that is held at `gate`, or all but those that wait for their turn. Gives how many these were.
    pub(super) fn release(&self, gate: Option<GateId>) -> usize {
        let gates = self.registry.known_gates();
        let own = gates.0.values().filter(|own| !own.id().is_of_turns());
        own.filter(|own| gate.is_none_or(|gate| gate == own.id()) && own.release(&self.ram)).count()
    }

    /// Keeps what became of `held` until all is handed on that comes before.
    pub(super) fn note_held(&mut self, held: HeldTask) {
        let HeldTask { gate, probe, vcpu, task, begun, ended, why, mode, .. } = held;
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
            end: match why {
                WentOn::Opened(by) => HoldEnd::Opened { by },
                WentOn::Released => HoldEnd::Released,
                WentOn::Overdue => HoldEnd::TimedOut(stands),
            },
        };
        self.holds.ended.push(held);
    }

    /// Hands on what became of tasks that were held.
    pub(super) fn hand_on_held(&mut self) {
        let sink = &mut self.sink;
        self.holds.ended.drain(..).for_each(|held| sink.held(&held));
    }
}
