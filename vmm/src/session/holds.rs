//! Tasks that are held, and what has become of them.

use super::report::{Held, Stands};
use probe_engine::probe::pace::GateId;
use std::collections::HashMap;

/// What is known of tasks that are held, or were.
#[derive(Default)]
pub(super) struct Holds {
    /// Where the vCPUs stood when the time of one was over that is about to go on.
    pub(super) stands: HashMap<GateId, Stands>,
    /// What the sink has not been told.
    pub(super) ended: Vec<Held>,
}
