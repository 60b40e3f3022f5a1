//! A queue as a device's threads see it: requests come, and answers go.

use super::super::pci::Msix;
use crate::memory::GuestRam;
use probe_engine::addr::Gpa;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use virtio_queue::{DescriptorChain, Queue, QueueOwnedT, QueueT, Reader};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

/// The guest's memory, of which a device has the RAM alone.
pub type Memory = Arc<GuestRam>;

/// An interrupt of which the guest chooses the number.
#[derive(Clone)]
pub struct Interrupt {
    pub(super) msix: Arc<Msix>,
    pub(super) vector: Arc<AtomicU16>,
}

impl Interrupt {
    fn raise(&self) {
        self.msix.raise(self.vector.load(Ordering::Relaxed));
    }
}

/// A queue. It is live between the driver's start and its reset, which may come at any time.
pub struct Virtqueue {
    /// Written to when there may be a request.
    kick: EventFd,
    state: Mutex<QueueState>,
}

#[derive(Default)]
struct QueueState {
    live: Option<Live>,
    /// How often it has become live: what was taken before is not answered.
    generation: u64,
    is_over: bool,
}

struct Live {
    queue: Queue,
    memory: Memory,
    interrupt: Interrupt,
}

/// What the guest has put into a queue.
pub struct Request {
    /// What it says.
    pub bytes: Vec<u8>,
    /// Whether it says more than that.
    pub is_cut: bool,
    chain: Chain,
    generation: u64,
}

impl Request {
    /// How many bytes an answer may have.
    #[must_use]
    pub fn room(&self) -> usize {
        let lengths = self.chain.clone().writable().map(|descriptor| descriptor.len() as usize);
        lengths.fold(0, usize::saturating_add)
    }
}

impl Virtqueue {
    /// The most requests that can be in a queue.
    pub const SIZE: u16 = 256;

    /// A queue that waits for its driver.
    ///
    /// # Errors
    /// When the host is out of descriptors.
    pub fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self { kick: EventFd::new(0)?, state: Mutex::default() }))
    }

    /// What the guest's doorbell rings.
    #[must_use]
    pub fn kick(&self) -> &EventFd {
        &self.kick
    }

    /// Waits for the next request, and copies at most `most` bytes of it. `None` when the device is [over](Self::end).
    pub fn take(&self, most: usize) -> Option<Request> {
        loop {
            {
                let mut state = self.lock();
                if state.is_over {
                    return None;
                }
                if let Some(request) = state.take(most) {
                    return Some(request);
                }
            }
            // A descriptor of ours cannot fail, and a wake-up for nothing does no harm.
            let _ = self.kick.read();
        }
    }

    /// Answers `request` with as much of `reply` as it has room for. One of an earlier life of the queue is dropped.
    pub fn put(&self, request: Request, reply: &[&[u8]]) {
        let mut state = self.lock();
        if state.generation == request.generation
            && state.live.as_mut().is_some_and(|live| live.put(request, reply).is_none())
        {
            state.live = None;
        }
    }

    /// The driver has set the queue up.
    pub(super) fn start(&self, queue: Queue, memory: Memory, interrupt: Interrupt) {
        let mut state = self.lock();
        state.generation += 1;
        state.live = Some(Live { queue, memory, interrupt });
        drop(state);
        self.ring();
    }

    /// The driver resets the device: from now on no memory of the guest is touched.
    pub(super) fn reset(&self) {
        self.lock().live = None;
    }

    /// There may be a request.
    pub(super) fn ring(&self) {
        // The counter is full only where many wake-ups wait to be seen.
        let _ = self.kick.write(1);
    }

    /// Nobody is to wait any more.
    pub fn end(&self) {
        let mut state = self.lock();
        (state.live, state.is_over) = (None, true);
        drop(state);
        self.ring();
    }

    /// Whether requests are taken.
    #[cfg(test)]
    pub(super) fn is_live(&self) -> bool {
        self.lock().live.is_some()
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueState {
    fn take(&mut self, most: usize) -> Option<Request> {
        let live = self.live.as_mut()?;
        let Some(found) = live.next(most) else {
            // The rings make no sense: the device rests until it is reset.
            self.live = None;
            return None;
        };
        let (chain, bytes, is_cut) = found?;
        Some(Request { bytes, is_cut, chain, generation: self.generation })
    }
}

type Chain = DescriptorChain<Arc<GuestMemoryMmap>>;
type Found = (Chain, Vec<u8>, bool);

impl Live {
    /// The next request, if there is one now. `None` when the rings make no sense: also where more chains in a row do than a
    /// queue holds, which another CPU of the guest can go on with for ever, while a reset waits.
    fn next(&mut self, most: usize) -> Option<Option<Found>> {
        self.may_answer()?;
        for _ in 0..=Virtqueue::SIZE {
            let chain = self.queue.iter(self.memory.of_devices()).ok()?.next();
            let Some(chain) = chain else {
                match self.queue.enable_notification(&*self.memory.of_devices()).ok()? {
                    true => continue,
                    false => return Some(None),
                }
            };
            match read(&self.memory, &chain, most) {
                Some((bytes, is_cut)) => return Some(Some((chain, bytes, is_cut))),
                // It leads out of the guest's RAM.
                None => self.used(chain.head_index(), 0)?,
            }
        }
        None
    }

    fn put(&mut self, request: Request, reply: &[&[u8]]) -> Option<()> {
        let head = request.chain.head_index();
        let written = write(&self.memory, request.chain, reply).unwrap_or(0);
        self.used(head, written)
    }

    /// Whether the ring is where a device may write.
    fn may_answer(&self) -> Option<()> {
        // virtq_used: flags, index, elements of eight bytes, avail_event (virtio 1.2, 2.7.8).
        let length = 6 + 8 * usize::from(self.queue.size());
        (!self.memory.refuses(Gpa(self.queue.used_ring()), length)).then_some(())
    }

    fn used(&mut self, head: u16, written: u32) -> Option<()> {
        self.may_answer()?;
        let memory = self.memory.of_devices();
        self.queue.add_used(&*memory, head, written).ok()?;
        if self.queue.needs_notification(&*memory).ok()? {
            self.interrupt.raise();
        }
        Some(())
    }
}

/// The first `most` bytes that a chain has for the device, and whether there are more.
fn read(memory: &Memory, chain: &Chain, most: usize) -> Option<(Vec<u8>, bool)> {
    let of_devices = memory.of_devices();
    let mut reader: Reader<'_> = Reader::new(&*of_devices, chain.clone()).ok()?;
    let length = reader.available_bytes();
    let mut bytes = vec![0; length.min(most)];
    reader.read_exact(&mut bytes).ok()?;
    Some((bytes, length > most))
}

/// Writes as much of `reply` as the chain has room for, unless some of that is no RAM or sealed. Returns how much that was.
fn write(memory: &Memory, chain: Chain, reply: &[&[u8]]) -> Option<u32> {
    let of_devices = memory.of_devices();
    // Looked at once: the guest may change its descriptors meanwhile.
    let parts: Vec<(GuestAddress, usize)> =
        chain.writable().map(|descriptor| (descriptor.addr(), descriptor.len() as usize)).collect();
    let may_write = |(at, length): &(GuestAddress, usize)| {
        of_devices.check_range(*at, *length) && !memory.refuses(Gpa(at.0), *length)
    };
    if !parts.iter().all(may_write) {
        return None;
    }
    let mut bytes = reply.iter().flat_map(|part| part.iter().copied()).peekable();
    let mut written = 0;
    for (at, length) in parts {
        let part: Vec<u8> = bytes.by_ref().take(length).collect();
        of_devices.write_slice(&part, at).ok()?;
        written += part.len();
        if bytes.peek().is_none() {
            break;
        }
    }
    u32::try_from(written).ok()
}
