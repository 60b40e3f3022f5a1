//! What a probe has read at a hit.

use probe_engine::capture::Value;
use probe_engine::capture::program::ProgramState;
use probe_engine::probe::plan::ProbePlan;
use std::ops::Deref;
use std::sync::Arc;

/// The bytes of what was read, and by which plan. As a slice it is the bytes.
#[derive(Debug, Clone, Default)]
pub struct Captured {
    bytes: Vec<u8>,
    plan: Option<Arc<ProbePlan>>,
}

impl Captured {
    /// Nothing.
    pub const NONE: Self = Self { bytes: Vec::new(), plan: None };

    /// The `bytes` that a probe has read that has this `plan`.
    pub(super) fn new(bytes: Vec<u8>, plan: Option<Arc<ProbePlan>>) -> Self {
        Self { bytes, plan }
    }

    /// The value of the field of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value<'_>> {
        let mut values = self.plan.as_ref()?.capture.values(&self.bytes);
        values.find(|(field, _)| field.name == name).map(|(_, value)| value)
    }

    /// The registers of the program in which the probe is, if it is in one, and whether a function has returned there.
    pub(super) fn program(&self) -> Option<(ProgramState, bool)> {
        let plan = self.plan.as_ref()?;
        let returns = plan.program.as_ref()?.returns;
        Some((plan.capture.program_state(&self.bytes)?, returns))
    }
}

/// The same was read, by whatever probe.
impl PartialEq for Captured {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Captured {}

impl Deref for Captured {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}
