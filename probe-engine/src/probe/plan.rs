//! What a probe does, as plain data: the same whether a command line, a file, a program or another process asks for it.
//!
//! Where the probe stands is not part of it: the probes that a pattern stands for share one plan.

use crate::addr::Gva;
use crate::capture::Capture;
use crate::capture::hist::Histogram;
use crate::linux::program_place::ProgramPlace;
use crate::linux::scope::Scope;
use crate::probe::inject::Inject;
use crate::probe::pace::Pace;
use serde::{Deserialize, Serialize};

/// What a probe does.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProbePlan {
    /// What its hits are.
    pub trigger: Trigger,
    /// What is read at a hit, and which hits count.
    pub capture: Capture,
    /// What is made of a hit that counts.
    pub action: Action,
    /// Which passes can be hits at all. The others are counted apart.
    pub scope: Scope,
    /// Whether only the first hit counts. The text is restored then.
    pub once: bool,
    /// What a hit that counts does to the order in which CPUs go on.
    pub pace: Option<Pace>,
    /// What it does for calls that are to fail.
    pub inject: Option<Inject>,
    /// The tracepoint that has to be switched on for it, if it is at one.
    pub tracepoint: Option<SwitchedTracepoint>,
    /// The place in a program for which the guest's own kernel has it called, if it is in one.
    pub program: Option<ProgramPlace>,
    /// What becomes of the guest at a hit that counts, if the probe guards it.
    pub guard: Option<GuardAction>,
}

/// What becomes of the guest at a hit of a probe that guards it. Such a probe stays on a trap: what a detour notes down lies where the
/// guest can reach it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuardAction {
    /// It goes on.
    GoOn,
    /// It is ended.
    Stop,
}

/// A tracepoint of the guest's, which calls nobody as long as it is switched off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchedTracepoint {
    /// `SYSTEM:NAME`, as users write it. That of a module has the module in place of the system.
    pub written: String,
    /// Its own name.
    pub name: String,
    /// `struct tracepoint`, at its link-time address; `None` where it is a module's.
    pub at: Option<Gva>,
}

/// What a probe's hits are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Trigger {
    /// Passes of an instruction.
    #[default]
    Pass,
    /// Returns of a function that is entered at the probe's place.
    Return {
        /// How many calls are followed at a time, if that was said. Further calls are counted as missed.
        max_active: Option<u32>,
    },
    /// Accesses to memory, or the execution of an instruction, by a debug register.
    Access,
}

/// What is made of a hit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Action {
    /// The hit is counted.
    #[default]
    Count,
    /// The hit is counted and recorded, with what was read.
    Record {
        /// How many frames of the kernel's stack are recorded, if any are.
        stack: Option<usize>,
    },
    /// The hit is counted by the keys of a histogram.
    Histogram(Histogram),
}

impl Trigger {
    /// How many calls are followed at a time, if that was said.
    #[must_use]
    pub fn max_active(self) -> Option<u32> {
        match self {
            Self::Return { max_active } => max_active,
            Self::Pass | Self::Access => None,
        }
    }
}

impl ProbePlan {
    /// The plan of a probe with these hits, which are counted.
    #[must_use]
    pub fn new(trigger: Trigger) -> Self {
        Self { trigger, ..Self::default() }
    }

    /// The same, which reads `capture`.
    #[must_use]
    pub fn reading(self, capture: Capture) -> Self {
        Self { capture, ..self }
    }

    /// The same, of which each hit is recorded.
    #[must_use]
    pub fn recorded(self) -> Self {
        Self { action: Action::Record { stack: None }, ..self }
    }

    /// The same, of which each hit that counts does this to the order in which CPUs go on.
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        Self { pace: Some(pace), ..self }
    }

    /// The same, which does this for calls that are to fail.
    #[must_use]
    pub fn injecting(self, inject: Inject) -> Self {
        Self { inject: Some(inject), ..self }
    }

    /// The same, which guards the guest: this becomes of it at each hit that counts.
    #[must_use]
    pub fn guarding(self, action: GuardAction) -> Self {
        Self { guard: Some(action), ..self }
    }

    /// The same, at this tracepoint.
    #[must_use]
    pub fn at_tracepoint(self, tracepoint: SwitchedTracepoint) -> Self {
        Self { tracepoint: Some(tracepoint), ..self }
    }

    /// Whether returns are its hits.
    #[must_use]
    pub fn is_return(&self) -> bool {
        matches!(self.trigger, Trigger::Return { .. })
    }

    /// Whether each hit is recorded. Hits of a histogram are, where the guest does not count by its keys.
    #[must_use]
    pub fn records(&self) -> bool {
        self.action != Action::Count
    }

    /// Whether anything is read at a hit besides its registers.
    #[must_use]
    pub fn reads(&self) -> bool {
        self.records() || !self.capture.is_empty()
    }

    /// Whether a hit is told with the task that ran.
    #[must_use]
    pub fn tells_task(&self) -> bool {
        self.reads() || self.pace.is_some() || self.inject.is_some() || self.guard.is_some()
    }

    /// The histogram by whose keys hits are counted, if they are.
    #[must_use]
    pub fn histogram(&self) -> Option<&Histogram> {
        match &self.action {
            Action::Histogram(histogram) => Some(histogram),
            Action::Count | Action::Record { .. } => None,
        }
    }

    /// How many frames of the kernel's stack are recorded with a hit, if any are.
    #[must_use]
    pub fn stack(&self) -> Option<usize> {
        match self.action {
            Action::Record { stack } => stack,
            Action::Count | Action::Histogram(_) => None,
        }
    }
}
