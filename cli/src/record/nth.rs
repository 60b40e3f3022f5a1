//! A run of a command in which one of its calls was to fail.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Such a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "fail_nth")]
pub(crate) struct NthLine {
    /// Which call was to fail, from 1 on; none was in the run in which calls were counted.
    pub(crate) nth: Option<u64>,
    /// How many calls the command has made.
    pub(crate) calls: u64,
    /// Whether it came to that call.
    pub(crate) injected: bool,
    /// With what the command has ended, as a shell has it; it has not where the guest ended first.
    pub(crate) exit_code: Option<u8>,
}

impl NthLine {
    /// With what the command has ended.
    pub(crate) fn end(&self) -> impl fmt::Display {
        fmt::from_fn(|f| match self.exit_code {
            Some(code) => write!(f, "exit code {code}"),
            None => f.write_str("the guest ended first"),
        })
    }
}

/// As a sentence.
impl fmt::Display for NthLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nth, calls, injected, .. } = self;
        match (nth, injected) {
            (None, _) => write!(f, "no call failed, of {calls}")?,
            (Some(nth), true) => write!(f, "call {nth} failed, of {calls}")?,
            (Some(nth), false) => write!(f, "call {nth} was not reached: there were {calls}")?,
        }
        write!(f, "; {}", self.end())
    }
}
