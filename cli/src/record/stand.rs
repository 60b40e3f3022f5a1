//! Where CPUs stood, and what tasks that slept waited for.

use super::bounded::{name, some_name};
use super::hit::bounded;
use super::{Address, Frame, Stack, task};
use probe_engine::linux::task::Task;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Where a CPU stood.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoodLine {
    pub(crate) rip: Address,
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) name: Option<String>,
    pub(crate) halted: bool,
    /// The task on whose stack it was, where that is known.
    #[serde(default, with = "task::kept", skip_serializing_if = "Option::is_none")]
    pub(crate) task: Option<Task>,
    /// The lock for which it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<LockLine>,
    /// Its stack, where that is known.
    #[serde(flatten)]
    pub(crate) stack: StoodStack,
}

/// A task that slept until what it waits for would have come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SleeperLine {
    #[serde(with = "task::kept")]
    pub(crate) task: Option<Task>,
    /// The lock for which it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<LockLine>,
    /// Its stack, where that is known.
    #[serde(flatten)]
    pub(crate) stack: StoodStack,
}

/// A lock, and who has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockLine {
    /// As the kernel's sources call what it is.
    #[serde(deserialize_with = "name")]
    pub(crate) kind: String,
    pub(crate) address: Address,
    /// Its symbol, where it has one.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// Who has it, where that is known.
    #[serde(default, with = "task::kept")]
    pub(crate) owner: Option<Task>,
}

/// A stack of whoever stood still.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct StoodStack {
    /// The innermost frame first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stack: Vec<Frame>,
    /// How that ends.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    stack_end: Option<String>,
}

impl StoodStack {
    pub(crate) fn new(stack: Option<Stack>) -> Self {
        let (stack, stack_end) =
            stack.map(|Stack { frames, end, .. }| (frames, Some(end))).unwrap_or_default();
        Self { stack, stack_end }
    }

    /// The innermost frame first.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.stack
    }

    /// The same with bounds for what was read.
    pub(super) fn bounded(self) -> Self {
        let (stack, end) = bounded(self.stack, self.stack_end.unwrap_or_default());
        Self { stack, stack_end: Some(end).filter(|end| !end.is_empty()) }
    }
}

impl StoodLine {
    /// The task that waited, and the lock.
    pub(super) fn waits(&self) -> Option<(&Task, &LockLine)> {
        self.task.as_ref().zip(self.lock.as_ref())
    }
}

impl SleeperLine {
    /// The task that waited, and the lock.
    pub(super) fn waits(&self) -> Option<(&Task, &LockLine)> {
        self.task.as_ref().zip(self.lock.as_ref())
    }
}

/// As words behind a place.
impl fmt::Display for LockLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, address, name, owner } = self;
        match name {
            Some(name) => write!(f, ", waits for the {kind} {name}")?,
            None => write!(f, ", waits for the {kind} at {address}")?,
        }
        match owner {
            Some(owner) => write!(f, ", which {}-{} has", owner.shown(), owner.pid),
            None => Ok(()),
        }
    }
}

/// As lines of text, each with its end.
impl fmt::Display for StoodLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rip, name, halted, task, lock, stack } = self;
        write!(f, "at {rip}")?;
        if let Some(name) = name {
            write!(f, " {name}")?;
        }
        if *halted {
            f.write_str(", halted")?;
        }
        if let Some(task) = task {
            write!(f, ", in {}-{}", task.shown(), task.pid)?;
        }
        if let Some(lock) = lock {
            write!(f, "{lock}")?;
        }
        writeln!(f)?;
        stack.fmt(f)
    }
}

/// As lines of text, each with its end.
impl fmt::Display for SleeperLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, lock, stack } = self;
        if let Some(task) = task {
            write!(f, "{}-{} ", task.shown(), task.pid)?;
        }
        f.write_str("sleeps")?;
        if let Some(lock) = lock {
            write!(f, "{lock}")?;
        }
        writeln!(f)?;
        stack.fmt(f)
    }
}

impl fmt::Display for StoodStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.stack_end {
            Some(end) => write!(f, "{}", Stack { frames: self.stack.clone(), end: end.clone(), user: None }),
            None => Ok(()),
        }
    }
}
