//! A probe that was asked for: where it is, what it does, and how it is shown.

use crate::args::Run;
use probe_engine::capture::hist::Form;
use probe_engine::probe::place::Place;
use probe_engine::probe::plan::{Action, ProbePlan, Trigger};
use probe_engine::probe::spec::{Location, ProbeSpec};
use serde::{Deserialize, Serialize};

/// A probe that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) place: Place,
    pub(crate) plan: ProbePlan,
    /// How it is shown.
    pub(crate) style: Style,
    /// Which histogram counts its hits, if one does.
    pub(crate) counted: Option<Counted>,
    /// The pattern that has found it, as it was written; `None` for a probe that was asked for by its own name.
    pub(crate) pattern: Option<String>,
    /// Its filter and its histogram as they were written, for whoever asks what will be done.
    #[serde(skip)]
    pub(crate) written: Vec<String>,
}

/// A histogram among those of a run: the probes that a pattern has found are counted together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// Its number.
    pub(crate) number: usize,
    /// What it is called.
    pub(crate) name: String,
}

/// How a hit is shown.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum Style {
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

impl Asked {
    /// One whose hits are shown by their registers.
    pub(crate) fn plain(place: Place, trigger: Trigger) -> Self {
        Self {
            place,
            plan: ProbePlan::new(trigger).recorded(),
            style: Style::Registers,
            counted: None,
            pattern: None,
            written: Vec::new(),
        }
    }

    /// The same, found by `spec`.
    pub(crate) fn found_by(self, spec: &ProbeSpec) -> Self {
        let pattern = matches!(spec.location(), Location::Glob(_)).then(|| spec.to_string());
        Self { pattern, ..self }
    }

    /// The same, as the options of the whole run want it.
    pub(crate) fn within(mut self, run: &Run) -> Self {
        let plan = &mut self.plan;
        match &mut plan.trigger {
            Trigger::Pass => plan.once = run.probes.once,
            Trigger::Return { max_active } => *max_active = max_active.or(run.arming.maxactive),
            Trigger::Access => {}
        }
        if let Action::Record { stack } = &mut plan.action {
            *stack = run.probes.stack.map(usize::from);
        }
        self
    }

    /// Whether its hits are only counted, and none is shown.
    pub(crate) fn is_only_counted(&self) -> bool {
        !self.plan.records()
    }

    /// Whether returns are its hits.
    pub(crate) fn returns(&self) -> bool {
        self.plan.is_return()
    }

    /// Whether addresses are shown by their names.
    pub(crate) fn has_symbols(&self) -> bool {
        let by_name = |form: &Form| match form {
            Form::Symbol | Form::SymbolOffset => true,
            Form::Number(shape) => shape.has_symbol(),
            _ => false,
        };
        self.plan.capture.fields.iter().any(|field| field.shape.has_symbol())
            || self.plan.histogram().iter().flat_map(|plan| &plan.keys).any(|key| by_name(&key.form))
    }

    /// As the user writes it.
    pub(crate) fn name(&self) -> String {
        format!("{}{}", self.place.name(), if self.returns() { "%return" } else { "" })
    }
}
