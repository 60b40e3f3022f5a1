//! From the vCPU that took a hit to whoever reads about it: one single-producer ring a vCPU, no lock, no system call.

use crate::clock::Rate;
use probe_engine::addr::Gva;
use probe_engine::probe::table::ProbeId;
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How many hits a vCPU may be ahead of the reader.
const RING: usize = 16 << 10;

/// A hit as a vCPU notes it down.
#[derive(Debug, Clone, Copy)]
struct Record {
    ticks: u64,
    probe: ProbeId,
    rip: Gva,
    args: [u64; 6],
}

/// A hit as the user sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    /// Nanoseconds since the guest was started.
    pub nanos: u64,
    /// The vCPU that took it.
    pub vcpu: usize,
    /// The probe that it belongs to.
    pub probe: ProbeId,
    /// The probed address.
    pub rip: Gva,
    /// rdi, rsi, rdx, rcx, r8, r9.
    pub args: [u64; 6],
}

/// Counts of one vCPU. Written by its thread alone, read by anyone.
pub struct Counters {
    /// By probe.
    hits: Box<[AtomicU64]>,
    /// How often the reader was too slow and the vCPU had to wait.
    waits: AtomicU64,
}

impl Counters {
    /// Hits of `probe`.
    pub fn hits(&self, probe: ProbeId) -> u64 {
        self.hits.get(probe.0 as usize).map_or(0, |n| n.load(Ordering::Relaxed))
    }

    /// See [`Recorder::wait`].
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }
}

/// A vCPU's end.
pub struct Recorder {
    ring: Producer<Record>,
    counters: Arc<Counters>,
}

impl Recorder {
    /// Whether `n` more hits fit.
    pub fn has_room(&self, n: usize) -> bool {
        self.ring.slots() >= n
    }

    /// Counts that the vCPU waits because the reader is slow.
    pub fn count_wait(&self) {
        bump(&self.counters.waits);
    }

    /// Notes a hit down. There must be [room](Self::has_room).
    pub fn record(&mut self, ticks: u64, probe: ProbeId, rip: Gva, args: [u64; 6]) {
        if let Some(hits) = self.counters.hits.get(probe.0 as usize) {
            bump(hits);
        }
        let _ = self.ring.push(Record { ticks, probe, rip, args });
    }
}

/// Adds one without a locked instruction: there is one writer.
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

/// The reader's end, for all vCPUs.
pub struct Reader {
    rings: Vec<Consumer<Record>>,
    counters: Vec<Arc<Counters>>,
    batch: Vec<Hit>,
}

/// Rings for `cpus` vCPUs and `probes` probes.
#[must_use]
pub fn rings(cpus: usize, probes: usize) -> (Vec<Recorder>, Reader) {
    let mut reader = Reader { rings: Vec::new(), counters: Vec::new(), batch: Vec::new() };
    let recorders = (0..cpus)
        .map(|_| {
            // However many probes share a site, one hit of it fits.
            let (ring, consumer) = RingBuffer::new(RING.max(probes));
            let counters = Arc::new(Counters {
                hits: (0..probes).map(|_| AtomicU64::new(0)).collect(),
                waits: AtomicU64::new(0),
            });
            reader.rings.push(consumer);
            reader.counters.push(counters.clone());
            Recorder { ring, counters }
        })
        .collect();
    (recorders, reader)
}

impl Reader {
    /// What has come in since the last call, in order of time.
    pub fn drain(&mut self, rate: Rate) -> &[Hit] {
        self.batch.clear();
        for (vcpu, ring) in self.rings.iter_mut().enumerate() {
            // Only what is there now: a busy vCPU must not keep the reader here.
            for _ in 0..ring.slots() {
                let Ok(Record { ticks, probe, rip, args }) = ring.pop() else { break };
                self.batch.push(Hit { nanos: rate.nanos(ticks), vcpu, probe, rip, args });
            }
        }
        self.batch.sort_by_key(|hit| hit.nanos);
        &self.batch
    }

    /// Hits of `probe` on all vCPUs.
    #[must_use]
    pub fn hits(&self, probe: ProbeId) -> u64 {
        self.counters.iter().map(|c| c.hits(probe)).sum()
    }

    /// How often any vCPU waited for the reader.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.counters.iter().map(|c| c.waits()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ticks};

    #[test]
    fn hits_of_all_vcpus_come_out_in_order_of_time() {
        let clock = Clock::start(None);
        let (mut recorders, mut reader) = rings(2, 1);
        for n in 0..10 {
            recorders[n % 2].record(ticks(), ProbeId(0), Gva(n as u64), [0; 6]);
        }
        let order: Vec<u64> = reader.drain(clock.rate()).iter().map(|hit| hit.rip.0).collect();
        assert_eq!(order, (0..10).collect::<Vec<_>>());
        assert_eq!(reader.hits(ProbeId(0)), 10);
        assert!(reader.drain(clock.rate()).is_empty());
    }

    #[test]
    fn a_full_ring_says_so_before_a_hit_is_lost() {
        let (mut recorders, mut reader) = rings(1, 1);
        let mut recorded = 0;
        while recorders[0].has_room(2) {
            recorders[0].record(0, ProbeId(0), Gva(0), [0; 6]);
            recorded += 1;
        }
        assert_eq!(recorded, RING - 1);
        let clock = Clock::start(None);
        assert_eq!(reader.drain(clock.rate()).len(), recorded);
        assert!(recorders[0].has_room(2));
    }
}
