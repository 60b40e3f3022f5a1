//! The live text that a detour's jump takes the place of.

use crate::session::reasons::OnTrap;
use crate::session::relocation::Candidate;
use crate::session::stop::Stop;
use crate::session::text::{RunningKernel, Traps};
use probe_engine::addr::Gva;
use probe_engine::detour::relocation::RelocatedCode;
use probe_engine::linux::ftrace_site::{FTRACE_SITE, ftrace_nop};

/// The instruction behind ftrace's nop may run in a stub.
#[derive(Debug, Clone, Copy)]
pub(in crate::session) struct BehindNop {
    /// Whether the guest has done with branches, which it rewrites while it boots.
    pub(in crate::session) late: bool,
}

impl BehindNop {
    /// It, as it is at `at` in the live text, if it can be moved.
    pub(super) fn read(
        self,
        at: Gva,
        traps: &Traps,
        stop: &Stop<'_>,
        running: &RunningKernel,
    ) -> Option<RelocatedCode> {
        /// Bytes of the longest instruction.
        const LONGEST: usize = 15;
        let mut bytes = [0; LONGEST];
        traps.read(stop.ram, running, at, &mut bytes).ok()?;
        RelocatedCode::single(&bytes, at).filter(|next| self.late || next.goes_on())
    }
}

/// The nop of ftrace's that the jump takes the place of.
pub(super) fn live_nop(
    at: Gva,
    traps: &Traps,
    stop: &Stop<'_>,
    running: &RunningKernel,
) -> Result<[u8; FTRACE_SITE as usize], OnTrap> {
    let mut bytes = [0; FTRACE_SITE as usize];
    traps.read(stop.ram, running, at, &mut bytes)?;
    ftrace_nop(&bytes).ok_or(OnTrap::NopChanged)
}

/// The bytes that the jump takes the place of, if all are still those that were looked at.
pub(super) fn live(
    candidate: &Candidate,
    traps: &Traps,
    stop: &Stop<'_>,
    running: &RunningKernel,
) -> Result<[u8; FTRACE_SITE as usize], OnTrap> {
    let mut bytes = vec![0; candidate.bytes.len()];
    traps.read(stop.ram, running, candidate.relocated.at(), &mut bytes)?;
    let first = bytes.first_chunk().filter(|_| bytes == candidate.bytes);
    first.copied().ok_or(OnTrap::TextChanged)
}
