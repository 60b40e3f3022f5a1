//! Samples on their way out: as lines of JSON, or summed up for the end.

use super::{GuestNames, Top};
use crate::record::{self, Address, Frame, SampleLine, SampledLine, Stack, USER, UserFrame, UserStack};
use std::io::{self, Write};
use vmm::samples::{Sample, SampledTime};

/// The samples of a run.
#[derive(Default)]
pub(super) struct RunSamples {
    top: Top,
}

impl RunSamples {
    /// The lines of `samples`, which are summed up.
    pub(super) fn lines(&mut self, samples: &[Sample], names: &GuestNames) -> Vec<SampleLine> {
        let lines: Vec<_> = samples.iter().map(|sample| line(sample, names)).collect();
        lines.iter().for_each(|line| self.top.add(line));
        lines
    }

    /// What all came to.
    pub(super) fn write_text(&self, out: &mut impl Write, time: SampledTime) -> io::Result<()> {
        if !self.top.is_empty() {
            write!(out, "{}", self.top)?;
        }
        write!(out, "{}", SampledLine::from(time))
    }
}

/// The line of `sample`. Where its stack is not known, that has one frame.
fn line(sample: &Sample, names: &GuestNames) -> SampleLine {
    let stack = sample.stack.as_ref().and_then(|stack| names.stack(stack));
    SampleLine::of(sample, stack.unwrap_or_else(|| start(sample, names)))
}

fn start(sample: &Sample, names: &GuestNames) -> Stack {
    const UNKNOWN: &str = "this kernel's stacks cannot be walked";
    let address = Address(sample.rip.0);
    if !sample.rip.is_kernels() {
        let user = UserStack { frames: vec![UserFrame { address, place: None }], end: UNKNOWN.to_owned() };
        return Stack { frames: Vec::new(), end: USER.to_owned(), user: Some(user) };
    }
    let frame = Frame {
        address,
        name: names.symbol(sample.rip),
        file: None,
        line: None,
        interrupted: false,
        guessed: false,
        inlined: Vec::new(),
    };
    record::Stack { frames: vec![frame], end: UNKNOWN.to_owned(), user: None }
}
