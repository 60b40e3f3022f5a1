//! The order in which tasks came to probes, imposed on them again.
//!
//! Each hit of the order is a turn. A task whose turn has not come waits in front of the probe, until those before it have taken theirs, or
//! until its time is over: then the order is lost from there on, and all go on. The order of one task's own hits is its program's.

use crate::addr::Gva;
use crate::linux::task::{COMM, Context, Task};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// So many tasks are known: a guest may have no end of them.
const MOST_TASKS: usize = 1 << 16;

/// By what a task is known in all runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TaskKey {
    /// Its name at its first hit; of the kernel's workers, that of their [group](name_in_all_runs).
    pub comm: [u8; COMM],
    /// The probe of that hit.
    pub probe: u32,
    /// How many of that name had their first hit there before.
    pub before: u32,
}

/// A hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// The number of its probe.
    pub probe: u32,
    /// The place of its task in [`ObservedTurns::tasks`].
    pub task: u32,
}

/// An order that was observed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ObservedTurns {
    /// The tasks that came.
    pub tasks: Vec<TaskKey>,
    /// Their hits.
    pub turns: Vec<Turn>,
}

/// The name of a task as it is in all runs: which of the kernel's workers does some work is chance, so that the number of one
/// behind its group's (`kworker/u4:1`, kernel/workqueue.c) is left out.
#[must_use]
pub fn name_in_all_runs(comm: [u8; COMM]) -> [u8; COMM] {
    let mut name = comm;
    if let Some(number) = comm.iter().position(|byte| *byte == b':').filter(|_| comm.starts_with(b"kworker/"))
    {
        name.iter_mut().skip(number).for_each(|byte| *byte = 0);
    }
    name
}

/// Gives tasks their keys.
#[derive(Debug, Default)]
pub struct KnownTasks {
    /// Each task, by what tells it from others in one run.
    known: HashMap<(Gva, u32), TaskKey>,
    first: BTreeMap<([u8; COMM], u32), u32>,
}

impl KnownTasks {
    /// The key of a task that comes to a probe; `None` where there are too many.
    pub fn key(&mut self, probe: u32, task: &Task) -> Option<TaskKey> {
        if let Some(known) = self.known.get(&(task.at, task.pid)) {
            return Some(*known);
        }
        if self.known.len() == MOST_TASKS {
            return None;
        }
        let comm = name_in_all_runs(task.comm);
        let count = self.first.entry((comm, probe)).or_default();
        let key = TaskKey { comm, probe, before: *count };
        *count = count.saturating_add(1);
        self.known.insert((task.at, task.pid), key);
        Some(key)
    }
}

impl ObservedTurns {
    /// The task came to the probe.
    pub fn push(&mut self, known: &mut KnownTasks, probe: u32, task: &Task) {
        let Some(key) = known.key(probe, task) else { return };
        let place = self.tasks.iter().position(|known| *known == key).unwrap_or_else(|| {
            self.tasks.push(key);
            self.tasks.len() - 1
        });
        self.turns.push(Turn { probe, task: place as u32 });
    }
}

/// What becomes of a task that has come to a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Come {
    /// It goes on, and so do the tasks of these numbers, which wait.
    Go(Vec<u32>),
    /// The task of this number waits until then.
    Wait {
        /// Its number.
        task: u32,
        /// When it comes once more at the latest, in ticks.
        deadline: u64,
    },
}

/// Why an order is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Loss {
    /// A task waited for this turn until its time was over.
    Overdue,
    /// Its task came to another probe.
    OtherProbe,
    /// More tasks wait than there is room for.
    TooManyWait,
    /// There are more tasks than are known.
    TooManyTasks,
}

/// What an imposed order came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnsReport {
    /// How many turns there are.
    pub turns: u64,
    /// How many of them were taken in order.
    pub taken: u64,
    /// Why no more were, if it is known. The turn behind those that were taken is the one that did not come.
    pub lost: Option<Loss>,
}

/// An order that is imposed.
#[derive(Debug)]
pub struct Turns {
    turns: Vec<Turn>,
    /// Which turns each task has yet to take, by their places.
    left: Vec<VecDeque<usize>>,
    numbers: BTreeMap<TaskKey, u32>,
    known: KnownTasks,
    /// How many turns were taken.
    taken: usize,
    /// The tasks that wait, and until when.
    waiting: BTreeMap<u32, u64>,
    lost: Option<Loss>,
}

impl Turns {
    /// Has `order` imposed. A turn of a task that it does not have is left out.
    #[must_use]
    pub fn new(order: ObservedTurns) -> Self {
        let ObservedTurns { tasks, mut turns } = order;
        let mut left = vec![VecDeque::new(); tasks.len()];
        turns.retain(|turn| (turn.task as usize) < tasks.len());
        for (place, turn) in turns.iter().enumerate() {
            if let Some(left) = left.get_mut(turn.task as usize) {
                left.push_back(place);
            }
        }
        let numbers = (0..).zip(tasks).map(|(number, key)| (key, number)).collect();
        let (known, waiting) = (KnownTasks::default(), BTreeMap::new());
        Self { turns, left, numbers, known, taken: 0, waiting, lost: None }
    }

    /// The task comes to the probe at `now`, and can wait for so many ticks. A task comes once more when it has waited.
    pub fn come(&mut self, probe: u32, task: Option<&Task>, now: u64, within: u64) -> Come {
        // Who has interrupted a task is not that task.
        let Some(task) = task.filter(|task| task.context == Context::Task) else {
            return Come::Go(Vec::new());
        };
        if self.lost.is_some() || self.taken == self.turns.len() {
            return Come::Go(Vec::new());
        }
        let Some(key) = self.known.key(probe, task) else { return self.lose(Loss::TooManyTasks) };
        let Some(number) = self.numbers.get(&key).copied() else { return Come::Go(Vec::new()) };
        let Some(left) = self.left.get_mut(number as usize) else { return Come::Go(Vec::new()) };
        let Some(place) = left.front().copied() else { return Come::Go(Vec::new()) };
        if self.turns.get(place).is_none_or(|turn| turn.probe != probe) {
            return self.lose(Loss::OtherProbe);
        }
        if place == self.taken {
            left.pop_front();
            self.taken += 1;
            self.waiting.remove(&number);
            let next = self.turns.get(self.taken).map(|turn| turn.task);
            return Come::Go(next.filter(|next| self.waiting.contains_key(next)).into_iter().collect());
        }
        let deadline = *self.waiting.entry(number).or_insert_with(|| now.saturating_add(within));
        match now < deadline {
            true => Come::Wait { task: number, deadline },
            false => self.lose(Loss::Overdue),
        }
    }

    /// The order is lost: nobody waits any more.
    pub fn lose(&mut self, why: Loss) -> Come {
        self.lost.get_or_insert(why);
        Come::Go(std::mem::take(&mut self.waiting).into_keys().collect())
    }

    /// What it has come to.
    #[must_use]
    pub fn report(&self) -> TurnsReport {
        TurnsReport { turns: self.turns.len() as u64, taken: self.taken as u64, lost: self.lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(at: u64, name: &[u8]) -> Task {
        let mut comm = [0; COMM];
        comm[..name.len()].copy_from_slice(name);
        let context = Context::default();
        Task { at: Gva(at), pid: at as u32, tgid: 1, ns_pid: None, uid: None, context, comm }
    }

    /// The order of these hits, each a probe and a task.
    fn observed(hits: &[(u32, &Task)]) -> ObservedTurns {
        let (mut known, mut order) = (KnownTasks::default(), ObservedTurns::default());
        for (probe, task) in hits {
            order.push(&mut known, *probe, task);
        }
        order
    }

    const GO: Come = Come::Go(Vec::new());

    #[test]
    fn a_task_waits_for_the_turns_before_its_own() {
        let (a, b) = (task(8, b"sh"), task(16, b"sh"));
        let mut turns = Turns::new(observed(&[(1, &a), (2, &b), (1, &a)]));
        // They are others in this run.
        let (a, b) = (task(80, b"sh"), task(48, b"sh"));
        assert_eq!(turns.come(2, Some(&b), 10, 100), Come::Wait { task: 1, deadline: 110 });
        assert_eq!(turns.come(2, Some(&b), 20, 100), Come::Wait { task: 1, deadline: 110 });
        assert_eq!(turns.come(1, Some(&a), 30, 100), Come::Go(vec![1]));
        assert_eq!(turns.come(1, Some(&a), 31, 100), Come::Wait { task: 0, deadline: 131 });
        assert_eq!(turns.come(2, Some(&b), 40, 100), Come::Go(vec![0]));
        assert_eq!(turns.come(1, Some(&a), 50, 100), GO);
        assert_eq!(turns.report(), TurnsReport { turns: 3, taken: 3, lost: None });
        assert_eq!(turns.come(1, Some(&a), 60, 100), GO, "what comes behind the order is free");
    }

    #[test]
    fn an_order_is_lost_and_nobody_waits() {
        let tasks = [task(8, b"a"), task(16, b"b"), task(24, b"c")];
        let [a, b, c] = &tasks;
        let order = || Turns::new(observed(&[(1, a), (1, b), (1, c)]));
        let mut turns = order();
        assert!(matches!(turns.come(1, Some(b), 0, 10), Come::Wait { .. }));
        assert!(matches!(turns.come(1, Some(c), 5, 10), Come::Wait { .. }));
        assert_eq!(turns.come(1, Some(b), 10, 10), Come::Go(vec![1, 2]));
        assert_eq!(turns.report(), TurnsReport { turns: 3, taken: 0, lost: Some(Loss::Overdue) });
        assert_eq!(turns.come(1, Some(c), 11, 10), GO);
        // A task goes another way.
        let mut turns = order();
        assert_eq!(turns.come(1, Some(a), 0, 10), GO);
        let mut turns = Turns::new(observed(&[(1, a), (2, a), (1, b)]));
        assert_eq!(turns.come(1, Some(a), 0, 10), GO);
        assert_eq!(turns.come(3, Some(a), 0, 10), GO);
        assert_eq!(turns.report().lost, Some(Loss::OtherProbe));
        let mut turns = order();
        assert!(matches!(turns.come(1, Some(c), 0, 10), Come::Wait { .. }));
        assert_eq!(turns.lose(Loss::TooManyWait), Come::Go(vec![2]));
    }

    #[test]
    fn who_has_no_turn_goes_on() {
        let (a, b) = (task(8, b"a"), task(16, b"b"));
        let mut turns = Turns::new(observed(&[(1, &a), (1, &b)]));
        let interrupt = Task { context: Context::HardIrq, ..b };
        for other in [None, Some(&task(24, b"x")), Some(&interrupt)] {
            assert_eq!(turns.come(1, other, 0, 10), GO);
        }
        // One that first comes to another probe is another task.
        assert_eq!(turns.come(2, Some(&b), 0, 10), GO);
        assert_eq!(turns.report().taken, 0);
    }

    #[test]
    fn tasks_of_one_name_are_told_by_their_first_probes_and_then_by_who_comes_first() {
        let [a, b, c] = [8, 16, 24].map(|at| task(at, b"sh"));
        let order = observed(&[(1, &a), (1, &b), (2, &c), (2, &a)]);
        let keys: Vec<_> = order.tasks.iter().map(|key| (key.probe, key.before)).collect();
        assert_eq!(keys, [(1, 0), (1, 1), (2, 0)]);
        let mut known = KnownTasks::default();
        for at in 0..MOST_TASKS as u64 {
            assert!(known.key(1, &task(at, b"sh")).is_some());
        }
        assert_eq!(known.key(1, &task(1 << 40, b"sh")), None);
    }

    #[test]
    fn a_worker_of_the_kernels_is_any_of_its_group() {
        let (before, now) = (task(8, b"kworker/u4:0"), task(16, b"kworker/u4:11"));
        let mut turns = Turns::new(observed(&[(1, &before), (1, &before)]));
        assert_eq!(turns.come(1, Some(&now), 0, 10), GO);
        assert_eq!(turns.come(1, Some(&now), 1, 10), GO);
        assert_eq!(turns.report().taken, 2);
        let name = |name| name_in_all_runs(task(8, name).comm);
        assert_eq!(name(b"kworker/0:2"), task(8, b"kworker/0").comm);
        assert_eq!(name(b"a:1"), task(8, b"a:1").comm);
    }

    #[test]
    fn an_order_that_makes_no_sense_is_none() {
        let mut turns =
            Turns::new(ObservedTurns { tasks: Vec::new(), turns: vec![Turn { probe: 1, task: 7 }] });
        assert_eq!(turns.come(1, Some(&task(8, b"a")), 0, 10), GO);
        assert_eq!(turns.report().turns, 0);
    }
}
