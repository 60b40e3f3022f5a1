//! Calls that a thread of the host's has the guest make, one after the other.

use super::{Errands, one};
use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::errand::Call;
use probe_engine::paging::{AddressSpace, PageFault};
use probe_engine::virt_memory::VirtMemory;
use std::sync::Arc;
use std::time::Duration;
use vmm_sys_util::eventfd::EventFd;

/// How long the guest may take for one call.
const PATIENCE: Duration = Duration::from_secs(60);

/// The guest makes no more calls, or does not come back from one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone;

/// Why something is not done.
pub(super) enum Failed {
    Gone,
    Missing,
    Refused(String),
}

impl From<Gone> for Failed {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl From<PageFault> for Failed {
    fn from(fault: PageFault) -> Self {
        Self::Refused(format!("the guest's memory cannot be read: {fault}"))
    }
}

/// Has the guest call its own functions. Whoever calls waits, and is no thread that the guest waits for.
pub(crate) struct Caller {
    pub(crate) errands: Arc<Errands>,
    /// Wakes who sends for workers of the guest's.
    pub(crate) wake: Arc<EventFd>,
    pub(crate) ram: Arc<GuestRam>,
    /// The kernel's own page tables.
    pub(crate) space: AddressSpace,
    /// What was added to the kernel's link-time addresses.
    pub(crate) slide: u64,
}

impl Caller {
    /// Calls `function`, which was linked there, and gives what that returns.
    pub(crate) fn call(&self, function: Gva, args: &[u64]) -> Result<u64, Gone> {
        let wanted = self.errands.want(one(Call::new(function, args))).map_err(|_| Gone)?;
        // A full counter wakes as well.
        let _ = self.wake.write(1);
        wanted.wait(PATIENCE).map_err(|_| Gone)
    }

    /// The guest's memory, as its kernel sees it.
    pub(crate) fn memory(&self) -> VirtMemory<'_, GuestRam> {
        VirtMemory::new(&*self.ram, self.space)
    }
}
