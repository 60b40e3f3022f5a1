//! What a user wants of reports, as plain data.

use super::allow::{self, AllowedSplat};
use crate::args::SplatArgs;
use crate::args::SplatChoice;
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What follows from a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) enum SplatMode {
    /// The run fails.
    Fail,
    /// It is said and recorded.
    Report,
    /// Nothing: nobody looks.
    #[default]
    Ignore,
}

/// What is done about reports.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SplatPolicy {
    pub(crate) mode: SplatMode,
    pub(crate) allowed: Vec<AllowedSplat>,
    /// How many hits of each CPU are kept until one, where hits are not written as they come.
    pub(crate) recent: Option<u16>,
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
        SplatChoice::Ignore => SplatMode::Ignore,
    };
    Ok(SplatPolicy { mode, allowed, recent: args.recent })
}
