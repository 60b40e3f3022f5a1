//! The stacks of a recording: those of samples where CPUs were sampled, and else those of hits.

use super::ReportError;
use crate::record::{Frame, Line, Reader, UserFrame};
use probe_engine::linux::task::Task;
use std::borrow::Cow;
use std::io::BufRead;

/// A stack, with what it stands for.
pub(super) struct Stacked<'a> {
    pub(super) vcpu: u32,
    pub(super) task: Option<&'a Task>,
    /// The frames of its process, and those of the kernel; the innermost first.
    pub(super) user: Cow<'a, [UserFrame]>,
    pub(super) frames: &'a [Frame],
    /// Of a hit without a stack: its probe.
    pub(super) probe: Option<&'a str>,
    /// How many hits, or periods of samples.
    pub(super) count: u64,
}

/// Hands over each stack of `recording`.
pub(super) fn each_stack(
    recording: &mut Reader<impl BufRead>,
    take: &mut dyn FnMut(&Stacked<'_>) -> Result<(), ReportError>,
) -> Result<(), ReportError> {
    let is_sampled = recording.header().period_ns.is_some();
    while let Some(line) = recording.next()? {
        match line {
            Line::Hit(hit) if !is_sampled => {
                let Some(probe) = recording.probe(hit.event.probe.0) else { continue };
                let stack = hit.stack.as_ref();
                take(&Stacked {
                    vcpu: u32::try_from(hit.event.vcpu).unwrap_or(u32::MAX),
                    task: hit.event.task.as_ref(),
                    user: stack
                        .and_then(|stack| stack.user.as_ref())
                        .map_or(Cow::default(), |user| Cow::Borrowed(&*user.frames)),
                    frames: stack.map_or(&[], |stack| &stack.frames),
                    probe: stack.is_none().then_some(&probe.probe),
                    count: 1,
                })?;
            }
            Line::Sample(sample) if is_sampled => take(&Stacked {
                vcpu: sample.vcpu,
                task: sample.task.as_ref(),
                user: sample.user_frames().unwrap_or_default().into(),
                frames: &sample.stack,
                probe: None,
                count: sample.periods.into(),
            })?,
            _ => {}
        }
    }
    Ok(())
}
