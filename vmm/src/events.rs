//! From the vCPU that took a hit to whoever reads about it: one single-producer ring a vCPU, no lock, no system call.

use crate::clock::{Rate, ticks};
use crate::memory::GuestRam;
use crate::stack::{MOST_PIECES, Piece, Stack};
pub use captured::Captured;
use detoured::{DetourRings, Times};
pub use detoured::{DetouredProbe, MissedByDetours};
use guest_time::GuestTime;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::capture::tally::Group;
use probe_engine::capture::{Capture, LONGEST_RECORD, Scene, Value};
use probe_engine::linux::sched_clock::SchedClock;
use probe_engine::linux::task::Task;
use probe_engine::probe::plan::ProbePlan;
use probe_engine::probe::table::ProbeId;
use probe_engine::virt_memory::ReadVirt;
use program_calls::ProgramCalls;
use ring_space::RingEnds;
pub(crate) use ring_space::RingSpace;
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

mod captured;
mod detoured;
mod guest_time;
mod program_calls;
mod ring_space;

/// How many hits a vCPU may be ahead of the reader.
pub(crate) const RING: usize = 16 << 10;

/// Bytes of what hits have captured that a vCPU may be ahead of the reader.
const BYTES: usize = 4 << 20;

/// Pieces of stacks that a vCPU may be ahead of the reader.
const PIECES: usize = 128 << 10;

/// How many probes a session can register, unregistered ones included.
pub const MAX_PROBES: usize = 1 << 20;

/// A hit as a vCPU has seen it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenHit {
    pub(crate) ticks: u64,
    pub(crate) probe: ProbeId,
    pub(crate) rip: Gva,
    pub(crate) what: What<Ticks>,
    pub(crate) task: Option<Task>,
}

/// What a vCPU notes down of a hit.
#[derive(Debug, Clone, Copy)]
struct RingRecord {
    hit: SeenHit,
    /// How many bytes of captured values are its own.
    captured: u32,
    /// How many pieces of stacks are.
    stack: u32,
}

/// A duration in ticks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticks(pub(crate) u64);

/// Something that a probe saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the guest was started.
    pub nanos: u64,
    /// Nanoseconds of the guest's own clock, by which its messages say when they were; `None` where nobody can tell:
    /// early in its boot, and in a guest whose clock is another one for each CPU.
    pub guest_nanos: Option<u64>,
    /// The vCPU that took it.
    pub vcpu: usize,
    /// The probe that it belongs to.
    pub probe: ProbeId,
    /// Where the guest was (GVA): the probed instruction, where a function returned to, or behind the instruction that
    /// accessed what is watched. In a program, it is the program's.
    pub rip: Gva,
    /// What happened.
    pub what: What<Nanos>,
    /// The task that ran, if it can be told.
    pub task: Option<Task>,
    /// What the probe's [`Capture`] has read; its [`values`](Capture::values) are in it.
    pub captured: Captured,
    /// Who called, where the probe [asks](crate::probe::Probe::stack) for that.
    pub stack: Option<Stack>,
}

impl Event {
    /// Argument `n` in registers, of a hit: 0 is rdi.
    #[must_use]
    pub fn argument(&self, n: usize) -> Option<u64> {
        match &self.what {
            What::Hit { args } => args.get(n).copied(),
            What::Return { .. } | What::Access { .. } => None,
        }
    }

    /// What was read of the field of that name: a definition's `NAME=`, or a function's parameter.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Value<'_>> {
        self.captured.get(name)
    }

    /// How much memory it takes, in bytes.
    fn bytes(&self) -> usize {
        let frames = self.stack.as_ref().map_or(0, |stack| {
            size_of_val(&*stack.frames) + stack.user.as_ref().map_or(0, |user| size_of_val(&*user.frames))
        });
        size_of::<Self>() + self.captured.len() + frames
    }
}

/// A duration in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nanos(pub u64);

/// What happened. `T` is how time is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What<T> {
    /// An instruction is about to be executed.
    Hit {
        /// rdi, rsi, rdx, rcx, r8, r9: in a program, the program's.
        args: [u64; 6],
    },
    /// A function has returned. In a program that is told so where its call was seen to begin, and as a hit otherwise.
    Return {
        /// RAX.
        value: u64,
        /// How long the call took.
        duration: T,
    },
    /// Watched memory was accessed.
    Access {
        /// What it held when it was last looked at.
        old: u64,
        /// What it holds now.
        new: u64,
    },
}

/// Counts of one vCPU. Written by its thread alone, read by anyone.
pub struct Counters {
    /// By probe, in chunks that appear when they are needed.
    hits: Box<[OnceLock<Box<[AtomicU64]>>]>,
    /// How often the reader was too slow and the vCPU had to wait.
    waits: AtomicU64,
}

/// Counters in a chunk.
const CHUNK: usize = 1 << 10;

impl Counters {
    fn new() -> Self {
        Self { hits: (0..MAX_PROBES / CHUNK).map(|_| OnceLock::new()).collect(), waits: AtomicU64::new(0) }
    }

    /// Hits of `probe`.
    pub fn hits(&self, probe: ProbeId) -> u64 {
        let chunk = self.hits.get(probe.0 as usize / CHUNK).and_then(OnceLock::get);
        chunk.and_then(|c| c.get(probe.0 as usize % CHUNK)).map_or(0, |n| n.load(Ordering::Relaxed))
    }

    fn count(&self, probe: ProbeId) {
        let Some(chunk) = self.hits.get(probe.0 as usize / CHUNK) else { return };
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        if let Some(hits) = chunk.get(probe.0 as usize % CHUNK) {
            bump(hits);
        }
    }

    /// See [`Recorder::count_wait`].
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

/// A vCPU's end.
pub struct Recorder {
    ring: Producer<RingRecord>,
    bytes: Producer<u8>,
    stacks: Producer<Piece>,
    /// What the hit of the moment has captured. It never grows.
    captured: Vec<u8>,
    /// Pieces of its stack.
    stack: u32,
    counters: Arc<Counters>,
    /// Of the rings that detours write to.
    ends: RingEnds,
}

impl Recorder {
    /// Whether `n` more hits fit, with what they capture and with their stacks. Where one site has so many probes that
    /// they might not, what does not fit is left out.
    pub fn has_space(&self, n: usize) -> bool {
        self.ring.slots() >= n
            && self.bytes.slots() >= (n * LONGEST_RECORD).min(BYTES / 2)
            && self.stacks.slots() >= (n * MOST_PIECES).min(PIECES / 2)
    }

    /// Reads what `capture` says, for the record that follows. Returns false when its filter does not let the hit pass.
    pub fn capture<M: ReadVirt + ?Sized>(&mut self, capture: &Capture, scene: &Scene<'_, M>) -> bool {
        self.captured.clear();
        capture.take(scene, &mut self.captured)
    }

    /// What was [read](Self::capture) last.
    pub(crate) fn captured(&self) -> &[u8] {
        &self.captured
    }

    /// Notes down what `walk` finds of the stack, for the record that follows.
    pub(crate) fn stack(&mut self, walk: impl FnOnce(&mut dyn FnMut(Piece))) {
        if self.stacks.slots() < MOST_PIECES {
            return;
        }
        let (stacks, count) = (&mut self.stacks, &mut self.stack);
        walk(&mut |piece| *count += u32::from(stacks.push(piece).is_ok()));
    }

    /// What there is for a detour on this vCPU that has found the ring at `at` (GPA) full.
    pub(crate) fn space_for_detour(&self, ram: &GuestRam, at: Gpa) -> RingSpace {
        self.ends.space(ram, at)
    }

    /// Counts that the vCPU waits because the reader is slow.
    pub fn count_wait(&self) {
        bump(&self.counters.waits);
    }

    /// Counts a hit of `probe`.
    pub fn count(&self, probe: ProbeId) {
        self.counters.count(probe);
    }

    /// Notes `hit` down, which has been counted, with what was [captured](Self::capture) and its
    /// [stack](Self::stack). There must be [space](Self::has_space).
    pub(crate) fn record(&mut self, hit: SeenHit) {
        // The bytes come first: whoever sees the record finds them.
        let captured = match self.bytes.push_entire_slice(&self.captured) {
            Ok(()) => self.captured.len() as u32,
            Err(_) => 0,
        };
        let stack = std::mem::take(&mut self.stack);
        let _ = self.ring.push(RingRecord { hit, captured, stack });
    }
}

/// Adds one without a locked instruction: there is one writer.
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The reader's end, for all vCPUs.
pub struct Reader {
    rings: Vec<(Consumer<RingRecord>, Consumer<u8>, Consumer<Piece>)>,
    counters: Vec<Arc<Counters>>,
    /// What the guest's detours write.
    detours: Option<DetourRings>,
    guest_time: GuestTime,
    ends: RingEnds,
    /// What has been read before something that came earlier.
    early: Vec<Event>,
    calls: ProgramCalls,
}

/// A probe, by whoever reads its hits.
#[derive(Debug, Clone)]
pub struct ReadProbe {
    /// What it does.
    pub plan: Arc<ProbePlan>,
    /// The probe whose returns are of the calls that its hits begin, if nobody else is told of these.
    pub begins: Option<ProbeId>,
}

/// Rings for `cpus` vCPUs.
#[must_use]
pub fn rings(cpus: usize) -> (Vec<Recorder>, Reader) {
    let ends = RingEnds::new(u8::try_from(cpus).unwrap_or(u8::MAX));
    let mut reader = Reader {
        rings: Vec::new(),
        counters: Vec::new(),
        detours: None,
        guest_time: GuestTime::default(),
        ends,
        early: Vec::new(),
        calls: ProgramCalls::default(),
    };
    let recorders = (0..cpus)
        .map(|_| {
            let (ring, records) = RingBuffer::new(RING);
            let (bytes, captured) = RingBuffer::new(BYTES);
            let (stacks, pieces) = RingBuffer::new(PIECES);
            let counters = Arc::new(Counters::new());
            reader.rings.push((records, captured, pieces));
            reader.counters.push(counters.clone());
            let captured = Vec::with_capacity(LONGEST_RECORD);
            Recorder { ring, bytes, stacks, captured, stack: 0, counters, ends: reader.ends.clone() }
        })
        .collect();
    (recorders, reader)
}

impl Reader {
    /// From now on also reads what detours write, in a guest with this memory and so many CPUs, whose time-stamp counters
    /// are `tsc` ticks ahead of the host's.
    pub fn follow_detours(&mut self, ram: Arc<GuestRam>, cpus: u8, tsc: u64) {
        self.detours = Some(DetourRings::new(ram, cpus, self.ends.clone()));
        self.guest_time = GuestTime::new(tsc);
    }

    /// The guest's own clock is `clock` at this moment.
    pub(crate) fn know_clock(&mut self, clock: SchedClock) {
        self.guest_time.know(clock);
    }

    /// How long after the guest's start the guest's own clock was at `guest_nanos`, which is not long ago; where its clock is not
    /// known, how long it is since the start.
    pub(crate) fn since_start(&self, guest_nanos: u64, rate: Rate) -> u64 {
        let now = ticks();
        let ago = self
            .guest_time
            .nanos(self.guest_time.of_host(now))
            .map(|guest| guest.saturating_sub(guest_nanos));
        rate.nanos(now).saturating_sub(ago.unwrap_or(0))
    }

    /// What the guest's own clock shows at `ticks` of the host's, if that is known.
    pub(crate) fn guest_nanos(&self, ticks: u64) -> Option<u64> {
        self.guest_time.nanos(self.guest_time.of_host(ticks))
    }

    /// What has come in, in order of time, and `None` when there is nothing. What one task does is in this order from one
    /// call to the next as well, wherever it runs. `known` are the probes that detours record for, and `probes` are all
    /// by their numbers.
    pub fn drain(
        &mut self,
        rate: Rate,
        known: &HashMap<u32, DetouredProbe>,
        probes: &[ReadProbe],
    ) -> Option<Vec<Event>> {
        /// So many bytes are not kept back: a hostile guest may say that its events were later than they were.
        const MOST: usize = 64 << 20;
        let now = rate.nanos(ticks());
        let mut batch = std::mem::take(&mut self.early);
        let mut until = match &mut self.detours {
            Some(detours) => detours.drain(&Times { rate, guest: &self.guest_time, now }, known, &mut batch),
            None => now,
        };
        for (vcpu, (ring, bytes, stacks)) in self.rings.iter_mut().enumerate() {
            // Only what is there now: a busy vCPU must not keep the reader here.
            for _ in 0..ring.slots() {
                let Ok(RingRecord { hit, captured: len, stack }) = ring.pop() else {
                    break;
                };
                let SeenHit { ticks, probe, rip, what, task } = hit;
                let stack = Stack::of((0..stack).map_while(|_| stacks.pop().ok()));
                let mut captured = vec![0; len as usize];
                // They were pushed before their record.
                let _ = bytes.pop_entire_slice(&mut captured);
                let plan = probes.get(probe.0 as usize).map(|probe| probe.plan.clone());
                let captured = Captured::new(captured, plan);
                let what = match what {
                    What::Hit { args } => What::Hit { args },
                    What::Access { old, new } => What::Access { old, new },
                    What::Return { value, duration: Ticks(ticks) } => {
                        What::Return { value, duration: Nanos(rate.duration(ticks)) }
                    }
                };
                let nanos = rate.nanos(ticks);
                let guest_nanos = self.guest_time.nanos(self.guest_time.of_host(ticks));
                batch.push(Event { nanos, guest_nanos, vcpu, probe, rip, what, task, captured, stack });
            }
        }
        if batch.is_empty() {
            return None;
        }
        batch.sort_by_key(|event| event.nanos);
        // What came in since, on a CPU whose events had been read by then, may be earlier than what was read after it.
        if batch.iter().map(Event::bytes).sum::<usize>() > MOST {
            until = u64::MAX;
        }
        self.early = batch.split_off(batch.partition_point(|event| event.nanos < until));
        let begins = |event: &Event| probes.get(event.probe.0 as usize)?.begins;
        let told = batch.into_iter().filter_map(|event| {
            let begins = begins(&event);
            self.calls.follow(event, begins)
        });
        Some(told.collect())
    }

    /// Hits of `probe` on all vCPUs.
    #[must_use]
    pub fn hits(&self, probe: ProbeId) -> u64 {
        let detoured = self.detours.as_ref().map_or(0, |detours| detours.hits(probe));
        self.counters.iter().map(|c| c.hits(probe)).sum::<u64>() + detoured
    }

    /// Passes of `probe` by detours that were not in its scope.
    pub(crate) fn outside_by_detours(&self, probe: ProbeId) -> u64 {
        self.detours.as_ref().map_or(0, |detours| detours.outside(probe))
    }

    /// What detours of `probe` have missed, which writes its hits down or not.
    #[must_use]
    pub fn missed_by_detours(&self, probe: ProbeId, is_recorded: bool) -> MissedByDetours {
        self.detours.as_ref().map(|detours| detours.missed(probe, is_recorded)).unwrap_or_default()
    }

    /// How many calls detours follow right now, by the probe.
    #[must_use]
    pub fn outstanding(&self) -> HashMap<u32, usize> {
        self.detours.as_ref().map(DetourRings::outstanding).unwrap_or_default()
    }

    /// All has been read, and the guest runs no more: what a detour has begun to write and not finished is lost. Gives what
    /// hits of `known` probes came to that were counted in the guest, in the order of their first hits.
    pub fn close(&mut self, known: &HashMap<u32, DetouredProbe>) -> Vec<(ProbeId, Group)> {
        self.detours.as_mut().map(|detours| detours.close(known)).unwrap_or_default()
    }

    /// What hits of `known` probes have come to so far that are counted in the guest, in the order of their first hits.
    #[must_use]
    pub fn groups(&self, known: &HashMap<u32, DetouredProbe>) -> Vec<(ProbeId, Group)> {
        self.detours.as_ref().map(|detours| detours.groups(known)).unwrap_or_default()
    }

    /// How often any vCPU waited for the reader.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.counters.iter().map(|c| c.waits()).sum()
    }
}

#[cfg(test)]
mod tests;
