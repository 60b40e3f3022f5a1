//! An order that is imposed on the guest's tasks: who comes before its turn waits at a gate of its own.

use crate::gate::{Gate, HeldTask, WentOn};
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::linux::task::Task;
use probe_engine::probe::pace::{GateId, HoldMode};
use probe_engine::probe::table::ProbeId;
use probe_engine::probe::turns::{Come, Loss, ObservedTurns, Turns, TurnsReport};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// So many tasks wait at a time.
const MOST_WAITING: u32 = 32;

/// An order that is imposed. Its hits take a lock, as those of no other probe: they may have to wait anyway.
#[derive(Debug)]
pub(crate) struct ImposedOrder {
    gates: Vec<Arc<Gate>>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    turns: Turns,
    /// At which gate each task is that waits, by their places.
    at: BTreeMap<u32, usize>,
}

/// A hit, as it is asked whether its turn has come.
pub(crate) struct Coming {
    pub(crate) probe: ProbeId,
    pub(crate) vcpu: usize,
    pub(crate) task: Option<Task>,
    /// How many ticks it can wait.
    pub(crate) within: u64,
    /// The nop at which it was counted just before (GVA), if it was at one.
    pub(crate) counted_at: Option<Gva>,
}

/// What becomes of it.
pub(crate) enum Came {
    /// It goes on, and is a hit at this time, in ticks: behind those before it in the order.
    Goes(u64),
    /// It is held at this gate from now on.
    Waits(Arc<Gate>),
}

impl ImposedOrder {
    pub(crate) fn new(order: ObservedTurns) -> Self {
        let gates = (0..MOST_WAITING).map(|number| Arc::new(Gate::new(GateId::of_turns(number)))).collect();
        let waiting = Waiting { turns: Turns::new(order), at: BTreeMap::new() };
        Self { gates, waiting: Mutex::new(waiting) }
    }

    pub(crate) fn gates(&self) -> &[Arc<Gate>] {
        &self.gates
    }

    /// A task has come to a probe. `now` tells the time, in ticks.
    pub(crate) fn come(&self, coming: &Coming, now: impl FnOnce() -> u64, ram: &GuestRam) -> Came {
        let Coming { probe, vcpu, task, within, counted_at } = coming;
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let now = now();
        let mut come = waiting.turns.come(probe.0, task.as_ref(), now, *within);
        if let Come::Wait { task: number, deadline } = come {
            let held = HeldTask {
                gate: GateId::of_turns(0),
                probe: *probe,
                vcpu: *vcpu,
                task: *task,
                begun: now,
                ended: now,
                why: WentOn::Overdue,
                counted_at: *counted_at,
                mode: HoldMode::Cpu,
            };
            // It is there before anyone can have it go on.
            let mut gates = self.gates.iter().enumerate();
            let free = gates.find(|(_, gate)| gate.enter(HeldTask { gate: gate.id(), ..held }, deadline));
            if let Some((place, gate)) = free {
                waiting.at.insert(number, place);
                return Came::Waits(gate.clone());
            }
            come = waiting.turns.lose(Loss::TooManyWait);
        }
        if let Come::Go(next) = come {
            for number in next {
                let gate = waiting.at.remove(&number).and_then(|at| self.gates.get(at));
                if let Some(gate) = gate {
                    gate.open(*vcpu, task.as_ref(), ram);
                }
            }
        }
        Came::Goes(now)
    }

    pub(crate) fn report(&self) -> TurnsReport {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).turns.report()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::probe::turns::KnownTasks;

    fn task(at: u64) -> Task {
        let (context, comm) = (Default::default(), *b"sh\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        Task { at: Gva(at), pid: at as u32, tgid: 1, ns_pid: None, uid: None, context, comm }
    }

    /// The task at `at` comes to the probe of its number: the gate at which it waits, if it does.
    fn come(order: &ImposedOrder, probe: u32, at: u64, now: u64, ram: &GuestRam) -> Option<Arc<Gate>> {
        let (vcpu, task) = (at as usize, Some(task(at)));
        let coming = Coming { probe: ProbeId(probe), vcpu, task, within: 100, counted_at: None };
        match order.come(&coming, || now, ram) {
            Came::Goes(ticks) => {
                assert_eq!(ticks, now);
                None
            }
            Came::Waits(gate) => Some(gate),
        }
    }

    fn order(hits: &[(u32, u64)]) -> ImposedOrder {
        let (mut known, mut order) = (KnownTasks::default(), ObservedTurns::default());
        hits.iter().for_each(|(probe, at)| order.push(&mut known, *probe, &task(*at)));
        ImposedOrder::new(order)
    }

    #[test]
    fn who_is_early_waits_at_a_gate_until_its_turn() {
        let ram = GuestRam::new(1 << 20).unwrap();
        let order = order(&[(1, 8), (2, 16), (3, 24)]);
        let third = come(&order, 3, 24, 10, &ram).unwrap();
        let second = come(&order, 2, 16, 10, &ram).unwrap();
        assert!(!Arc::ptr_eq(&second, &third));
        assert!(come(&order, 1, 8, 20, &ram).is_none());
        assert!(second.is_open() && !third.is_open());
        assert!(second.leave(21, &ram).is_some());
        assert!(come(&order, 2, 16, 22, &ram).is_none() && third.is_open());
        assert!(third.leave(23, &ram).is_some() && come(&order, 3, 24, 24, &ram).is_none());
        assert_eq!(order.report(), TurnsReport { turns: 3, taken: 3, lost: None });
    }

    #[test]
    fn whose_time_is_over_lets_all_go_on() {
        let ram = GuestRam::new(1 << 20).unwrap();
        let order = order(&[(1, 8), (2, 16), (3, 24)]);
        let third = come(&order, 3, 24, 50, &ram).unwrap();
        let second = come(&order, 2, 16, 10, &ram).unwrap();
        assert!(second.give_up(110, &ram) && second.leave(110, &ram).is_some());
        assert!(come(&order, 2, 16, 110, &ram).is_none() && third.is_open());
        assert_eq!(order.report().lost, Some(Loss::Overdue));
    }

    #[test]
    fn more_tasks_than_there_is_room_for_do_not_wait() {
        let ram = GuestRam::new(1 << 20).unwrap();
        let tasks = u64::from(MOST_WAITING) + 2;
        let order = order(&(0..tasks).map(|task| (task as u32, 8 * task + 8)).collect::<Vec<_>>());
        let waits = (1..tasks).filter(|task| come(&order, *task as u32, 8 * task + 8, 1, &ram).is_some());
        assert_eq!(waits.count(), MOST_WAITING as usize);
        assert_eq!(order.report().lost, Some(Loss::TooManyWait));
    }
}
