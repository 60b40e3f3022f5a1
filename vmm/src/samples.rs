//! Samples: where each vCPU is, so many times a second.
//!
//! A timer interrupts each vCPU's thread, which looks at where the guest is, whatever that does: with interrupts off, in an
//! interrupt, in a loop that never ends. All time is accounted for, in periods of that timer: each that has passed is of one
//! [kind](SampledTime), and none is asked for again. A vCPU never waits for whoever reads its samples.

use crate::clock::Rate;
use crate::stack::{MOST_PIECES, Piece, Stack};
use probe_engine::addr::Gva;
use probe_engine::linux::scope::Scope;
use probe_engine::linux::task::Task;
use rtrb::{Consumer, Producer, RingBuffer};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How a guest is sampled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampling {
    /// How often in a second of the host's each vCPU is.
    pub frequency: NonZeroU32,
    /// Which samples are wanted; what others come to is counted.
    pub scope: Scope,
}

impl Sampling {
    /// How long it is from one sample to the next.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_secs(1) / self.frequency.get()
    }
}

/// Where a vCPU was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Nanoseconds since the guest was started.
    pub nanos: u64,
    /// Nanoseconds of the guest's own clock, as [`Event::guest_nanos`](crate::events::Event::guest_nanos).
    pub guest_nanos: Option<u64>,
    /// The vCPU.
    pub vcpu: usize,
    /// Where it goes on (GVA).
    pub rip: Gva,
    /// For how many periods of the timer it stands: more than one where the timer's interrupts came late.
    pub periods: u32,
    /// The task that ran, if it can be told.
    pub task: Option<Task>,
    /// Who had called, where the kernel's stacks can be walked.
    pub stack: Option<Stack>,
}

/// What the time of all vCPUs was spent on, in periods of the timer. Their [`sum`](Self::sum) is the time from a vCPU's start to
/// its end, of all of them together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampledTime {
    /// There are samples of it.
    pub taken: u64,
    /// The vCPU was halted until an interrupt would come, or was not started yet.
    pub idle: u64,
    /// It was not in the [scope](Sampling::scope).
    pub outside: u64,
    /// The vCPU ran code of the probes, in pages that the guest does not know.
    pub own: u64,
    /// The vCPU was made to stand still: the world was stopped, or a hit held it or waited for a reader.
    pub stopped: u64,
    /// The sample was lost: nobody read the ones before it in time, or could write them.
    pub lost: u64,
    /// Of all these, how many had no interrupt of their own, because the timer's came late: they are told with the next.
    pub late: u64,
    /// How long taking the samples took, in nanoseconds: the guest has lost that, and an exit for each.
    pub took: u64,
}

/// What a period was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spent {
    Taken,
    Idle,
    Outside,
    Own,
    Stopped,
    Lost,
}

/// Periods of one vCPU, by what they were. Written by its thread alone.
#[derive(Default)]
struct Periods {
    kinds: [AtomicU64; 6],
    late: AtomicU64,
    /// In ticks.
    took: AtomicU64,
}

impl Periods {
    fn of(&self, kind: Spent) -> u64 {
        self.kinds.get(kind as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }
}

/// A sample as a vCPU notes it down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenSample {
    pub(crate) ticks: u64,
    pub(crate) rip: Gva,
    pub(crate) periods: u32,
    pub(crate) task: Option<Task>,
}

/// With how many pieces its stack follows.
#[derive(Debug, Clone, Copy)]
struct RingSample {
    seen: SeenSample,
    pieces: u32,
}

/// A vCPU's end.
pub struct Sampler {
    pub(crate) sampling: Sampling,
    ring: Producer<RingSample>,
    stacks: Producer<Piece>,
    periods: Arc<Periods>,
}

impl Sampler {
    /// Counts `periods` that were of this `kind`.
    pub(crate) fn count(&self, kind: Spent, periods: u32) {
        if let Some(count) = self.periods.kinds.get(kind as usize) {
            add(count, periods.into());
        }
        add(&self.periods.late, periods.saturating_sub(1).into());
    }

    /// Counts so many `ticks` of the clock, for which the guest was looked at.
    pub(crate) fn took(&self, ticks: u64) {
        add(&self.periods.took, ticks);
    }

    /// Notes down what was `seen`, with the stack that `walk` finds. Where there is no room, it is lost.
    pub(crate) fn note(&mut self, seen: SeenSample, walk: impl FnOnce(&mut dyn FnMut(Piece))) {
        if self.ring.is_full() || self.stacks.slots() < MOST_PIECES {
            return self.count(Spent::Lost, seen.periods);
        }
        let mut pieces = 0;
        let stacks = &mut self.stacks;
        // The pieces come first: whoever sees the sample finds them.
        walk(&mut |piece| pieces += u32::from(stacks.push(piece).is_ok()));
        let _ = self.ring.push(RingSample { seen, pieces });
        self.count(Spent::Taken, seen.periods);
    }
}

/// Adds without a locked instruction: there is one writer.
fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed).saturating_add(more), Ordering::Relaxed);
}

/// The reader's end, for all vCPUs.
#[derive(Default)]
pub struct SampleReader {
    rings: Vec<(Consumer<RingSample>, Consumer<Piece>)>,
    periods: Vec<Arc<Periods>>,
    /// What was read and could not be kept.
    unkept: u64,
}

/// Rings for the samples of `cpus` vCPUs.
#[must_use]
pub fn rings(cpus: usize, sampling: Sampling) -> (Vec<Sampler>, SampleReader) {
    /// How many samples a vCPU may be ahead of the reader.
    const SAMPLES: usize = 4 << 10;
    /// And how many pieces of their stacks.
    const PIECES: usize = 64 << 10;
    let mut reader = SampleReader::default();
    let samplers = (0..cpus).map(|_| {
        let (ring, samples) = RingBuffer::new(SAMPLES);
        let (stacks, pieces) = RingBuffer::new(PIECES);
        let periods = Arc::<Periods>::default();
        reader.rings.push((samples, pieces));
        reader.periods.push(periods.clone());
        Sampler { sampling, ring, stacks, periods }
    });
    (samplers.collect(), reader)
}

impl SampleReader {
    /// The samples that have come in, in order of time. `guest_nanos` is what the guest's clock shows at a tick of the host's.
    pub fn drain(&mut self, rate: Rate, guest_nanos: impl Fn(u64) -> Option<u64>) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (vcpu, (ring, stacks)) in self.rings.iter_mut().enumerate() {
            // Only what is there now: a busy vCPU must not keep the reader here.
            for _ in 0..ring.slots() {
                let Ok(RingSample { seen, pieces }) = ring.pop() else { break };
                let SeenSample { ticks, rip, periods, task } = seen;
                let stack = Stack::of((0..pieces).map_while(|_| stacks.pop().ok()));
                let (nanos, guest_nanos) = (rate.nanos(ticks), guest_nanos(ticks));
                samples.push(Sample { nanos, guest_nanos, vcpu, rip, periods, task, stack });
            }
        }
        samples.sort_by_key(|sample| sample.nanos);
        samples
    }

    /// Says that `samples` are lost that were read.
    pub(crate) fn lose(&mut self, samples: &[Sample]) {
        self.unkept += samples.iter().map(|sample| u64::from(sample.periods)).sum::<u64>();
    }

    /// What the time was spent on so far, by a clock of this `rate`.
    #[must_use]
    pub fn time(&self, rate: Rate) -> SampledTime {
        let sum = |of: &dyn Fn(&Periods) -> u64| self.periods.iter().map(|periods| of(periods)).sum::<u64>();
        let kind = |kind| sum(&|periods| periods.of(kind));
        SampledTime {
            taken: kind(Spent::Taken).saturating_sub(self.unkept),
            idle: kind(Spent::Idle),
            outside: kind(Spent::Outside),
            own: kind(Spent::Own),
            stopped: kind(Spent::Stopped),
            lost: kind(Spent::Lost) + self.unkept,
            late: sum(&|periods| periods.late.load(Ordering::Relaxed)),
            took: rate.duration(sum(&|periods| periods.took.load(Ordering::Relaxed))),
        }
    }
}

impl SampledTime {
    /// All periods that have passed.
    #[must_use]
    pub fn sum(&self) -> u64 {
        let Self { taken, idle, outside, own, stopped, lost, late: _, took: _ } = *self;
        [taken, idle, outside, own, stopped, lost].into_iter().fold(0, u64::saturating_add)
    }
}
