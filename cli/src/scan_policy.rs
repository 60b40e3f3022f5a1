//! What a user wants of scans of a guarded guest's memory.

use serde::{Deserialize, Serialize};

/// Whether memory is scanned, and what follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ScanPolicy {
    /// Whether the memory is scanned that the guest leaves; what is scanned while the guest runs is scanned then as well.
    pub(crate) is_wanted: bool,
    /// What becomes of a guest at which its guard cannot look.
    pub(crate) on_failure: OnFailure,
}

/// What becomes of a guest at which its guard cannot look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum OnFailure {
    /// The failure is told, and the guest goes on.
    #[default]
    Report,
    /// The guest is ended.
    Stop,
}
