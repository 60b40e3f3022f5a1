//! What sending for a worker of the guest's kernel takes.

use crate::errands::Errands;
use crate::kvm::MessageSender;
use crate::memory::GuestRam;
use crate::trap;
use probe_engine::addr::Gva;
use probe_engine::paging::PageFault;
use probe_engine::virt_memory::VirtMemory;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long it takes until it is tried again to send for a worker where the guest was not ready.
const AGAIN: Duration = Duration::from_millis(50);
/// A store of a vector to this address interrupts the CPU whose local APIC has number 0 (Intel SDM volume 3, 11.11.1).
const APIC_0: u64 = 0xfee0_0000;

/// What sending takes.
pub(super) struct Sending {
    pub(super) errands: Arc<Errands>,
    messages: MessageSender,
    /// The interrupt descriptor table of CPU 0, once it is the one that stays.
    pub(super) idt: Option<Gva>,
    vector: Option<u8>,
    not_before: Instant,
}

impl Sending {
    pub(super) fn new(errands: Arc<Errands>, messages: MessageSender) -> Self {
        Self { errands, messages, idt: None, vector: None, not_before: Instant::now() }
    }

    /// Whether it is time to send for a worker.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.idt.is_some() && now >= self.not_before && self.errands.wants_worker()
    }

    /// It is tried now: again after a while, unless it [succeeds](Self::interrupt).
    pub(super) fn begin(&mut self, now: Instant) {
        self.not_before = now + AGAIN;
    }

    /// The vector that leads to `handler` in the guest, once its table has it.
    pub(super) fn vector(
        &mut self,
        handler: Gva,
        memory: &VirtMemory<'_, GuestRam>,
    ) -> Result<Option<u8>, PageFault> {
        if let (None, Some(idt)) = (self.vector, self.idt) {
            self.vector = vector_of(handler, idt, memory)?;
        }
        Ok(self.vector)
    }

    /// Has CPU 0 look at its list.
    pub(super) fn interrupt(&mut self, vector: u8, now: Instant) {
        self.messages.send(APIC_0, vector.into());
        self.not_before = now;
    }
}

/// The vector that leads to `handler`.
fn vector_of(handler: Gva, idt: Gva, memory: &VirtMemory<'_, GuestRam>) -> Result<Option<u8>, PageFault> {
    for vector in 0..=u8::MAX {
        if trap::handler(idt, vector, memory)? == handler {
            return Ok(Some(vector));
        }
    }
    Ok(None)
}
