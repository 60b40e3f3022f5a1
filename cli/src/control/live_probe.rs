//! A probe of a guest that runs, as clients of a control socket see it.

use crate::output::shown_name;
use crate::record::{Address, Kind};
use probe_engine::request::{ProbeRequest, Style};
use serde::{Deserialize, Serialize};
use vmm::session::{ProbeKind, ProbeReport, ProbeState};

/// What the user calls a probe beside its place.
#[derive(Debug, Clone, Default)]
pub(super) struct Title {
    /// The name that a definition gives its hits.
    event: Option<String>,
    /// The pattern that has found it.
    pattern: Option<String>,
}

impl From<&ProbeRequest> for Title {
    fn from(asked: &ProbeRequest) -> Self {
        let event = match &asked.style {
            Style::Event(name) => Some(name.clone()),
            Style::Registers | Style::Call | Style::Graph => None,
        };
        Self { event, pattern: asked.pattern.clone() }
    }
}

/// A probe, and what it has seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LiveProbe {
    /// Its number.
    pub(crate) id: u32,
    /// As the user writes it: `vfs_read%return`.
    pub(crate) probe: String,
    /// The name that a definition gives its hits.
    pub(crate) event: Option<String>,
    /// The pattern that has found it.
    pub(crate) pattern: Option<String>,
    pub(crate) kind: Kind,
    pub(crate) module: Option<String>,
    /// Where it stands, as the guest runs; zero where that is not known.
    pub(crate) address: Address,
    pub(crate) enabled: bool,
    pub(crate) hits: u64,
    /// Passes that were not in the scope.
    pub(crate) outside: u64,
    pub(crate) missed: u64,
    /// One word.
    pub(crate) state: String,
    /// Why that is so, where there is more to say.
    pub(crate) reason: Option<String>,
}

impl LiveProbe {
    /// What `report` says of the probe that the user calls so.
    pub(super) fn of(report: &ProbeReport, title: &Title) -> Self {
        let (state, reason) = state(&report.state);
        Self {
            id: report.id.0,
            probe: shown_name(report),
            event: title.event.clone(),
            pattern: title.pattern.clone(),
            kind: match report.kind {
                ProbeKind::Instruction => Kind::Instruction,
                ProbeKind::Return => Kind::Return,
                ProbeKind::Watch => Kind::Watch,
            },
            module: report.module.clone(),
            address: Address(report.address.0),
            enabled: report.enabled,
            hits: report.hits,
            outside: report.outside,
            missed: report.missed.hits(),
            state: state.to_owned(),
            reason: reason.or_else(|| report.trapped.clone()),
        }
    }

    /// What it is called: the name of its hits, or its place.
    pub(crate) fn name(&self) -> &str {
        self.event.as_deref().unwrap_or(&self.probe)
    }

    /// Whether somebody means it who says `name`.
    pub(super) fn is_called(&self, name: &str) -> bool {
        [Some(self.probe.as_str()), self.event.as_deref(), self.pattern.as_deref()].contains(&Some(name))
    }
}

fn state(state: &ProbeState) -> (&'static str, Option<String>) {
    match state {
        ProbeState::Waiting => ("waiting", Some("the guest has not come far enough".to_owned())),
        ProbeState::Pending(module) => ("pending", Some(format!("the module `{module}` is not loaded"))),
        ProbeState::NoFile(path) => ("pending", Some(format!("the guest has no file `{path}`"))),
        ProbeState::Armed(_) => ("armed", None),
        ProbeState::Optimized(_) => ("optimized", None),
        ProbeState::Disabled => ("disabled", None),
        ProbeState::DisplacedByFtrace(_) => ("yielded", Some("the guest works on its text there".to_owned())),
        ProbeState::Refused(reason) => ("refused", Some(reason.clone())),
        ProbeState::Gone(_) => ("gone", Some("the guest has freed its text".to_owned())),
        ProbeState::Overwritten(_) => ("overwritten", Some("the guest has changed its text".to_owned())),
        ProbeState::Spent(_) => ("once", None),
        ProbeState::Broken(words) => ("broken", Some(words.clone())),
    }
}
