//! Noting a hit down.

use crate::events::{Recorder, SeenHit};
use crate::probe::{Active, HitContext};
use crate::stack::{self, Walked};
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
        let HitContext { kernel: view, callers, memory, .. } = *context;
        let task = hit.task.map(|task| task.at);
        let walked = Walked { view, callers, memory, regs, task };
        recorder.stack(|put| stack::walk(walked, most, put));
    }
    recorder.record(hit);
}
