//! Where one task of the guest is held until another one opens.

use crate::memory::GuestRam;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::gate::Form;
use probe_engine::linux::task::Task;
use probe_engine::probe::pace::{GateId, HoldMode};
use probe_engine::probe::table::ProbeId;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// Nobody is held longer: Linux takes a CPU for dead that does nothing for 20 s (`watchdog_thresh`) or 21 s
/// (`rcu_cpu_stall_timeout`).
pub const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// What [`Gate::state`] is: the number of a vCPU in its low bits, and one of these.
mod state {
    /// Nobody is held.
    pub(super) const FREE: u64 = 0;
    /// Someone is about to be held.
    pub(super) const TAKEN: u64 = 1 << 32;
    /// Who came on that vCPU is held.
    pub(super) const HELD: u64 = 2 << 32;
    /// That vCPU has opened.
    pub(super) const OPENED: u64 = 3 << 32;
    /// The time was over.
    pub(super) const OVERDUE: u64 = 4 << 32;
    /// Somebody outside has let it go.
    pub(super) const RELEASED: u64 = 5 << 32;
    /// One of the three, and the guest is being told.
    pub(super) const ENDING: u64 = 6 << 32;
    pub(super) const ALL: u64 = !0 << 32;
}

/// Holds one task at a time. Who opens it waits for nobody.
#[derive(Debug)]
pub(crate) struct Gate {
    id: GateId,
    state: AtomicU64,
    /// The `task_struct` of the one that is held, or 0.
    task: AtomicU64,
    /// When it goes on all the same, in ticks.
    deadline: AtomicU64,
    /// The codes at which it waits, once there is room for each.
    spins: OnceLock<GateCode>,
    yields: OnceLock<GateCode>,
    /// What is told of the one that is held. Only who is held locks it, and who puts it there.
    holding: Mutex<Option<HeldTask>>,
    reached: AtomicU64,
    timed_out: AtomicU64,
    released: AtomicU64,
    entered: AtomicU64,
    passed: AtomicU64,
}

/// The gates of a guest, by their numbers.
#[derive(Debug, Clone, Default)]
pub struct Gates(pub(crate) Arc<BTreeMap<GateId, Arc<Gate>>>);

/// Where the [code](probe_engine::gate) of a gate is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GateCode {
    pub(crate) form: Form,
    pub(crate) entry: Gva,
    pub(crate) memory: Gpa,
}

/// A task was held, or is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldTask {
    pub(crate) gate: GateId,
    /// The probe that holds.
    pub(crate) probe: ProbeId,
    /// The vCPU on which it came.
    pub(crate) vcpu: usize,
    pub(crate) task: Option<Task>,
    /// Since when, in ticks.
    pub(crate) begun: u64,
    /// Until when.
    pub(crate) ended: u64,
    /// Why it went on.
    pub(crate) why: WentOn,
    /// The nop at which it was counted just before (GVA), if it was at one.
    pub(crate) counted_at: Option<Gva>,
    /// What its vCPU does meanwhile.
    pub(crate) mode: HoldMode,
}

/// Why a task that was held went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WentOn {
    /// This vCPU has opened the gate.
    Opened(usize),
    /// Somebody outside has let it go.
    Released,
    /// Its time was over.
    Overdue,
}

/// What a gate came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GateReport {
    /// Its number.
    pub gate: GateId,
    /// How often the task that was held went on because another one had opened the gate.
    pub reached: u64,
    /// How often its time was over first.
    pub timed_out: u64,
    /// How often somebody outside has [let it go](crate::session::Handle::release) first.
    pub released: u64,
    /// How often the guest ended first.
    pub unfinished: u64,
    /// How many tasks passed because another one was held.
    pub passed: u64,
}

impl Gate {
    pub(crate) fn new(id: GateId) -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            id,
            state: AtomicU64::new(state::FREE),
            task: zero(),
            deadline: zero(),
            spins: OnceLock::new(),
            yields: OnceLock::new(),
            holding: Mutex::new(None),
            reached: zero(),
            timed_out: zero(),
            released: zero(),
            entered: zero(),
            passed: zero(),
        }
    }

    pub(crate) fn id(&self) -> GateId {
        self.id
    }

    fn place_of(&self, form: Form) -> &OnceLock<GateCode> {
        match form {
            Form::Spins => &self.spins,
            Form::Yields => &self.yields,
        }
    }

    /// The code of this form at which the guest waits, once there is such.
    pub(crate) fn code(&self, form: Form) -> Option<GateCode> {
        self.place_of(form).get().copied()
    }

    /// The codes that there are.
    pub(crate) fn codes(&self) -> impl Iterator<Item = GateCode> {
        [&self.spins, &self.yields].into_iter().filter_map(|code| code.get().copied())
    }

    /// That is the code of its form from now on.
    pub(crate) fn set_code(&self, code: GateCode) {
        let _ = self.place_of(code.form).set(code);
    }

    /// Has `held` held from now on until `deadline`, in ticks. Returns false when another one is.
    pub(crate) fn enter(&self, held: HeldTask, deadline: u64) -> bool {
        let number = held.vcpu as u64;
        let taken =
            self.state.compare_exchange(state::FREE, state::TAKEN, Ordering::AcqRel, Ordering::Relaxed);
        if taken.is_err() {
            self.passed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.entered.fetch_add(1, Ordering::Relaxed);
        self.task.store(held.task.map_or(0, |task| task.at.0), Ordering::Relaxed);
        self.deadline.store(deadline, Ordering::Relaxed);
        *self.holding.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
        self.state.store(state::HELD | number, Ordering::Release);
        true
    }

    /// Lets the one go on that is held, if `task`, which runs on `vcpu`, is another one.
    pub(crate) fn open(&self, vcpu: usize, task: Option<&Task>, ram: &GuestRam) {
        let held = self.state.load(Ordering::Acquire);
        if held & state::ALL != state::HELD {
            return;
        }
        let is_same = match (self.task.load(Ordering::Relaxed), task) {
            (0, _) | (_, None) => held & !state::ALL == vcpu as u64,
            (at, Some(task)) => task.at.0 == at,
        };
        if !is_same {
            self.end(held, state::OPENED | vcpu as u64, ram);
        }
    }

    /// Whether the time of the one that is held is over at `now`, in ticks.
    pub(crate) fn is_overdue(&self, now: u64) -> bool {
        let is_held = self.state.load(Ordering::Acquire) & state::ALL == state::HELD;
        is_held && now >= self.deadline.load(Ordering::Relaxed)
    }

    /// Gives the one that is held so many ticks more.
    pub(crate) fn postpone(&self, ticks: u64) {
        self.deadline.fetch_add(ticks, Ordering::Relaxed);
    }

    /// Lets the one go on that is held if its time is over at `now`, in ticks, and says whether that is so.
    pub(crate) fn give_up(&self, now: u64, ram: &GuestRam) -> bool {
        let held = self.state.load(Ordering::Acquire);
        self.is_overdue(now) && self.end(held, state::OVERDUE, ram)
    }

    /// Lets the one go on that is held, and says whether one is.
    pub(crate) fn release(&self, ram: &GuestRam) -> bool {
        let held = self.state.load(Ordering::Acquire);
        held & state::ALL == state::HELD && self.end(held, state::RELEASED, ram)
    }

    /// The one that is held now.
    pub(crate) fn held(&self) -> Option<HeldTask> {
        let is_held = self.state.load(Ordering::Acquire) & state::ALL == state::HELD;
        let holding = self.holding.lock().unwrap_or_else(PoisonError::into_inner);
        holding.filter(|_| is_held)
    }

    /// Ends the hold that `held` says, unless it has ended before, and says whether that is so.
    fn end(&self, held: u64, ended: u64, ram: &GuestRam) -> bool {
        let ending = self.state.compare_exchange(held, state::ENDING, Ordering::AcqRel, Ordering::Relaxed);
        if ending.is_ok() {
            self.say(1, ram);
            self.state.store(ended, Ordering::Release);
        }
        ending.is_ok()
    }

    /// Writes the bytes that the guest waits for.
    fn say(&self, byte: u8, ram: &GuestRam) {
        for code in self.codes() {
            // The memory of code was there when the code was written.
            let _ = ram.write_code(code.memory.add(code.form.opened()), &[byte]);
        }
    }

    /// Whether the one that is held may go on.
    pub(crate) fn is_open(&self) -> bool {
        const OPEN: [u64; 3] = [state::OPENED, state::OVERDUE, state::RELEASED];
        OPEN.contains(&(self.state.load(Ordering::Acquire) & state::ALL))
    }

    /// The one that was held goes on at `now`, in ticks: tells of it. `None` where nobody was.
    pub(crate) fn leave(&self, now: u64, ram: &GuestRam) -> Option<HeldTask> {
        let held = self.holding.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        // The task may see its byte before whoever writes all of them is done: what comes late would let the next one go.
        let mut ended = self.state.load(Ordering::Acquire);
        while ended & state::ALL == state::ENDING {
            thread::yield_now();
            ended = self.state.load(Ordering::Acquire);
        }
        let (why, count) = match ended & state::ALL {
            state::OPENED => (WentOn::Opened((ended & !state::ALL) as usize), &self.reached),
            state::RELEASED => (WentOn::Released, &self.released),
            _ => (WentOn::Overdue, &self.timed_out),
        };
        count.fetch_add(1, Ordering::Relaxed);
        // The next one may be there at once.
        self.say(0, ram);
        self.state.store(state::FREE, Ordering::Release);
        Some(HeldTask { ended: now, why, ..held })
    }

    /// The vCPU of the one that is held waits with it after all.
    pub(crate) fn stands(&self) {
        if let Some(held) = &mut *self.holding.lock().unwrap_or_else(PoisonError::into_inner) {
            held.mode = HoldMode::Cpu;
        }
    }

    pub(crate) fn report(&self) -> GateReport {
        let [reached, timed_out, released, entered, passed] =
            [&self.reached, &self.timed_out, &self.released, &self.entered, &self.passed]
                .map(|count| count.load(Ordering::Relaxed));
        let unfinished = entered.saturating_sub(reached + timed_out + released);
        GateReport { gate: self.id, reached, timed_out, released, unfinished, passed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::memory::PhysMemory;

    fn ram() -> GuestRam {
        GuestRam::new(1 << 20).unwrap()
    }

    fn held(vcpu: usize) -> HeldTask {
        HeldTask {
            gate: GateId(3),
            probe: ProbeId(0),
            vcpu,
            task: None,
            begun: 10,
            ended: 0,
            why: WentOn::Overdue,
            counted_at: None,
            mode: HoldMode::Cpu,
        }
    }

    fn counts(gate: &Gate) -> (u64, u64, u64, u64) {
        let GateReport { reached, timed_out, unfinished, passed, .. } = gate.report();
        (reached, timed_out, unfinished, passed)
    }

    #[test]
    fn another_task_opens_for_the_one_that_is_held() {
        let (gate, ram) = (Gate::new(GateId(3)), ram());
        gate.set_code(GateCode { form: Form::Spins, entry: Gva(0x100), memory: Gpa(0x100) });
        gate.set_code(GateCode { form: Form::Yields, entry: Gva(0x200), memory: Gpa(0x200) });
        let byte = || {
            let byte = |at: Gpa| {
                let mut byte = [7];
                ram.read(at, &mut byte).unwrap();
                byte[0]
            };
            let [spins, yields] =
                [(0x100, Form::Spins), (0x200, Form::Yields)].map(|(at, form)| byte(Gpa(at + form.opened())));
            assert_eq!(spins, yields);
            spins
        };
        gate.open(1, None, &ram);
        assert!(!gate.is_open() && byte() == 0, "nobody was held");
        assert!(gate.enter(held(0), 100));
        gate.open(0, None, &ram);
        assert!(!gate.is_open(), "nobody opens for itself");
        assert!(!gate.enter(held(2), 100), "one is held at a time");
        gate.open(1, None, &ram);
        gate.open(2, None, &ram);
        assert!(gate.is_open() && byte() == 1 && !gate.is_overdue(1000));
        let left = gate.leave(50, &ram).unwrap();
        assert_eq!((left.vcpu, left.begun, left.ended, left.why, byte()), (0, 10, 50, WentOn::Opened(1), 0));
        assert!(gate.leave(50, &ram).is_none());
        assert_eq!(counts(&gate), (1, 0, 0, 1));
    }

    #[test]
    fn a_task_is_another_one_also_on_the_same_cpu() {
        let (gate, ram) = (Gate::new(GateId(3)), ram());
        let task = |at| Task {
            at: Gva(at),
            pid: 1,
            tgid: 1,
            ns_pid: None,
            uid: None,
            context: Default::default(),
            comm: [0; 16],
        };
        assert!(gate.enter(HeldTask { task: Some(task(8)), ..held(0) }, 100));
        gate.open(1, Some(&task(8)), &ram);
        assert!(!gate.is_open(), "it has gone to another CPU");
        gate.open(0, Some(&task(16)), &ram);
        assert!(gate.is_open());
    }

    #[test]
    fn time_may_be_over_first_and_so_may_the_guest() {
        let (gate, ram) = (Gate::new(GateId(3)), ram());
        assert!(gate.enter(held(5), 100));
        assert!(!gate.is_overdue(99) && gate.is_overdue(100));
        assert!(!gate.give_up(99, &ram) && !gate.is_open());
        assert!(gate.give_up(100, &ram) && !gate.give_up(100, &ram));
        gate.open(1, None, &ram);
        assert_eq!(gate.leave(101, &ram).unwrap().why, WentOn::Overdue);
        assert!(gate.enter(held(5), 100));
        assert_eq!(counts(&gate), (0, 1, 1, 0));
    }

    #[test]
    fn somebody_outside_may_let_it_go_first() {
        let (gate, ram) = (Gate::new(GateId(3)), ram());
        assert!(!gate.release(&ram) && gate.held().is_none());
        assert!(gate.enter(held(5), 100));
        assert_eq!(gate.held().unwrap().vcpu, 5);
        assert!(gate.release(&ram) && gate.is_open() && !gate.release(&ram) && gate.held().is_none());
        gate.open(1, None, &ram);
        assert!(!gate.give_up(200, &ram));
        assert_eq!(gate.leave(50, &ram).unwrap().why, WentOn::Released);
        assert_eq!((gate.report().released, counts(&gate)), (1, (0, 0, 0, 0)));
        assert!(gate.enter(held(5), 100));
        gate.postpone(50);
        assert!(!gate.is_overdue(149) && gate.is_overdue(150));
    }

    /// The time of the first one is over, and another one has come before that is seen to.
    #[test]
    fn who_has_just_come_is_not_given_up_for_the_one_before() {
        let (gate, ram) = (Gate::new(GateId(3)), ram());
        assert!(gate.enter(held(5), 100) && gate.is_overdue(100));
        gate.open(1, None, &ram);
        assert_eq!(gate.leave(100, &ram).unwrap().why, WentOn::Opened(1));
        assert!(gate.enter(held(5), 200));
        assert!(!gate.give_up(100, &ram) && !gate.is_open());
    }

    #[test]
    fn each_opening_lets_one_go_on() {
        const ROUNDS: u64 = 2_000;
        let (gate, ram) = (Gate::new(GateId(3)), ram());
        std::thread::scope(|scope| {
            for vcpu in 0..2 {
                let (gate, ram) = (&gate, &ram);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        if gate.enter(held(vcpu), 0) {
                            for _ in 0..50 {
                                if gate.is_open() {
                                    break;
                                }
                                std::hint::spin_loop();
                            }
                            gate.give_up(0, ram);
                            assert_ne!(gate.leave(0, ram).unwrap().why, WentOn::Opened(vcpu));
                        } else {
                            gate.open(vcpu, None, ram);
                        }
                    }
                });
            }
        });
        let (reached, timed_out, unfinished, passed) = counts(&gate);
        assert_eq!((reached + timed_out + passed, unfinished), (2 * ROUNDS, 0));
    }
}
