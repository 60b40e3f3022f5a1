//! Noting a hit down.

use crate::events::{Recorder, SeenHit};
use crate::probe::{Active, HitContext};
use crate::stack;
use probe_engine::regs::Regs;

/// Counts `hit`, which is of `probe`, and notes it down with the stack that it asks for, where it is recorded. What it has
/// captured is in `recorder`.
pub(super) fn note(
    recorder: &mut Recorder,
    probe: &Active,
    context: &HitContext<'_>,
    regs: &Regs,
    hit: SeenHit,
) {
    recorder.count(probe.id);
    if !probe.plan.records() {
        return;
    }
    if let Some(most) = probe.plan.stack() {
        recorder.stack(|put| stack::walk((context.kernel, context.callers), context.memory, regs, most, put));
    }
    recorder.record(hit);
}
