//! From what a user writes to probes with plans: definitions, places and patterns, resolved with a kernel.
//!
//! Nothing here knows who asks: a command line, a file and a program give the same text, and get the same requests.

mod definitions;
mod error;
mod jump_constraints;
mod programs;
mod rule;
mod system_call;
mod target;
mod traced;
mod tracepoints;

pub use definitions::{Definitions, Found, trigger_of};
pub use error::{DefinitionError, PlaceError};
pub use jump_constraints::KernelConstraints;
pub use programs::FindProgram;
pub use rule::{Repeats, RepeatsOf, Rule};
pub use traced::{Traced, TracedError, traced_functions};

use crate::capture::hist::Form;
use crate::probe::place::Place;
use crate::probe::plan::{ProbePlan, Trigger};
use crate::probe::spec::{Location, ProbeSpec};
use serde::{Deserialize, Serialize};

/// A probe that was asked for: where it is, what it does, and how its hits are shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// Where it is.
    pub place: Place,
    /// What it does.
    pub plan: ProbePlan,
    /// How a hit is shown.
    pub style: Style,
    /// Which histogram counts its hits, if one does.
    pub counted: Option<Counted>,
    /// The pattern that has found it, as it was written; `None` for a probe that was asked for by its own name.
    pub pattern: Option<String>,
    /// How its calls fail, if they do.
    pub injected: Option<Injected>,
    /// The rule of a guard for which it is there, if it is for one.
    pub rule: Option<Rule>,
    /// Its filter and its histogram as they were written, for whoever asks what will be done.
    #[serde(skip)]
    pub written: Vec<String>,
    /// What is to be known of its place, for the same.
    #[serde(skip)]
    pub remark: Option<String>,
}

/// A histogram among those of a run: the probes that a pattern has found are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Its number.
    pub number: usize,
    /// What it is called.
    pub name: String,
}

/// Calls that fail, as the user writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Injected {
    /// The whole injection.
    pub text: String,
    /// What a caller gets.
    pub value: String,
}

/// How a hit is shown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Style {
    /// By the registers of arguments.
    #[default]
    Registers,
    /// As the call of a function, or as its return.
    Call,
    /// As an event of this name with its fields.
    Event(String),
    /// As part of the graph of calls.
    Graph,
}

impl ProbeRequest {
    /// A probe whose hits are recorded, and shown by their registers.
    #[must_use]
    pub fn plain(place: Place, trigger: Trigger) -> Self {
        Self {
            place,
            plan: ProbePlan::new(trigger).recorded(),
            style: Style::Registers,
            counted: None,
            pattern: None,
            injected: None,
            rule: None,
            written: Vec::new(),
            remark: None,
        }
    }

    /// The same, found by `spec`.
    #[must_use]
    pub fn found_by(self, spec: &ProbeSpec) -> Self {
        let pattern = matches!(spec.location(), Location::Glob(_)).then(|| spec.to_string());
        Self { pattern, ..self }
    }

    /// Whether returns are its hits.
    #[must_use]
    pub fn returns(&self) -> bool {
        self.plan.is_return()
    }

    /// Whether its hits are where a function of a program returns: the guest's kernel follows its calls.
    #[must_use]
    pub fn is_return_of_program(&self) -> bool {
        self.plan.program.as_ref().is_some_and(|program| program.returns)
    }

    /// Whether addresses are shown by their names.
    #[must_use]
    pub fn has_symbols(&self) -> bool {
        let by_name = |form: &Form| match form {
            Form::Symbol | Form::SymbolOffset => true,
            Form::Number(shape) => shape.has_symbol(),
            _ => false,
        };
        self.plan.capture.fields.iter().any(|field| field.shape.has_symbol())
            || self.plan.histogram().iter().flat_map(|plan| &plan.keys).any(|key| by_name(&key.form))
    }

    /// Its place, as the user writes it.
    #[must_use]
    pub fn place_name(&self) -> String {
        match &self.plan.tracepoint {
            Some(tracepoint) => tracepoint.written.clone(),
            None => self.place.name(),
        }
    }

    /// As the user writes it.
    #[must_use]
    pub fn name(&self) -> String {
        let is_return = self.returns() || self.is_return_of_program();
        format!("{}{}", self.place_name(), if is_return { "%return" } else { "" })
    }
}
