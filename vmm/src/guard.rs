//! The guard of a guest's kernel: which writes to its sealed pages are made, and what is told of the others.
//!
//! vCPUs ask when a store of the guest's has come back; devices when they are about to store. The control thread seals the kernel's
//! pages once it has booted, and hands on what was found.

use crate::memory::GuestRam;
use crate::stack::Stack;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::guard::attempt::{NoAttempt, Write};
use probe_engine::guard::judge::{Judge, Objection, Patch};
use probe_engine::guard::sealed::SealedKernel;
use probe_engine::linux::running::KernelMap;
use probe_engine::linux::task::Task;
use probe_engine::memory::PhysMemory;
use probe_engine::paging::AddressSpace;
use probe_engine::scan::processors::ProcessorState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use vmm_sys_util::eventfd::EventFd;

/// So many findings wait to be handed on; what comes beyond is counted.
const MOST_FINDINGS: usize = 256;
/// So many are told of one run: a guest may bring them about as fast as it can.
const MOST_TOLD: u64 = 10_000;
/// So many bytes of a write are told.
const MOST_BYTES: usize = 16;

/// What is guarded, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guarding {
    /// What is sealed of the guest's kernel.
    pub kernel: SealedKernel,
    /// What becomes of a write that is none of the kernel's own changes.
    pub on_write: OnWrite,
}

/// What becomes of a write that is none of the kernel's own changes. It is told in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OnWrite {
    /// It is made.
    #[default]
    Report,
    /// It is not made, and the guest goes on behind it, as behind a store to ROM.
    Deny,
    /// It is not made, and the guest is ended.
    Stop,
}

/// Somebody has written to sealed memory, or has tried to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Nanoseconds since the guest was started.
    pub nanos: u64,
    /// Nanoseconds of the guest's own clock, as [`Event::guest_nanos`](crate::events::Event::guest_nanos).
    pub guest_nanos: Option<u64>,
    /// Where, in the kernel's own mapping of itself, if that is known.
    pub at: Option<Gva>,
    /// How many bytes.
    pub length: usize,
    /// The first of them, as far as it is known what is written.
    pub bytes: Vec<u8>,
    /// Who.
    pub writer: Writer,
    /// What is wrong with that.
    pub why: Suspicion,
    /// What became of the write.
    pub done: Done,
}

/// Who writes to sealed memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Writer {
    /// A vCPU.
    Vcpu {
        /// Its number.
        id: usize,
        /// The instruction (GVA), or the one behind that where KVM has carried it out.
        rip: Gva,
        /// The task that runs, if it can be told.
        task: Option<Task>,
        /// Who had called.
        stack: Option<Stack>,
    },
    /// A device, on behalf of the guest's driver.
    Device,
}

/// What is wrong with a write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Suspicion {
    /// It is none of the kernel's own changes.
    #[error("{0}")]
    Objection(Objection),
    /// It is not known what would be written. The guest cannot go on.
    #[error("what writes is not known: {0}")]
    Unknown(NoAttempt),
    /// A descriptor leads there.
    #[error("a device was told to write there")]
    Device,
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Done {
    /// It was made.
    Written,
    /// It was not.
    Denied,
    /// It was not, and the guest was ended.
    Stopped,
}

/// What the guard has seen.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GuardReport {
    /// How many pages were sealed; `None` where the kernel did not come to that.
    pub pages: Option<u64>,
    /// The kernel's own changes of its text, in steps.
    pub patches: BTreeMap<Patch, u64>,
    /// What else was written.
    pub findings: u64,
    /// Findings that came too fast to be told.
    pub untold: u64,
}

/// A finding without its times.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) ticks: u64,
    pub(crate) at: Option<Gpa>,
    pub(crate) length: usize,
    pub(crate) bytes: Vec<u8>,
    pub(crate) writer: Writer,
    pub(crate) why: Suspicion,
    pub(crate) done: Done,
}

/// Shared by who writes and who tells.
pub struct Guard {
    pub(crate) on_write: OnWrite,
    kernel: Arc<SealedKernel>,
    sealed: OnceLock<Sealed>,
    seen: Mutex<Seen>,
    wake: Arc<EventFd>,
}

/// A kernel whose pages are sealed.
struct Sealed {
    judge: Mutex<Judge>,
    /// Where it is.
    map: KernelMap,
    /// The page tables by which its patching code writes.
    poking: Gpa,
}

impl Sealed {
    /// Where was linked what lies at `at`: the kernel's image is in one piece.
    fn link(&self, at: Gpa) -> Gva {
        let (linked, lies) = self.map.text();
        linked.add(at.0.wrapping_sub(lies.0))
    }
}

#[derive(Default)]
struct Seen {
    found: Vec<Found>,
    report: GuardReport,
    /// What vCPUs were set to when they ended.
    processors: BTreeMap<usize, ProcessorState>,
}

impl Guard {
    pub(crate) fn new(Guarding { kernel, on_write }: Guarding, wake: Arc<EventFd>) -> Self {
        Self { on_write, kernel: Arc::new(kernel), sealed: OnceLock::new(), seen: Mutex::default(), wake }
    }

    /// What it guards, at link-time addresses.
    pub(crate) fn kernel(&self) -> &SealedKernel {
        &self.kernel
    }

    /// The kernel's pages are sealed: it is where `map` says, and its patching code writes by the page tables at `poking`.
    pub(crate) fn stands(&self, map: KernelMap, poking: Gpa) {
        let judge = Mutex::new(Judge::new(self.kernel.clone(), map.slide()));
        if self.sealed.set(Sealed { judge, map, poking }).is_ok() {
            let pages = self.kernel.pages.iter().map(|range| (range.end.0 - range.start.0) / 4096);
            self.seen().report.pages = Some(pages.sum());
        }
    }

    /// Whether the kernel's patching code writes in this address space.
    pub(crate) fn is_poking(&self, space: AddressSpace) -> bool {
        self.sealed.get().is_some_and(|sealed| sealed.poking == space.root())
    }

    /// The function that writes then, in the running kernel.
    pub(crate) fn poke(&self) -> Option<Range<Gva>> {
        let Range { start, end } = self.kernel.poke;
        self.sealed.get().map(|sealed| sealed.map.gva(start)..sealed.map.gva(end))
    }

    /// Whether there is sealed memory.
    pub(crate) fn is_standing(&self) -> bool {
        self.sealed.get().is_some()
    }

    /// Makes this write, if the kernel may make it itself, which `is_poking` or not. What it may is counted.
    pub(crate) fn carry_out(&self, write: &Write, is_poking: bool, ram: &GuestRam) -> Result<(), Objection> {
        let sealed = self.sealed.get().ok_or(Objection::Writer)?;
        let read = |link: Gva, buf: &mut [u8]| ram.read(sealed.map.gpa(link), buf).is_ok();
        // Judged and made in one step: another CPU may write beside it.
        let mut judge = lock(&sealed.judge);
        let patch = judge.judge(sealed.link(write.at), &write.bytes, is_poking, read)?;
        let made = ram.unsealed().write(write.at, &write.bytes);
        drop(judge);
        made.map_err(|_| Objection::Place)?;
        *self.seen().report.patches.entry(patch).or_default() += 1;
        Ok(())
    }

    /// Tells the control thread what was found.
    pub(crate) fn tell(&self, mut found: Found) {
        found.bytes.truncate(MOST_BYTES);
        let mut seen = self.seen();
        seen.report.findings += 1;
        if seen.found.len() < MOST_FINDINGS && seen.report.findings <= MOST_TOLD {
            seen.found.push(found);
        } else {
            seen.report.untold += 1;
        }
        drop(seen);
        // A full counter wakes as well.
        let _ = self.wake.write(1);
    }

    /// What was found since the last call.
    pub(crate) fn take(&self) -> Vec<Found> {
        std::mem::take(&mut self.seen().found)
    }

    /// The vCPU of this number has ended.
    pub(crate) fn ended(&self, id: usize, processor: ProcessorState) {
        self.seen().processors.insert(id, processor);
    }

    /// What vCPUs were set to when they ended, by their numbers. One of which nobody knows is set to nothing.
    pub(crate) fn processors(&self) -> Vec<ProcessorState> {
        let seen = self.seen();
        let count = seen.processors.last_key_value().map_or(0, |(last, _)| last + 1);
        (0..count).map(|id| seen.processors.get(&id).cloned().unwrap_or_default()).collect()
    }

    /// Findings that were taken, and could not be handed on.
    pub(crate) fn lose(&self, findings: u64) {
        self.seen().report.untold += findings;
    }

    /// Where the kernel has what lies at `at` (GVA).
    pub(crate) fn place(&self, at: Gpa) -> Gva {
        self.sealed.get().map_or(Gva(at.0), |sealed| sealed.map.gva(sealed.link(at)))
    }

    pub(crate) fn report(&self) -> GuardReport {
        self.seen().report.clone()
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
