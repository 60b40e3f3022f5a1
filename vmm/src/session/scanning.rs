//! When the memory of a guarded guest is looked at while the guest runs, and what whoever looks is shown.

use probe_engine::linux::running::RunningKernel;
use probe_engine::memory::PhysMemory;
use probe_engine::scan::processors::ProcessorState;
use probe_engine::scan::seals::Seals;
use std::time::{Duration, Instant};

/// So soon is memory looked at again that changes at the moment.
const SOON: Duration = Duration::from_millis(100);

/// When memory is looked at.
pub(super) struct Scanning {
    every: Duration,
    /// `None` until the kernel has sealed itself.
    next: Option<Instant>,
}

/// A guest that stands still, to be looked at.
pub struct StoodStill<'a> {
    /// The memory as the guest has it: what is ours is not there.
    pub memory: &'a dyn PhysMemory,
    /// Where the kernel is.
    pub running: &'a RunningKernel,
    /// What the processors are set to, where the guest is [guarded](crate::guest::Guest::guard); none where it is not.
    pub processors: &'a [ProcessorState],
    /// What is sealed of modules, where the guest is guarded and its kernel says what becomes of them.
    pub seals: Option<&'a Seals>,
    /// Nanoseconds since the guest was started.
    pub nanos: u64,
    /// Nanoseconds of the guest's own clock, as [`Event::guest_nanos`](crate::events::Event::guest_nanos).
    pub guest_nanos: Option<u64>,
}

/// What whoever has looked at the memory wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterScan {
    /// The guest goes on.
    GoOn,
    /// The guest goes on, and its memory is looked at again soon: what was found may be something that changes at the moment.
    LookAgain,
    /// The guest is ended.
    Stop,
}

impl Scanning {
    /// Once in each such time.
    pub(super) fn every(every: Duration) -> Self {
        Self { every, next: None }
    }

    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next.is_some_and(|next| now >= next)
    }

    /// Somebody has looked, until `now`, and wants this.
    pub(super) fn looked(&mut self, now: Instant, wanted: Option<AfterScan>) {
        let after = if wanted == Some(AfterScan::LookAgain) { SOON } else { self.every };
        self.next = Some(now + after);
    }
}
