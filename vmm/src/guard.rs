//! The guard of a guest's kernel: which writes to its sealed pages are made, and what is told of the others.
//!
//! vCPUs ask when a store of the guest's has come back; devices when they are about to store. The control thread seals the kernel's
//! pages once it has booted, those of modules as long as they are loaded, and hands on what was found.

mod modules;
mod pages;

pub(crate) use pages::SealedWrite;

use crate::memory::GuestRam;
use crate::stack::Stack;
use pages::SealedPages;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::guard::attempt::{NoAttempt, Write};
use probe_engine::guard::entries::{EntryRegister, KernelsEntries};
use probe_engine::guard::judge::{Objection, Patch};
use probe_engine::guard::module::SealedModule;
use probe_engine::guard::sealed::SealedKernel;
use probe_engine::linux::running::KernelMap;
use probe_engine::linux::task::Task;
use probe_engine::paging::AddressSpace;
use probe_engine::scan::processors::ProcessorState;
use probe_engine::scan::seals::Seals;
use probe_engine::virt_memory::VirtMemory;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
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
    /// How long it is from one [look](crate::session::Sink::scan) at the memory to the next while the guest runs. `None`: nobody looks.
    pub scanned_every: Option<Duration>,
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
    /// It is to a register of the processor by which programs enter the kernel.
    #[error("{0} was to be {1:#x}, by which programs enter the kernel, and which the kernel does not set so")]
    Entry(EntryRegister, u64),
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
    /// How many pages of the kernel were sealed; `None` where that did not come so far.
    pub pages: Option<u64>,
    /// How many pages of modules were sealed, one after the other.
    pub module_pages: u64,
    /// How many modules were loaded that could not be sealed, or not as a whole.
    pub unsealed_modules: u64,
    /// The kernel's own changes of its text, in steps.
    pub patches: BTreeMap<Patch, u64>,
    /// What else was written.
    pub findings: u64,
    /// Findings that came too fast to be told.
    pub untold: u64,
    /// Whether the registers are guarded by which programs enter the kernel: a KVM from before Linux 5.10 cannot.
    pub guards_entries: bool,
    /// How often the memory was looked at while the guest ran.
    pub scans: u64,
    /// How long the guest stood still for the longest look.
    pub longest_scan: Duration,
}

/// A finding without its times.
#[derive(Clone)]
pub(crate) struct Found {
    pub(crate) ticks: u64,
    pub(crate) at: Option<Gva>,
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
    pages: Mutex<SealedPages>,
    /// Where it is.
    map: KernelMap,
    /// The page tables by which its patching code writes.
    poking: Gpa,
    /// How programs enter it.
    entries: KernelsEntries,
    /// Whether it says when modules are made ready, and freed.
    follows_modules: bool,
}

#[derive(Default)]
struct Seen {
    found: Vec<Found>,
    report: GuardReport,
    /// What vCPUs were set to when they stopped last.
    processors: BTreeMap<usize, ProcessorState>,
    /// What they had in the registers by which programs enter the kernel, when they stopped last before that was sealed.
    entries: BTreeMap<usize, Vec<(EntryRegister, u64)>>,
}

impl Guard {
    pub(crate) fn new(Guarding { kernel, on_write, scanned_every: _ }: Guarding, wake: Arc<EventFd>) -> Self {
        Self { on_write, kernel: Arc::new(kernel), sealed: OnceLock::new(), seen: Mutex::default(), wake }
    }

    /// What it guards, at link-time addresses.
    pub(crate) fn kernel(&self) -> &SealedKernel {
        &self.kernel
    }

    /// The kernel's pages are sealed: it is where `map` says, and its patching code writes by the page tables at `poking`.
    /// `follows_modules`: it says when modules are made ready, and freed.
    pub(crate) fn stands(&self, map: KernelMap, poking: Gpa, follows_modules: bool) {
        let pages = Mutex::new(SealedPages::new(self.kernel.clone(), map));
        let entries = self.seen().entries.values().flatten().copied().collect();
        if self.sealed.set(Sealed { pages, map, poking, entries, follows_modules }).is_ok() {
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

    /// Seals the module whose `struct module` is at `at` (GVA).
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn seal_module(
        &self,
        at: Gva,
        module: &SealedModule,
        memory: &VirtMemory<'_, GuestRam>,
    ) -> io::Result<()> {
        let Some(sealed) = self.sealed.get() else { return Ok(()) };
        let pages = lock(&sealed.pages).seal_module(at, module, memory)?;
        self.count_module(pages);
        Ok(())
    }

    /// Seals what is left of the module at `at` (GVA), whose init has run.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn module_initialized(&self, at: Gva, memory: &VirtMemory<'_, GuestRam>) -> io::Result<()> {
        let Some(sealed) = self.sealed.get() else { return Ok(()) };
        let pages = lock(&sealed.pages).module_initialized(at, memory)?;
        self.count_module(pages);
        Ok(())
    }

    /// Opens the module at `at` (GVA), which is about to be freed.
    ///
    /// # Errors
    /// The host refuses.
    pub(crate) fn open_module(&self, at: Gva, ram: &GuestRam) -> io::Result<()> {
        let Some(sealed) = self.sealed.get() else { return Ok(()) };
        lock(&sealed.pages).open_module(at, ram)
    }

    /// The module at `at` (GVA) is not sealed: it cannot be read.
    pub(crate) fn leave_out_module(&self, at: Gva) {
        if let Some(sealed) = self.sealed.get() {
            lock(&sealed.pages).leave_out(at);
            self.count_module(None);
        }
    }

    /// What is sealed of modules, to be compared with what the kernel says of them, where that says what becomes of modules.
    pub(crate) fn seals(&self) -> Option<Seals> {
        let sealed = self.sealed.get().filter(|sealed| sealed.follows_modules)?;
        Some(lock(&sealed.pages).seals())
    }

    /// Counts so many pages that were sealed of a module, or a module that cannot be sealed.
    fn count_module(&self, pages: Option<u64>) {
        let mut seen = self.seen();
        match pages {
            Some(pages) => seen.report.module_pages += pages,
            None => seen.report.unsealed_modules += 1,
        }
    }

    /// These writes to sealed memory, of which those are one that follow one another as the kernel has it.
    pub(crate) fn pieces(&self, writes: Vec<Write>) -> Vec<SealedWrite> {
        self.sealed.get().map(|sealed| lock(&sealed.pages).pieces(writes)).unwrap_or_default()
    }

    /// Makes this write, if the kernel may make it itself, which `is_poking` or not. What it may is counted.
    pub(crate) fn carry_out(
        &self,
        write: &SealedWrite,
        is_poking: bool,
        ram: &GuestRam,
    ) -> Result<(), Objection> {
        let sealed = self.sealed.get().ok_or(Objection::Writer)?;
        // Judged and made in one step: another CPU may write beside it.
        let patch = lock(&sealed.pages).carry_out(write, is_poking, ram)?;
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

    /// Whether the kernel itself sets this register so.
    pub(crate) fn permits(&self, register: EntryRegister, value: u64) -> bool {
        self.sealed.get().is_some_and(|sealed| sealed.entries.permits(register, value))
    }

    /// What the vCPU of this number has in the registers by which programs enter the kernel, while that boots.
    pub(crate) fn enters_by(&self, id: usize, registers: Vec<(EntryRegister, u64)>) {
        self.seen().entries.insert(id, registers);
    }

    /// The vCPU of this number has stopped.
    pub(crate) fn stopped(&self, id: usize, processor: ProcessorState) {
        self.seen().processors.insert(id, processor);
    }

    /// What vCPUs were set to when they stopped last, by their numbers. One of which nobody knows is set to nothing.
    pub(crate) fn processors(&self) -> Vec<ProcessorState> {
        let seen = self.seen();
        let count = seen.processors.last_key_value().map_or(0, |(last, _)| last + 1);
        (0..count).map(|id| seen.processors.get(&id).cloned().unwrap_or_default()).collect()
    }

    /// The registers are guarded by which programs enter the kernel.
    pub(crate) fn guards_entries(&self) {
        self.seen().report.guards_entries = true;
    }

    /// The memory was looked at, for which the guest stood still so long.
    pub(crate) fn scanned(&self, time: Duration) {
        let mut seen = self.seen();
        seen.report.scans += 1;
        seen.report.longest_scan = seen.report.longest_scan.max(time);
    }

    /// Findings that were taken, and could not be handed on.
    pub(crate) fn lose(&self, findings: u64) {
        self.seen().report.untold += findings;
    }

    /// Where the kernel has what lies at `at` (run-time GVA).
    pub(crate) fn place(&self, at: Gpa) -> Gva {
        self.sealed.get().map_or(Gva(at.0), |sealed| lock(&sealed.pages).gva(at))
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
