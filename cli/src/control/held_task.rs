//! A task that is held at a place (`--hold`), as clients of a control socket see it.

use serde::{Deserialize, Serialize};
use vmm::session::HeldNow;

/// A task that is held.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldTask {
    /// Which --hold it is, counted from 0.
    pub(crate) gate: u32,
    /// The number of the probe that holds it.
    pub(crate) probe: u32,
    pub(crate) vcpu: usize,
    /// Its name and its number, where these can be told.
    pub(crate) task: Option<String>,
    pub(crate) waited_ns: u64,
}

impl From<HeldNow> for HeldTask {
    fn from(held: HeldNow) -> Self {
        Self {
            gate: held.gate.0,
            probe: held.probe.0,
            vcpu: held.vcpu,
            task: held.task.map(|task| format!("{}-{}", task.shown(), task.pid)),
            waited_ns: held.waited,
        }
    }
}
