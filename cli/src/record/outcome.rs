//! What a run came to: histograms, probes, and how it ended.

use super::bounded::{name, some_name};
use super::{Address, Kind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ops::AddAssign;

/// Hits with one key of a histogram.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Entry {
    /// The histogram's name.
    #[serde(deserialize_with = "name")]
    pub(crate) histogram: String,
    /// Each key by its name.
    pub(crate) keys: Map<String, Value>,
    pub(crate) hitcount: u64,
    /// What is summed up besides, by its name.
    pub(crate) values: Map<String, Value>,
    /// As the kernel's `hist` file has it.
    pub(crate) text: String,
}

/// A whole histogram, behind its entries.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "histogram")]
pub(crate) struct HistogramEnd {
    #[serde(deserialize_with = "name")]
    pub(crate) histogram: String,
    /// In the language of definitions.
    #[serde(deserialize_with = "name")]
    pub(crate) definition: String,
    pub(crate) hits: u64,
    pub(crate) entries: usize,
    pub(crate) dropped: u64,
}

/// What one probe came to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "probe")]
pub(crate) struct ProbeEnd {
    pub(crate) id: u32,
    /// As the user writes it.
    #[serde(deserialize_with = "name")]
    pub(crate) probe: String,
    pub(crate) kind: Kind,
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) module: Option<String>,
    /// Where it stands or stood.
    pub(crate) address: Address,
    pub(crate) hits: u64,
    /// Passes that were not in the scope.
    pub(crate) outside: u64,
    pub(crate) missed: u64,
    /// Where misses come from; empty where there are none.
    #[serde(deserialize_with = "name")]
    pub(crate) reasons: String,
    /// Calls that have not returned.
    pub(crate) outstanding: usize,
    /// [`ARMED`], or what is out of the ordinary.
    #[serde(deserialize_with = "name")]
    pub(crate) state: String,
    /// What callers got, where its hits are calls that failed.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) injected: Option<String>,
    /// The rule of a guard for which it was there.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<String>,
    /// Why it was not served by a detour, where it was to be.
    #[serde(default, deserialize_with = "some_name")]
    pub(crate) trapped: Option<String>,
    /// Those that it stood for, if it was at several places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) places: Vec<PlaceEnd>,
}

impl ProbeEnd {
    /// Whether it stood to the end, and has neither seen nor missed anything.
    pub(crate) fn is_quiet(&self) -> bool {
        self.hits == 0 && self.missed == 0 && self.state == ARMED
    }
}

/// What one of several places came to that a probe stood for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlaceEnd {
    /// What is there in the file of its probe.
    #[serde(deserialize_with = "name")]
    pub(crate) place: String,
    pub(crate) hits: u64,
    /// Why it was not probed.
    #[serde(default, deserialize_with = "some_name", skip_serializing_if = "Option::is_none")]
    pub(crate) refused: Option<String>,
}

/// A function that ran, of `vmm coverage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "function")]
pub(crate) struct Function {
    pub(crate) time_ns: u64,
    pub(crate) guest_ns: Option<u64>,
    pub(crate) vcpu: u32,
    #[serde(deserialize_with = "name")]
    pub(crate) function: String,
    pub(crate) address: Address,
}

/// Functions with one prefix of their names, of `vmm coverage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "prefix")]
pub(crate) struct Prefix {
    #[serde(deserialize_with = "name")]
    pub(crate) prefix: String,
    #[serde(flatten)]
    pub(crate) count: FunctionCount,
}

/// How many of some functions ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct FunctionCount {
    pub(crate) ran: usize,
    /// Those that were armed at some time, whether they ran or not.
    pub(crate) armed: usize,
    /// Those that could not be armed.
    #[serde(default)]
    pub(crate) unarmed: usize,
}

impl AddAssign for FunctionCount {
    fn add_assign(&mut self, other: Self) {
        self.ran = self.ran.saturating_add(other.ran);
        self.armed = self.armed.saturating_add(other.armed);
        self.unarmed = self.unarmed.saturating_add(other.unarmed);
    }
}

/// How the runs of a command have ended that was run several times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "runs")]
pub(crate) struct RunsLine {
    /// The exit codes, as a shell has them.
    pub(crate) codes: Vec<u8>,
}

impl RunsLine {
    /// Says how many have failed, if any has.
    pub(crate) fn failed(&self) -> Option<String> {
        let failed = self.codes.iter().filter(|code| **code != 0).count();
        let (first, code) = (1..).zip(&self.codes).find(|(_, code)| **code != 0)?;
        let all = self.codes.len();
        Some(format!(
            "{failed} of {all} runs of the command have failed: run {first} was the first, with {code}"
        ))
    }
}

/// The state of a probe that stands on a trap.
pub(crate) const ARMED: &str = "armed";

/// The last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "end")]
pub(crate) struct End {
    pub(crate) end: String,
    /// That of the command, as a shell gives it, where there was one of which it is known.
    #[serde(default)]
    pub(crate) exit_code: Option<u8>,
    /// How often a CPU waited for a slow reader.
    pub(crate) waits: u64,
    /// How often the guest's CPUs were left, where KVM counts that.
    pub(crate) exits: Option<u64>,
    /// How long the guest ran.
    pub(crate) ran_ns: u64,
    /// How long the guest stood still until all was armed.
    pub(crate) armed_us: u64,
    /// And to be disarmed at its end.
    pub(crate) disarmed_us: u64,
}

impl End {
    /// What is said of a guest that nobody has ended and that has ended itself.
    const IN_ORDER: [&str; 7] =
        ["powered off", "reset", "quit", "stopped", "stopped by its guard", "timed out", "signal"];

    /// Whether the guest has died.
    pub(crate) fn has_died(&self) -> bool {
        // A signal has its number behind it.
        let name = if self.end.starts_with("signal ") { "signal" } else { &self.end };
        !Self::IN_ORDER.contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_runs_are_counted() {
        let said = |codes: &[u8]| RunsLine { codes: codes.to_vec() }.failed();
        assert_eq!((said(&[]), said(&[0, 0])), (None, None));
        assert_eq!(
            said(&[0, 3, 0, 139]).unwrap(),
            "2 of 4 runs of the command have failed: run 2 was the first, with 3"
        );
    }
}
