//! Reports of the guest's kernel: which are allowed, and what follows from the others.

mod allow;
mod policy;
mod verdicts;

pub(crate) use allow::AllowEntry;
pub(crate) use policy::{SplatMode, SplatPolicy, check, policy};
pub(crate) use verdicts::SplatVerdicts;
