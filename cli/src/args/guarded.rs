//! A guard beside probes, and what becomes of what it finds.

use super::heading;
use clap::{Args, ValueEnum};
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
    /// When the memory of a guarded guest is scanned for what an attacker has changed, as `vmm scan` does
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        hide_short_help = true,
        conflicts_with = "target"
    )]
    pub(crate) scan: ScanChoice,
}

/// When the memory of a guarded guest is scanned
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ScanChoice {
    /// When the guest has ended
    #[default]
    End,
    /// Not at all
    Never,
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
