//! What a scan of a kernel's memory has found.

use super::Address;
use super::bounded::{name, some_name};
use super::moment::Time;
use probe_engine::linux::names::Names;
use probe_engine::scan::Checked;
use probe_engine::scan::finding::{Check, Finding};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Something is not as the kernel would have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "scan_finding")]
pub(crate) struct ScanFindingLine {
    /// When that was seen; None where no guest of ours was looked at.
    #[serde(default)]
    time_ns: Option<u64>,
    #[serde(default)]
    guest_ns: Option<u64>,
    #[serde(deserialize_with = "name")]
    check: String,
    at: Address,
    #[serde(default, deserialize_with = "some_name")]
    symbol: Option<String>,
    #[serde(deserialize_with = "name")]
    what: String,
}

/// What has come of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "scan_check")]
pub(crate) struct ScanCheckLine {
    #[serde(deserialize_with = "name")]
    check: String,
    looked_at: u64,
    /// What it has looked at.
    #[serde(deserialize_with = "name")]
    things: String,
    findings: u64,
    /// Of those, how many have no line.
    untold: u64,
    /// Why it was not made, or not to its end.
    #[serde(default, deserialize_with = "some_name")]
    failure: Option<String>,
}

impl ScanFindingLine {
    pub(crate) fn of(check: Check, finding: &Finding, names: &Names<'_>, time: Option<Time>) -> Self {
        Self {
            time_ns: time.map(|time| time.nanos),
            guest_ns: time.and_then(|time| time.guest_nanos),
            check: check.name().to_owned(),
            at: Address(finding.at.0),
            symbol: names.symbol(finding.at).map(|name| name.to_string()),
            what: finding.told(names),
        }
    }

    /// Nanoseconds since the guest was started.
    pub(crate) fn nanos(&self) -> Option<u64> {
        self.time_ns
    }

    /// The same by the guest's own clock, where that is known.
    pub(crate) fn guest_nanos(&self) -> Option<u64> {
        self.guest_ns
    }

    /// The name of the check.
    pub(crate) fn check(&self) -> &str {
        &self.check
    }
}

impl ScanCheckLine {
    pub(crate) fn of(made: &Checked) -> Self {
        Self {
            check: made.check.name().to_owned(),
            looked_at: made.looked_at,
            things: made.check.things().to_owned(),
            findings: made.findings.len() as u64 + made.untold,
            untold: made.untold,
            failure: made.failure.clone(),
        }
    }

    /// Whether there is nothing to say of it.
    pub(crate) fn is_silent(&self) -> bool {
        self.untold == 0 && self.failure.is_none()
    }

    /// Whether it was not made, or not to its end.
    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// How much of what it has found has no line.
    pub(crate) fn untold(&self) -> u64 {
        self.untold
    }

    /// How much it has found.
    pub(crate) fn findings(&self) -> u64 {
        self.findings
    }
}

/// As a line of text, without its end.
impl fmt::Display for ScanFindingLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(nanos) = self.time_ns {
            write!(f, "{} ", Time { nanos, guest_nanos: self.guest_ns })?;
        }
        write!(f, "FINDING: {}: {}", self.check, FoundThing(self))
    }
}

/// What was found, and where.
pub(crate) struct FoundThing<'a>(pub(crate) &'a ScanFindingLine);

impl fmt::Display for FoundThing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ScanFindingLine { at, symbol, what, .. } = self.0;
        write!(f, "{at}")?;
        symbol.iter().try_for_each(|symbol| write!(f, " {symbol}"))?;
        write!(f, ": {what}")
    }
}

/// As a line of text, without its end.
impl fmt::Display for ScanCheckLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { check, looked_at, things, findings, untold, failure } = self;
        write!(f, "{check:<12} {looked_at:>9} {things}: {findings} findings")?;
        if *untold > 0 {
            write!(f, ", {untold} without a line")?;
        }
        failure.iter().try_for_each(|failure| write!(f, "; NOT TO ITS END: {failure}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::example;

    #[test]
    fn the_scan_of_the_docs_is_read() {
        let lines: Vec<&str> = example("jsonl scan").lines().collect();
        let [finding, check] = lines[..] else { panic!("two lines") };
        let read: ScanFindingLine = serde_json::from_str(finding).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), finding);
        assert_eq!(
            read.to_string(),
            "[    4.366815158] FINDING: modules: 0xffffffffc0227040: module hides is hidden: the list of modules do not have it"
        );
        let read: ScanCheckLine = serde_json::from_str(check).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), check);
        assert_eq!(read.to_string(), "modules              6 modules: 1 findings");
        let failed = ScanCheckLine { untold: 1, failure: Some("why".to_owned()), ..read };
        assert_eq!(
            failed.to_string(),
            "modules              6 modules: 1 findings, 1 without a line; NOT TO ITS END: why"
        );
    }
}
