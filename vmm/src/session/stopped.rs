//! Where a guest has come to stand still, and who is told.

use probe_engine::addr::Gva;
use probe_engine::probe::table::ProbeId;
use probe_engine::regs::Regs;
use std::sync::mpsc::Sender;

/// The guest has come to stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// How many there have been with this one.
    pub number: u64,
    /// The CPU for which that is.
    pub vcpu: usize,
    /// Why.
    pub why: StopCause,
    /// The registers of that CPU.
    pub regs: Regs,
}

/// Why a guest has come to stand still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopCause {
    /// By a hit of this probe, whose plan [says so](probe_engine::probe::pace::Pace::Stop).
    Probe(ProbeId),
    /// The CPU has executed the one instruction that it was [to execute](super::Handle::step).
    Step,
}

/// Where the guest's kernel is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPlace {
    /// Where its text begins (GVA), as it was linked.
    pub text: Gva,
    /// Where that ends.
    pub text_end: Gva,
    /// What KASLR adds to that.
    pub slide: u64,
    /// Whether its text is final: probes can stand everywhere.
    pub is_final: bool,
}

/// Who is told where the guest stands, and what nobody has been told in the stop that is under way.
#[derive(Default)]
pub(super) struct Debugging {
    pub(super) follower: Option<Sender<Stopped>>,
    pub(super) stopped: Vec<Stopped>,
    /// How many there have been.
    stops: u64,
}

impl Debugging {
    /// The guest has come to stand still.
    pub(super) fn stopped(&mut self, vcpu: usize, why: StopCause, regs: Regs) {
        self.stops += 1;
        self.stopped.push(Stopped { number: self.stops, vcpu, why, regs });
    }

    /// Whether it has not done so since the stop of this number.
    pub(super) fn is_last(&self, number: u64) -> bool {
        number >= self.stops
    }
}
