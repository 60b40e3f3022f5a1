//! What a rule of a guard says of the hits of its probes.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A rule of a guard, as far as whoever tells its hits needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// What it is called.
    pub name: String,
    /// What a hit means, in words.
    pub message: Option<String>,
    /// What it belongs to: `attack.T1547.006` is a technique of MITRE ATT&CK.
    pub tags: Vec<String>,
    /// Which hits are counted and not told.
    pub repeats: Option<Repeats>,
}

/// Hits that repeat an earlier one, with the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeats {
    /// For so long after one that was told, they are not.
    pub within: Duration,
    /// Whose hits are compared.
    pub of: RepeatsOf,
}

/// Whose hits are compared with earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RepeatsOf {
    /// Those of one thread.
    Thread,
    /// Those of the threads of one process.
    Process,
    /// All.
    Guest,
}
