//! Virtio devices on PCI (Virtual I/O Device Version 1.2).
//!
//! The guest is hostile: whatever is in its queues is copied before it is looked at, bounded, and answered or dropped.

pub mod console;
pub mod fs;
mod plugged;
mod queue;
mod rng;
mod transport;

pub use plugged::{Extras, Folders, Plugged};
pub use queue::{Interrupt, Memory, Request, Virtqueue};
pub use rng::Rng;
pub use transport::{Doorbells, Transport};

use crate::confine::{self, Role};
use std::io;
use std::sync::Arc;
use std::thread;

/// Starts a device's thread, [confined](Role::Device) or not, which ends by itself when the device does.
fn spawn(what: &str, confine: bool, thread: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        confine::this_thread_if(confine, Role::Device);
        thread();
    };
    thread::Builder::new().name(format!("virtio-{what}")).spawn(run).map(drop)
}

/// What a device has beside its place on the bus. Its threads take what the guest puts in its queues.
pub trait Virtio: Send + Sync {
    /// Which kind of device it is (chapter 5).
    fn kind(&self) -> u16;

    /// What it can do beside what the transport does.
    fn features(&self) -> u64 {
        0
    }

    /// Its configuration, which does not change.
    fn config(&self) -> &[u8];

    /// Its queues.
    fn queues(&self) -> &[Arc<Virtqueue>];
}

#[cfg(test)]
mod tests;
