//! A guard beside probes, and what becomes of what it finds.

use super::heading;
use super::time::time;
use crate::scan_policy::{OnFailure, ScanPolicy};
use clap::{Args, ValueEnum};
use std::time::Duration;
use vmm::guard::OnWrite;

/// A guard beside probes
#[derive(Args, Default)]
#[command(next_help_heading = heading::PROBES)]
pub(crate) struct Guarded {
    /// Seal the kernel's code and read-only data as well, as `vmm guard` does
    #[arg(
        long,
        value_enum,
        value_name = "ON-WRITE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "report",
        hide_short_help = true,
        conflicts_with = "target",
    )]
    pub(crate) guard: Option<WriteChoice>,
    /// When the memory of a guarded guest is scanned for what an attacker has changed, as `vmm scan` does: end, never, or so often and at
    /// the end, as in 10s
    #[arg(
        long,
        value_name = "WHEN",
        value_parser = scan_choice,
        default_value = "end",
        hide_short_help = true,
        conflicts_with = "target"
    )]
    pub(crate) scan: ScanChoice,
    /// What becomes of a guarded guest whose memory cannot be scanned
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value_t,
        hide_short_help = true,
        conflicts_with = "target"
    )]
    pub(crate) fail: FailChoice,
    /// Have a guard tell what these rules say, as `vmm guard` does
    #[arg(long, value_name = "FILE", requires = "guard", hide_short_help = true, conflicts_with_all = ["target", "bundle"])]
    pub(crate) rules: Vec<String>,
}

/// What a guard tells besides
#[derive(Args, Default)]
#[command(next_help_heading = heading::PROBES)]
pub(crate) struct Rules {
    /// Tell what the rules of this file say, or the shipped ones (default)
    ///
    /// May be repeated. A rule is a TracingPolicy, as Tetragon has it, of which a part is taken: docs/rules.md says which. Its probes are the host's: the
    /// guest's kernel knows none, and they see all processes from when CMD begins (--scope). A file that is called default is written
    /// ./default.
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Vec<String>,
}

impl Guarded {
    /// When memory is scanned, and what follows.
    pub(crate) fn scans(&self) -> ScanPolicy {
        ScanPolicy { is_wanted: self.scan != ScanChoice::Never, on_failure: self.fail.to_policy() }
    }
}

/// When the memory of a guarded guest is scanned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ScanChoice {
    /// When the guest has ended.
    #[default]
    End,
    /// Not at all.
    Never,
    /// Once in each such time, and when the guest has ended.
    Every(Duration),
}

impl ScanChoice {
    /// How long it is from one scan to the next while the guest runs.
    pub(crate) fn every(self) -> Option<Duration> {
        match self {
            Self::Every(time) => Some(time),
            Self::End | Self::Never => None,
        }
    }
}

/// Reads when memory is scanned.
pub(super) fn scan_choice(text: &str) -> Result<ScanChoice, ScanChoiceError> {
    match text {
        "end" => Ok(ScanChoice::End),
        "never" => Ok(ScanChoice::Never),
        _ => match time(text).ok_or(ScanChoiceError::Form)? {
            time if time < SHORTEST => Err(ScanChoiceError::Short),
            time => Ok(ScanChoice::Every(time)),
        },
    }
}

/// Why the memory is not scanned then.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScanChoiceError {
    #[error("write end, never, or a number and us, ms or s, as in 10s")]
    Form,
    #[error("the guest stands still meanwhile: memory is scanned once in {} ms at most", SHORTEST.as_millis())]
    Short,
}

/// The guest stands still while the memory is scanned.
const SHORTEST: Duration = Duration::from_millis(100);

/// What becomes of a guarded guest whose memory cannot be scanned
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FailChoice {
    /// That is said, and the guest goes on
    #[default]
    Report,
    /// The guest is ended, with exit code 125
    Stop,
}

impl FailChoice {
    fn to_policy(self) -> OnFailure {
        match self {
            Self::Report => OnFailure::Report,
            Self::Stop => OnFailure::Stop,
        }
    }
}

/// What becomes of a write that is none of the kernel's own changes
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum WriteChoice {
    /// It is made
    #[default]
    Report,
    /// It is not made, and the guest goes on behind it
    Deny,
    /// It is not made, and the guest is ended
    Stop,
}

impl WriteChoice {
    pub(crate) fn to_session(self) -> OnWrite {
        match self {
            Self::Report => OnWrite::Report,
            Self::Deny => OnWrite::Deny,
            Self::Stop => OnWrite::Stop,
        }
    }
}
