//! Samples: the line of one, and what the time of all CPUs was spent on.

use super::bounded::name;
use super::hit::bounded;
use super::{Address, Frame, Stack, UserFrame, UserPlace, task};
use probe_engine::linux::task::Task;
use serde::{Deserialize, Serialize};
use std::fmt;
use vmm::samples::{Sample, SampledTime};

/// Where a CPU was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "sample")]
pub(crate) struct SampleLine {
    pub(crate) time_ns: u64,
    pub(crate) guest_ns: Option<u64>,
    pub(crate) vcpu: u32,
    pub(crate) rip: Address,
    /// For how many periods of the timer it stands.
    pub(crate) periods: u32,
    #[serde(with = "task::kept")]
    pub(crate) task: Option<Task>,
    /// The kernel's frames, the innermost first: none where a process's own code ran.
    pub(crate) stack: Vec<Frame>,
    #[serde(deserialize_with = "name")]
    stack_end: String,
    /// The process's, where the kernel was entered from user mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_stack: Option<Vec<Address>>,
    /// The files that these frames are in, as far as they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_places: Option<Vec<Option<UserPlace>>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    user_stack_end: Option<String>,
}

impl SampleLine {
    /// The line of `sample`, whose stack is this one.
    pub(crate) fn of(sample: &Sample, Stack { frames, end, user }: Stack) -> Self {
        let user_places = user.as_ref().and_then(|user| UserFrame::places(&user.frames));
        let addresses = |frames: Vec<UserFrame>| frames.iter().map(|frame| frame.address).collect();
        let (user_stack, user_stack_end) = user.map(|user| (addresses(user.frames), user.end)).unzip();
        Self {
            time_ns: sample.nanos,
            guest_ns: sample.guest_nanos,
            vcpu: u32::try_from(sample.vcpu).unwrap_or(u32::MAX),
            rip: Address(sample.rip.0),
            periods: sample.periods,
            task: sample.task,
            stack: frames,
            stack_end: end,
            user_stack,
            user_places,
            user_stack_end,
        }
    }

    /// The frames of the process, where the kernel was entered from user mode.
    pub(crate) fn user_frames(&self) -> Option<Vec<UserFrame>> {
        Some(UserFrame::all(self.user_stack.as_deref()?, self.user_places.clone()))
    }

    /// The function that ran, as far as that is known.
    pub(crate) fn function(&self) -> String {
        let of_user = || Some(self.user_frames()?.first()?.clone()).filter(|frame| frame.place.is_some());
        let own = self.stack.first().map(Frame::function);
        own.or_else(|| Some(of_user()?.function())).unwrap_or_else(|| "[user]".to_owned())
    }

    /// The same with bounds for what was read.
    pub(super) fn bounded(self) -> Self {
        let (stack, stack_end) = bounded(self.stack, self.stack_end);
        let user = self.user_stack.map(|frames| bounded(frames, self.user_stack_end.unwrap_or_default()));
        let (user_stack, user_stack_end) = user.unzip();
        Self { stack, stack_end, user_stack, user_stack_end, ..self }
    }
}

/// What the time of all CPUs was spent on, in periods of the timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "sampled")]
pub(crate) struct SampledLine {
    /// Those that the samples stand for.
    taken: u64,
    idle: u64,
    outside: u64,
    own: u64,
    stopped: u64,
    lost: u64,
    /// How many of all these were told with a later one.
    late: u64,
    /// How long taking the samples took.
    took_ns: u64,
}

impl From<SampledTime> for SampledLine {
    fn from(SampledTime { taken, idle, outside, own, stopped, lost, late, took }: SampledTime) -> Self {
        Self { taken, idle, outside, own, stopped, lost, late, took_ns: took }
    }
}

/// As lines of text, each with its end.
impl fmt::Display for SampledLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { taken, idle, outside, own, stopped, lost, late, took_ns } = *self;
        let rows = [
            (taken, "sampled"),
            (idle, "idle"),
            (outside, "outside of the scope"),
            (own, "in code of the probes"),
            (stopped, "made to stand still"),
            (lost, "lost"),
        ];
        let all = rows.iter().fold(0, |all: u64, (count, _)| all.saturating_add(*count));
        writeln!(f, "{:>8}  {:>6}  time of all CPUs: {all} periods", "periods", "share")?;
        for (count, what) in
            rows.into_iter().filter(|(count, what)| *count > 0 || ["sampled", "idle"].contains(what))
        {
            writeln!(f, "{count:>8}  {:>5.1}%  {what}", percent(count, all))?;
        }
        if late > 0 {
            writeln!(f, "{late:>8}  {:>5.1}%  of all these were told late", percent(late, all))?;
        }
        writeln!(f, "looking at the guest took {:.3} s", took_ns as f64 / 1e9)
    }
}

/// How much `part` is of `all`, in hundredths.
pub(crate) fn percent(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

#[cfg(test)]
mod tests {
    use crate::record::{Line, Reader, example};
    use serde_json::Value;

    #[test]
    fn the_samples_of_the_docs_are_read() {
        let text = example("jsonl");
        let mut reader = Reader::open(text.as_bytes()).unwrap();
        assert_eq!(reader.header().period_ns, Some(10_101_010));
        let (mut periods, mut shown) = (0, String::new());
        while let Some(line) = reader.next().unwrap() {
            let again = match line {
                Line::Sample(sample) => {
                    periods += sample.periods;
                    serde_json::to_value(sample).unwrap()
                }
                Line::Sampled(sampled) => {
                    shown = sampled.to_string();
                    serde_json::to_value(sampled).unwrap()
                }
                _ => continue,
            };
            assert_eq!(serde_json::from_str::<Value>(reader.text()).unwrap(), again);
        }
        assert_eq!(periods, 3);
        let expected = [
            " periods   share  time of all CPUs: 194 periods",
            "       3    1.5%  sampled",
            "      20   10.3%  idle",
            "     170   87.6%  outside of the scope",
            "       1    0.5%  made to stand still",
            "       1    0.5%  of all these were told late",
            "looking at the guest took 0.001 s",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), expected);
    }
}
