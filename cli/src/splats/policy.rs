//! What a user wants of reports, as plain data.

use super::allow::{self, AllowedSplat};
use crate::args::SplatArgs;
use crate::args::SplatChoice;
use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

/// What follows from a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum SplatMode {
    /// The run fails.
    Fail,
    /// It is said and recorded.
    Report,
    /// So is the report, and the guest stands still.
    Hold,
    /// The same, and the first one leaves the guest's memory.
    Dump,
    /// Nothing: nobody looks.
    #[default]
    Ignore,
}

impl SplatMode {
    /// Whether the guest stands still at some.
    pub(crate) fn stops(self) -> bool {
        matches!(self, Self::Hold | Self::Dump)
    }
}

/// What is done about reports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SplatPolicy {
    pub(crate) mode: SplatMode,
    pub(crate) allowed: Vec<AllowedSplat>,
    /// How many hits of each CPU are kept until one, where hits are not written as they come.
    pub(crate) recent: Option<u16>,
}

/// Refuses what makes no sense: a guest that stands still for nobody, and memory without a file. Commands come or debuggers, where the
/// guest `is_served`.
pub(crate) fn check(args: &SplatArgs, is_served: bool) -> Result<()> {
    match (args.splat, &args.vmcore) {
        (SplatChoice::Hold, _) if !is_served => {
            bail!("--splat hold: nobody could let the guest go on: add --control SOCKET or --qmp SOCKET")
        }
        (SplatChoice::Dump, None) => bail!("--splat dump: --vmcore FILE says where the guest's memory goes"),
        (SplatChoice::Dump, Some(_)) | (_, None) => Ok(()),
        (_, Some(_)) => {
            bail!("--vmcore is for --splat dump; `vmm ctl SOCKET dump FILE` writes memory at any time")
        }
    }
}

/// What `args` ask for.
pub(crate) fn policy(args: &SplatArgs) -> Result<SplatPolicy> {
    let mut allowed = Vec::new();
    for path in &args.allow_splats {
        allowed.extend(allow::read(path)?);
    }
    let mode = match args.splat {
        SplatChoice::Fail => SplatMode::Fail,
        SplatChoice::Report => SplatMode::Report,
        SplatChoice::Hold => SplatMode::Hold,
        SplatChoice::Dump => SplatMode::Dump,
        SplatChoice::Ignore => SplatMode::Ignore,
    };
    Ok(SplatPolicy { mode, allowed, recent: args.recent })
}
