//! Whose the probes are at which the guest stands still: who has added them is told, and they are removed when that client goes.

use super::super::frame::Stop;
use probe_engine::linux::scope::Scope;
use probe_engine::probe::pace::Pace;
use probe_engine::probe::plan::Action;
use probe_engine::request::ProbeRequest;
use serde_json::Value;
use std::collections::HashMap;

/// Who is told that the guest stands still.
#[derive(Default)]
pub(super) struct Stops {
    /// The client of each probe.
    owners: HashMap<u32, u64>,
    /// The client for whom a CPU executes one instruction.
    pub(super) stepper: Option<u64>,
    /// The number of the last time that the guest has come to stand still. A client that lets it go on knows of no later one.
    pub(super) last: u64,
    /// What was told of probes before it was known whose these are.
    pub(super) early: Vec<Stop>,
}

impl Stops {
    /// Who is told of hits of `probe`.
    pub(super) fn owner(&self, probe: u32) -> Option<u64> {
        self.owners.get(&probe).copied()
    }

    /// The probes in this result of `add` or `watch` are those of `client`.
    pub(super) fn own(&mut self, client: u64, added: &Value) {
        self.owners.extend(ids(added).map(|id| (id, client)));
    }

    /// The probes in this result of `remove` are there no more.
    pub(super) fn disown(&mut self, removed: &Value) {
        for id in ids(removed) {
            self.owners.remove(&id);
        }
    }

    /// `client` has gone. Gives what were its probes.
    pub(super) fn leave(&mut self, client: u64) -> Vec<u32> {
        self.stepper = self.stepper.filter(|stepper| *stepper != client);
        self.owners.extract_if(|_, owner| *owner == client).map(|(probe, _)| probe).collect()
    }
}

/// The numbers of the probes in a result.
fn ids(result: &Value) -> impl Iterator<Item = u32> {
    let probes = result.get("probes").and_then(Value::as_array).into_iter().flatten();
    probes.filter_map(|probe| u32::try_from(probe.get("id")?.as_u64()?).ok())
}

/// Makes it a probe at which the guest stands still. Its hits are counted, and nothing else.
pub(super) fn stopping(probe: &mut ProbeRequest) {
    let plan = &mut probe.plan;
    (plan.pace, plan.action, plan.scope) = (Some(Pace::Stop), Action::Count, Scope::Boot);
}

/// What a client is told of a guest that stands still.
pub(super) fn notification(how: &str) -> String {
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"stopped\",\"params\":{how}}}\n")
}
