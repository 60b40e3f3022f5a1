//! What a guard, a scan or a rule has found, as other programs are told of it. Each detection has the techniques of MITRE ATT&CK that
//! it is a trace of.

mod found;
pub(crate) mod ocsf;
mod severity;

pub(crate) use found::{Found, Numbering, Source};
pub(crate) use severity::Severity;

use crate::attack;
use crate::record::{
    End, FindingLine, FoundThing, FoundWrite, GuardLine, Hit, MOST_OF_A_HIT, Probe, ScanCheckLine,
    ScanFindingLine, SplatLine, write_bounded,
};
use probe_engine::linux::task::Task;
use serde::Serialize;
use serde_json::Value;
use std::fmt;

/// Something that was found.
pub(crate) struct Detection {
    pub(crate) origin: Origin,
    pub(crate) title: String,
    /// All of it in one sentence.
    pub(crate) said: String,
    pub(crate) severity: Severity,
    /// The techniques of ATT&CK, by their numbers.
    pub(crate) techniques: Vec<String>,
    /// Who ran.
    pub(crate) task: Option<Task>,
    /// The recording's own line.
    pub(crate) line: Value,
    /// For how many findings it stands.
    pub(crate) count: u64,
}

/// What has found it.
pub(crate) enum Origin {
    Guard,
    /// A check of a scan; none where a scan has more findings than it tells.
    Scan(Option<String>),
    /// The rule of this name.
    Rule(String),
    /// The guest's kernel itself, which has reported a fault or died.
    Kernel,
}

const ROOTKIT: &str = "T1014";
const MODULES: &str = "T1547.006";
const LOADING: &str = "T1620";
const ESCALATION: &str = "T1068";
/// Application or System Exploitation.
const CRASHING: &str = "T1499.004";

/// The title and the technique of what a check of a scan has found.
fn of_check(check: &str) -> (&'static str, &'static str) {
    match check {
        "image" => ("The kernel's code or constants were changed", ROOTKIT),
        "page-tables" => ("The kernel's pages are mapped elsewhere", ROOTKIT),
        "executable" => ("Code in the kernel belongs to nobody", LOADING),
        "modules" => ("A kernel module is hidden", MODULES),
        "interrupts" => ("The interrupt table was changed", ROOTKIT),
        "hooks" => ("A function of the kernel is hooked", ROOTKIT),
        "pointers" => ("A function pointer of the kernel leads elsewhere", ROOTKIT),
        "credentials" => ("A process has the kernel's rights", ESCALATION),
        "helpers" => ("The kernel starts a program of somebody else's", ESCALATION),
        "processors" => ("A processor is not set as the kernel sets it", ROOTKIT),
        _ => ("The kernel's memory was changed", ROOTKIT),
    }
}

impl Detection {
    pub(crate) fn of_write(finding: &FindingLine) -> Self {
        Self {
            origin: Origin::Guard,
            title: match (finding.is_register(), finding.was_denied()) {
                (false, true) => "A write to the kernel's code or constants was denied",
                (false, false) => "The kernel's code or constants were written to",
                (true, true) => "Another entry to the kernel was denied",
                (true, false) => "Another entry to the kernel was set",
            }
            .to_owned(),
            said: FoundWrite(finding).to_string(),
            severity: Severity::of_change(finding.was_denied()),
            techniques: vec![ROOTKIT.to_owned()],
            task: finding.task().copied(),
            line: value(finding),
            count: 1,
        }
    }

    pub(crate) fn of_scan(finding: &ScanFindingLine) -> Self {
        let (title, technique) = of_check(finding.check());
        Self {
            origin: Origin::Scan(Some(finding.check().to_owned())),
            title: title.to_owned(),
            said: FoundThing(finding).to_string(),
            severity: Severity::of_change(false),
            techniques: vec![technique.to_owned()],
            task: None,
            line: value(finding),
            count: 1,
        }
    }

    /// A hit of `probe`, which the rule of this name has; `line` is the recording's own.
    pub(crate) fn of_rule(rule: &str, probe: &Probe, hit: &Hit, line: &str) -> Self {
        let values =
            fmt::from_fn(|f| hit.fields.iter().try_for_each(|(name, value)| write!(f, " {name}={value}")));
        let mut said = probe.probe.clone();
        // Writing to a string cannot fail.
        let _ = write_bounded(&mut said, MOST_OF_A_HIT, &values);
        if let Some(value) = &probe.injected {
            said.push_str(&format!("; denied with {value}"));
        }
        let techniques = probe.tags.iter().filter_map(|tag| attack::technique(tag)).map(str::to_owned);
        Self {
            origin: Origin::Rule(rule.to_owned()),
            title: probe.message.as_deref().unwrap_or(rule).to_owned(),
            said,
            severity: Severity::of_tags(&probe.tags).unwrap_or(Severity::Medium),
            techniques: techniques.collect(),
            task: hit.event.task,
            line: serde_json::from_str(line).unwrap_or_default(),
            count: 1,
        }
    }

    /// A fault that the kernel has reported: whoever attacks it may have missed.
    pub(crate) fn of_splat(splat: &SplatLine) -> Self {
        Self {
            origin: Origin::Kernel,
            title: "The kernel has reported a fault".to_owned(),
            said: splat.title.clone(),
            severity: Severity::Medium,
            techniques: vec![ESCALATION.to_owned()],
            task: None,
            line: value(splat),
            count: 1,
        }
    }

    /// The death of the guest.
    pub(crate) fn of_death(end: &End) -> Self {
        Self {
            origin: Origin::Kernel,
            title: "The guest has died".to_owned(),
            said: end.end.clone(),
            severity: Severity::High,
            techniques: vec![CRASHING.to_owned()],
            task: None,
            line: value(end),
            count: 1,
        }
    }

    /// Of the findings of a guard that have no line, if there are any.
    pub(crate) fn of_guard(guard: &GuardLine) -> Option<Self> {
        Self::untold(Origin::Guard, guard.untold(), guard)
    }

    /// Of the findings of a check that have no line, if there are any.
    pub(crate) fn of_scan_check(check: &ScanCheckLine) -> Option<Self> {
        Self::untold(Origin::Scan(None), check.untold(), check)
    }

    /// Of so many findings that have no line.
    fn untold(origin: Origin, count: u64, line: &impl Serialize) -> Option<Self> {
        (count > 0).then(|| Self {
            origin,
            title: "There were more findings than are told".to_owned(),
            said: format!("{count} more findings"),
            severity: Severity::of_change(false),
            techniques: vec![ROOTKIT.to_owned()],
            task: None,
            line: value(line),
            count,
        })
    }

    /// What was found, in words.
    pub(crate) fn message(&self) -> String {
        format!("{}: {}", self.title, self.said)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Guard => f.write_str("guard"),
            Self::Scan(None) => f.write_str("scan"),
            Self::Scan(Some(check)) => write!(f, "scan: {check}"),
            Self::Rule(rule) => write!(f, "rule: {rule}"),
            Self::Kernel => f.write_str("kernel"),
        }
    }
}

/// Lines have nothing that JSON does not.
fn value(line: &impl Serialize) -> Value {
    serde_json::to_value(line).unwrap_or_default()
}
