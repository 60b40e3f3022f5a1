//! A hit, a return or an access: the line that an event is written as, and the event that is read from it.

use super::stack::UserStack;
use super::task::TaskLine;
use super::{Address, Frame, Probe, Stack, UserFrame, UserPlace};
use probe_engine::addr::Gva;
use probe_engine::probe::table::ProbeId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;
use vmm::events::{Captured, Event, Nanos, What};

/// A line of type `hit`, `return` or `access`. `F` is what its probe has read, by name.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HitLine<'a, F> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    time_ns: u64,
    guest_ns: Option<u64>,
    vcpu: u32,
    id: u32,
    #[serde(borrow)]
    probe: Cow<'a, str>,
    #[serde(borrow)]
    event: Option<Cow<'a, str>>,
    rip: Address,
    #[serde(borrow)]
    task: Option<TaskLine<'a>>,
    /// Of a hit: rdi, rsi, rdx, rcx, r8, r9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    args: Option<[Address; 6]>,
    /// Of a call that fails: what its caller gets.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    injected: Option<Cow<'a, str>>,
    /// Of a return: RAX.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    value: Option<Address>,
    /// Of a return: how long the call took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    duration_ns: Option<u64>,
    /// Of an access: what the memory held before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    old: Option<Address>,
    /// Of an access: what it holds now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    new: Option<Address>,
    fields: Option<F>,
    stack: Option<Cow<'a, [Frame]>>,
    /// How the stack ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    stack_end: Option<Cow<'a, str>>,
    /// The process's, where the kernel was entered from user mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_stack: Option<Vec<Address>>,
    /// The files that these frames are in, as far as they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_places: Option<Vec<Option<UserPlace>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_stack_end: Option<Cow<'a, str>>,
    /// The number of the splat before which it was one of the last; 0 is the end of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    recent: Option<u64>,
}

/// What was read from such a line.
#[derive(Debug)]
pub(crate) struct Hit {
    /// What happened, and when. What was captured and the stack are below.
    pub(crate) event: Event,
    /// What its probe has read, by name.
    pub(crate) fields: Map<String, Value>,
    pub(crate) stack: Option<Stack>,
}

impl<'a, F> HitLine<'a, F> {
    /// The line of `event`, of which `probe` has read `fields`.
    pub(crate) fn of(
        event: &'a Event,
        probe: &'a Probe,
        fields: Option<F>,
        stack: Option<&'a Stack>,
    ) -> Self {
        let user = stack.and_then(|stack| stack.user.as_ref());
        let mut line = Self {
            r#type: Cow::Borrowed(type_of(&event.what)),
            time_ns: event.nanos,
            guest_ns: event.guest_nanos,
            vcpu: event.vcpu as u32,
            id: event.probe.0,
            probe: Cow::Borrowed(&probe.probe),
            event: probe.event.as_deref().map(Cow::Borrowed),
            rip: Address(event.rip.0),
            task: event.task.as_ref().map(TaskLine::of),
            args: None,
            injected: probe.injected.as_deref().map(Cow::Borrowed),
            value: None,
            duration_ns: None,
            old: None,
            new: None,
            fields,
            stack: stack.map(|stack| Cow::Borrowed(&*stack.frames)),
            stack_end: stack.map(|stack| Cow::Borrowed(&*stack.end)),
            user_stack: user.map(|user| user.frames.iter().map(|frame| frame.address).collect()),
            user_places: user.and_then(|user| UserFrame::places(&user.frames)),
            user_stack_end: user.map(|user| Cow::Borrowed(&*user.end)),
            recent: None,
        };
        match event.what {
            What::Hit { args } => line.args = Some(args.map(Address)),
            What::Return { value, duration: Nanos(duration) } => {
                (line.value, line.duration_ns) = (Some(Address(value)), Some(duration));
            }
            What::Access { old, new } => (line.old, line.new) = (Some(Address(old)), Some(Address(new))),
        }
        line
    }
}

impl<F> HitLine<'_, F> {
    /// The same of a hit that was kept until a report.
    pub(crate) fn recent(self, splat: Option<u64>) -> Self {
        Self { recent: splat, ..self }
    }
}

impl HitLine<'_, Map<String, Value>> {
    /// What the line tells; `None` where something is missing that its type has.
    pub(super) fn hit(self) -> Option<Hit> {
        let what = match &*self.r#type {
            "hit" => What::Hit { args: self.args?.map(|Address(value)| value) },
            "return" => What::Return { value: self.value?.0, duration: Nanos(self.duration_ns?) },
            "access" => What::Access { old: self.old?.0, new: self.new?.0 },
            _ => return None,
        };
        let event = Event {
            nanos: self.time_ns,
            guest_nanos: self.guest_ns,
            vcpu: self.vcpu as usize,
            probe: ProbeId(self.id),
            rip: Gva(self.rip.0),
            what,
            task: self.task.map(TaskLine::task),
            captured: Captured::NONE,
            stack: None,
        };
        let user = self.user_stack.zip(self.user_stack_end).map(|(addresses, end)| {
            let (addresses, end) = bounded(addresses, end.into_owned());
            UserStack { frames: UserFrame::all(&addresses, self.user_places), end }
        });
        let stack = self.stack.zip(self.stack_end).map(|(frames, end)| {
            let (mut frames, end) = bounded(frames.into_owned(), end.into_owned());
            frames.iter_mut().for_each(|frame| frame.inlined.truncate(MOST_INLINED));
            Stack { frames, end, user }
        });
        Some(Hit { event, fields: self.fields.unwrap_or_default(), stack })
    }
}

/// So many frames are kept: a run records no more.
const MOST_FRAMES: usize = 256;
/// So many functions are kept that are inlined at one place.
const MOST_INLINED: usize = 64;

/// Of the frames of a stack, and how that ends, what is kept.
pub(super) fn bounded<T>(mut frames: Vec<T>, end: String) -> (Vec<T>, String) {
    if frames.len() <= MOST_FRAMES {
        return (frames, end);
    }
    frames.truncate(MOST_FRAMES);
    (frames, "more frames than are kept".to_owned())
}

/// The type of the line of what happened.
fn type_of<T>(what: &What<T>) -> &'static str {
    match what {
        What::Hit { .. } => "hit",
        What::Return { .. } => "return",
        What::Access { .. } => "access",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_without_end_is_cut() {
        assert_eq!(
            bounded(vec![0; MOST_FRAMES], "bottom".to_owned()),
            (vec![0; MOST_FRAMES], "bottom".to_owned())
        );
        let (frames, end) = bounded(vec![0; 150_000], "bottom".to_owned());
        assert_eq!((frames.len(), end.as_str()), (MOST_FRAMES, "more frames than are kept"));
    }
}
