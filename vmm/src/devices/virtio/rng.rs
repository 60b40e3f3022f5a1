//! Random numbers, from the host's kernel (Virtio 1.2, 5.4).

use super::{Virtio, Virtqueue, spawn};
use rustix::rand::{GetRandomFlags, getrandom};
use std::io;
use std::sync::Arc;

/// A source of random numbers.
pub struct Rng {
    queues: [Arc<Virtqueue>; 1],
}

/// Bytes given at a time, at most.
const MOST: usize = 4096;

impl Rng {
    /// A source that waits for its driver.
    ///
    /// # Errors
    /// When the host is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self { queues: [Virtqueue::new()?] })
    }

    /// Starts its thread, [confined](crate::confine) or not, which ends with its queue.
    ///
    /// # Errors
    /// When the host is out of threads.
    pub fn start(&self, confine: bool) -> io::Result<()> {
        let [queue] = self.queues.clone();
        spawn("rng", confine, move || {
            while let Some(request) = queue.take(0) {
                let mut bytes = [0; MOST];
                let count = getrandom(&mut bytes, GetRandomFlags::empty()).unwrap_or(0);
                queue.put(request, &[bytes.get(..count).unwrap_or_default()]);
            }
        })
    }
}

impl Virtio for Rng {
    fn kind(&self) -> u16 {
        4
    }

    fn config(&self) -> &[u8] {
        &[]
    }

    fn queues(&self) -> &[Arc<Virtqueue>] {
        &self.queues
    }
}
