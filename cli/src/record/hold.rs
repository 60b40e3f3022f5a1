//! A task that was held went on, and what its gate came to.

use super::bounded::name;
use super::stand::{LockLine, SleeperLine, StoodLine};
use super::{Moment, task};
use probe_engine::linux::task::Task;
use serde::{Deserialize, Serialize};
use std::fmt;

/// So many CPUs are kept: a guest has no more.
const MOST_CPUS: usize = 256;
/// And so many tasks.
const MOST_SLEEPERS: usize = 256;

/// A task that was held went on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "hold")]
pub(crate) struct HoldLine {
    /// Since when.
    pub(crate) time_ns: u64,
    pub(crate) guest_ns: Option<u64>,
    pub(crate) vcpu: u32,
    #[serde(with = "task::kept")]
    pub(crate) task: Option<Task>,
    /// Where it was held, as the user writes it.
    #[serde(deserialize_with = "name")]
    pub(crate) hold: String,
    /// Where another task was to come, as the user writes it.
    #[serde(deserialize_with = "name")]
    pub(crate) until: String,
    pub(crate) waited_ns: u64,
    /// What its CPU did meanwhile.
    #[serde(default)]
    pub(crate) cpu: HeldCpu,
    /// On which CPU another task came there; none where something else ended it first.
    pub(crate) by: Option<u32>,
    /// Whether a client of a control socket has let it go first. Otherwise the time was over.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) released: bool,
    /// Where each CPU stood when the time was over.
    pub(crate) cpus: Vec<StoodLine>,
    /// Tasks that slept then until what they wait for would have come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) sleepers: Vec<SleeperLine>,
}

/// What the CPU of a task did that was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HeldCpu {
    /// It waited with the task.
    #[default]
    Waited,
    /// It ran other tasks.
    RanOthers,
    /// It was to run others, and waited: the kernel could not be preempted there, or there was no room for what that takes.
    CouldNot,
}

/// What a gate came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "gate")]
pub(crate) struct GateEnd {
    #[serde(deserialize_with = "name")]
    pub(crate) hold: String,
    #[serde(deserialize_with = "name")]
    pub(crate) until: String,
    /// How often another task came while one was held.
    pub(crate) reached: u64,
    /// How often the time was over first.
    pub(crate) timed_out: u64,
    /// How often a client of a control socket has let it go first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) released: u64,
    /// How often the guest ended first.
    pub(crate) unfinished: u64,
    /// How many tasks passed because another one was held.
    pub(crate) passed: u64,
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl HoldLine {
    /// The same with bounds for what was read.
    pub(super) fn bounded(mut self) -> Self {
        self.cpus.truncate(MOST_CPUS);
        self.sleepers.truncate(MOST_SLEEPERS);
        for cpu in &mut self.cpus {
            cpu.stack = std::mem::take(&mut cpu.stack).bounded();
        }
        for sleeper in &mut self.sleepers {
            sleeper.stack = std::mem::take(&mut sleeper.stack).bounded();
        }
        self
    }

    /// A task that waits for a lock which the one has that is held, and that lock: it does not come before the other one goes on.
    pub(crate) fn blocked(&self) -> Option<(&Task, &LockLine)> {
        let held = self.task?.at;
        let waits = self.cpus.iter().filter_map(StoodLine::waits);
        let mut waits = waits.chain(self.sleepers.iter().filter_map(SleeperLine::waits));
        waits.find(|(_, lock)| lock.owner.is_some_and(|owner| owner.at == held))
    }
}

/// As lines of text, each with its end.
impl fmt::Display for HoldLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time_ns, guest_ns, vcpu, task, hold, until, waited_ns, cpu, by, released, cpus, sleepers } =
            self;
        write!(f, "{} ", Moment { nanos: *time_ns, guest_nanos: *guest_ns, vcpu: *vcpu as usize })?;
        if let Some(task) = task {
            write!(f, "{}-{} ", task.shown(), task.pid)?;
        }
        let waited =
            fmt::from_fn(|f| write!(f, "{}.{:03} ms", waited_ns / 1_000_000, waited_ns / 1000 % 1000));
        match by {
            Some(by) => write!(f, "held at {hold} for {waited}, until cpu{by} came to {until}")?,
            None if *released => write!(f, "held at {hold} for {waited}, and let go by a client")?,
            None => write!(f, "held at {hold} for {waited}: no other task came to {until}")?,
        }
        match cpu {
            HeldCpu::Waited => writeln!(f)?,
            HeldCpu::RanOthers => writeln!(f, "; its CPU was free for others")?,
            HeldCpu::CouldNot => {
                writeln!(f, "; its CPU waited with it: the kernel could not be preempted there")?;
            }
        }
        for (cpu, stood) in cpus.iter().enumerate() {
            write!(f, "  cpu{cpu} {stood}")?;
        }
        for sleeper in sleepers {
            write!(f, "  {sleeper}")?;
        }
        if let Some((waiter, lock)) = self.blocked() {
            writeln!(
                f,
                "  the order is impossible here: the one that is held has the {} for which {}-{} waits",
                lock.kind,
                waiter.shown(),
                waiter.pid
            )?;
        }
        Ok(())
    }
}

impl GateEnd {
    /// How often the order was reached, and how often not.
    pub(crate) fn counts(&self) -> impl fmt::Display {
        let Self { reached, timed_out, released, unfinished, passed, .. } = *self;
        let times = |count: u64| match count {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        fmt::from_fn(move |f| {
            write!(f, "reached {}, not reached in time {}", times(reached), times(timed_out))?;
            if released > 0 {
                write!(f, ", let go {} by a client", times(released))?;
            }
            if unfinished > 0 {
                write!(f, ", {unfinished} held when the guest ended")?;
            }
            if passed > 0 {
                write!(f, "; {passed} tasks passed while another one was held")?;
            }
            Ok(())
        })
    }
}

/// As a sentence.
impl fmt::Display for GateEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hold, until, .. } = self;
        write!(f, "{hold} until {until}: {}", self.counts())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Address, StoodStack};
    use probe_engine::addr::Gva;
    use probe_engine::linux::task::Context;

    fn task(pid: u32) -> Task {
        let (at, comm, context) = (Gva(u64::from(pid)), *b"mkdir\0\0\0\0\0\0\0\0\0\0\0", Context::Task);
        Task { at, pid, tgid: pid, ns_pid: None, uid: None, context, comm }
    }

    fn lock(owner: u32) -> Option<LockLine> {
        let (kind, address) = ("mutex".to_owned(), Address(0x10));
        Some(LockLine { kind, address, name: None, owner: Some(task(owner)) })
    }

    #[test]
    fn a_task_that_waits_for_the_one_that_is_held_makes_the_order_impossible() {
        let stood = |pid, lock| StoodLine {
            rip: Address(0x20),
            name: Some("f+0x0/0x8".to_owned()),
            halted: false,
            task: Some(task(pid)),
            lock,
            stack: StoodStack::default(),
        };
        let sleeper = |pid, lock| SleeperLine { task: Some(task(pid)), lock, stack: StoodStack::default() };
        let held = |cpus, sleepers| HoldLine {
            time_ns: 0,
            guest_ns: None,
            vcpu: 0,
            task: Some(task(1)),
            hold: "a".to_owned(),
            until: "b".to_owned(),
            waited_ns: 1000,
            cpu: HeldCpu::CouldNot,
            by: None,
            released: false,
            cpus,
            sleepers,
        };
        let told = held(vec![stood(1, None), stood(3, lock(2))], vec![sleeper(4, lock(1)), sleeper(5, None)]);
        assert_eq!(told.blocked().unwrap().0.pid, 4);
        let text = told.to_string();
        let (first, text) = text.split_once('\n').unwrap();
        let why = "; its CPU waited with it: the kernel could not be preempted there";
        assert!(first.ends_with(why), "{first}");
        assert_eq!(
            text,
            "  cpu0 at 0x20 f+0x0/0x8, in mkdir-1\n  \
             cpu1 at 0x20 f+0x0/0x8, in mkdir-3, waits for the mutex at 0x10, which mkdir-2 has\n  \
             mkdir-4 sleeps, waits for the mutex at 0x10, which mkdir-1 has\n  \
             mkdir-5 sleeps\n  \
             the order is impossible here: the one that is held has the mutex for which mkdir-4 waits\n"
        );
        let line = serde_json::to_string(&told).unwrap();
        assert_eq!(serde_json::from_str::<HoldLine>(&line).unwrap(), told);
        let released = HoldLine { released: true, ..held(vec![], vec![]) };
        assert!(released.to_string().ends_with("for 0.001 ms, and let go by a client; its CPU waited with it: the kernel could not be preempted there\n"), "{released}");
        assert!(held(vec![stood(3, lock(1))], vec![]).blocked().is_some());
        assert!(held(vec![stood(3, lock(2))], vec![sleeper(4, None)]).blocked().is_none());
    }
}
