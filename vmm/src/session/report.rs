//! What a run came to.

use super::arming::State;
use probe_engine::addr::Gva;
use probe_engine::regs::Regs;
use std::time::Duration;

/// Everything there is to say when the guest has ended.
#[derive(Debug)]
pub struct Report {
    /// How it ended.
    pub end: Outcome,
    /// What the probes saw, in order of registration.
    pub probes: Vec<ProbeReport>,
    /// How often a vCPU waited because hits were not read fast enough.
    pub waits: u64,
    /// How long the guest ran.
    pub ran: Duration,
}

/// One probe's line of the summary.
#[derive(Debug)]
pub struct ProbeReport {
    /// `symbol` or `symbol+0x10`.
    pub name: String,
    /// Guest-virtual address at which it stood, or, if it never did, at which it was linked.
    pub address: Gva,
    /// Hits that were handed to the sink.
    pub hits: u64,
    /// Hits that were not, because the sink failed.
    pub missed: u64,
    /// What became of it.
    pub state: State,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// ACPI power off.
    PoweredOff,
    /// A reset by the guest.
    Reset,
    /// The user quit at the console.
    Quit,
    /// We got this signal.
    Signal(i32),
    /// The guest died.
    Died(Death),
}

/// How a guest dies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Death {
    /// `panic()` was called.
    #[error("the guest panicked: {message}")]
    Panic {
        /// The format string of the panic, as the guest has it.
        message: String,
        /// At the entry of `panic`.
        regs: Regs,
    },
    /// It reset itself before its boot was over, which kernels do when they panic early.
    #[error("the guest reset itself before its kernel had started; its console may say why")]
    EarlyReset,
    /// A triple fault. KVM on AMD resets the vCPU before it says so: the registers are then those of a reset.
    #[error("the guest's CPU met a triple fault (on AMD, KVM has reset its registers since)")]
    TripleFault(Regs),
    /// KVM could not go on.
    #[error("the guest cannot run on: {words}")]
    Failed {
        /// What KVM reported.
        words: String,
        /// Where.
        regs: Regs,
    },
    /// The way to its kernel was lost, so that its probes cannot be armed.
    #[error("the guest's kernel could not be followed to its start: {0}")]
    Lost(String),
}

impl Death {
    /// The last registers that are known.
    #[must_use]
    pub fn regs(&self) -> Option<&Regs> {
        match self {
            Self::Panic { regs, .. } | Self::TripleFault(regs) | Self::Failed { regs, .. } => Some(regs),
            Self::EarlyReset | Self::Lost(_) => None,
        }
    }
}
