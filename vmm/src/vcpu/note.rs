//! Noting a hit down.

use crate::events::{Recorder, Ticks, What};
use crate::probe::{Active, HitContext};
use crate::stack;
use probe_engine::addr::Gva;
use probe_engine::linux::task::Task;
use probe_engine::regs::Regs;

/// Counts a hit of `probe`, and notes it down with the stack that it asks for, where it is recorded. What it has
/// captured is in `recorder`.
pub(super) fn note(
    recorder: &mut Recorder,
    probe: &Active,
    context: &HitContext<'_>,
    regs: &Regs,
    rip: Gva,
    what: What<Ticks>,
    task: Option<Task>,
) {
    recorder.count(probe.id);
    if !probe.plan.records() {
        return;
    }
    if let Some(most) = probe.plan.stack() {
        recorder.stack(|put| stack::walk((context.kernel, context.callers), context.memory, regs, most, put));
    }
    recorder.record(context.ticks, probe.id, rip, what, task);
}
