//! A task that was held went on, and what its gate came to.

use super::bounded::{name, some_name};
use super::hit::bounded;
use super::{Address, Frame, Moment, Stack, task};
use probe_engine::linux::task::Task;
use serde::{Deserialize, Serialize};
use std::fmt;

/// So many CPUs are kept: a guest has no more.
const MOST_CPUS: usize = 256;

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
    /// On which CPU another task came there; none where the time was over first.
    pub(crate) by: Option<u32>,
    /// Where each CPU stood when the time was over.
    pub(crate) cpus: Vec<StoodLine>,
}

/// Where a CPU stood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoodLine {
    pub(crate) rip: Address,
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) name: Option<String>,
    pub(crate) halted: bool,
    /// Its stack, the innermost frame first, if it is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stack: Vec<Frame>,
    /// How that ends.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) stack_end: Option<String>,
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
    /// How often the guest ended first.
    pub(crate) unfinished: u64,
    /// How many tasks passed because another one was held.
    pub(crate) passed: u64,
}

impl HoldLine {
    /// The same with bounds for what was read.
    pub(super) fn bounded(mut self) -> Self {
        self.cpus.truncate(MOST_CPUS);
        for cpu in &mut self.cpus {
            let (stack, end) =
                bounded(std::mem::take(&mut cpu.stack), cpu.stack_end.take().unwrap_or_default());
            (cpu.stack, cpu.stack_end) = (stack, Some(end).filter(|end| !end.is_empty()));
        }
        self
    }
}

impl StoodLine {
    /// Where a CPU stood, with its stack if that is known.
    pub(crate) fn new(rip: Address, name: Option<String>, halted: bool, stack: Option<Stack>) -> Self {
        let (stack, stack_end) =
            stack.map(|Stack { frames, end, .. }| (frames, Some(end))).unwrap_or_default();
        Self { rip, name, halted, stack, stack_end }
    }
}

/// As lines of text, each with its end.
impl fmt::Display for HoldLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time_ns, guest_ns, vcpu, task, hold, until, waited_ns, by, cpus } = self;
        write!(f, "{} ", Moment { nanos: *time_ns, guest_nanos: *guest_ns, vcpu: *vcpu as usize })?;
        if let Some(task) = task {
            write!(f, "{}-{} ", task.shown(), task.pid)?;
        }
        let waited =
            fmt::from_fn(|f| write!(f, "{}.{:03} ms", waited_ns / 1_000_000, waited_ns / 1000 % 1000));
        match by {
            Some(by) => writeln!(f, "held at {hold} for {waited}, until cpu{by} came to {until}")?,
            None => writeln!(f, "held at {hold} for {waited}: no other task came to {until}")?,
        }
        for (cpu, StoodLine { rip, name, halted, stack, stack_end }) in cpus.iter().enumerate() {
            let name = name.as_ref().map(|name| format!(" {name}")).unwrap_or_default();
            let halted = if *halted { ", halted" } else { "" };
            writeln!(f, "  cpu{cpu} at {rip}{name}{halted}")?;
            if let Some(end) = stack_end {
                write!(f, "{}", Stack { frames: stack.clone(), end: end.clone(), user: None })?;
            }
        }
        Ok(())
    }
}

/// As a sentence.
impl fmt::Display for GateEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hold, until, reached, timed_out, unfinished, passed } = self;
        let times = |count: u64| match count {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        write!(
            f,
            "{hold} until {until}: reached {}, not reached in time {}",
            times(*reached),
            times(*timed_out)
        )?;
        if *unfinished > 0 {
            write!(f, ", {unfinished} held when the guest ended")?;
        }
        if *passed > 0 {
            write!(f, "; {passed} tasks passed while another one was held")?;
        }
        Ok(())
    }
}
