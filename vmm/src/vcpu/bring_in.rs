//! Memory of a program that a hit reads and that is not there: the task itself brings it in before the hit is taken, where it may sleep.

use super::Vcpu;
use super::tables::VcpuTables;
use crate::errands::{Next, Worker};
use crate::memory::GuestRam;
use crate::probe::Active;
use crate::trap::Breakpoint;
use probe_engine::addr::Gva;
use probe_engine::capture::{LONGEST_RECORD, Scene};
use probe_engine::errand::Call;
use probe_engine::paging::PageFault;
use probe_engine::probe::table::{Attached, Site};
use probe_engine::regs::Regs;
use probe_engine::virt_memory::{ReadVirt, VirtMemory};
use std::cell::Cell;
use std::sync::Arc;

/// So many pages are brought in for a hit at most.
const MOST: usize = 64;

/// Memory that tells where it is missing first, but for where that was tried.
struct Missing<'a> {
    memory: &'a VirtMemory<'a, GuestRam>,
    tried: &'a [Gva],
    first: Cell<Option<Gva>>,
}

impl ReadVirt for Missing<'_> {
    const LONGEST_STRING: u16 = <VirtMemory<'_, GuestRam> as ReadVirt>::LONGEST_STRING;

    fn read(&self, at: Gva, buf: &mut [u8]) -> Result<(), PageFault> {
        self.memory.read(at, buf).inspect_err(|fault| {
            let is_new = self.first.get().is_none() && !self.tried.contains(&fault.at);
            if is_new && !fault.at.is_kernels() {
                self.first.set(Some(fault.at));
            }
        })
    }
}

/// Where a process's memory is missing first that `probes` read, but for where it was tried to bring that in.
fn missing(
    probes: &[Arc<Active>],
    regs: &Regs,
    memory: &VirtMemory<'_, GuestRam>,
    slide: u64,
    tried: &[Gva],
) -> Option<Gva> {
    let memory = Missing { memory, tried, first: Cell::new(None) };
    // What is the task's or the CPU's own leads to no memory of a process.
    let scene = Scene { regs, entered_with: None, memory: &memory, slide, task: None, cpu: 0, per_cpu: None };
    let mut record = Vec::with_capacity(LONGEST_RECORD);
    probes.iter().find_map(|probe| {
        record.clear();
        probe.plan.capture.take(&scene, &mut record);
        memory.first.get()
    })
}

impl Vcpu {
    /// The registers with which the task at `breakpoint` makes the first of the calls that bring in what it reads for probes in
    /// programs; `None` where nothing is missing that could be brought in.
    pub(super) fn bring_in(
        &mut self,
        breakpoint: &Breakpoint,
        site: &Site<Arc<Active>>,
        tables: &VcpuTables,
    ) -> Option<Regs> {
        let regs = breakpoint.regs;
        let reads = |attached: &&Attached<Arc<Active>>| {
            let probe = &attached.probe;
            probe.consumer().is_some()
                && probe.is_called(&regs, tables.window)
                && probe.plan.capture.follows_pointers()
        };
        let function = tables.fault_in?;
        let probes: Vec<_> =
            site.probes.iter().filter(reads).map(|attached| attached.probe.clone()).collect();
        if probes.is_empty() {
            return None;
        }
        let slide = tables.kernel.slide;
        let memory = VirtMemory::new(&*self.ram, self.kvm.address_space());
        missing(&probes, &regs, &memory, slide, &[])?;
        let mut tried = Vec::new();
        let next = move |worker: &mut Worker<'_>| match missing(&probes, &regs, &worker.memory, slide, &tried)
            .filter(|_| tried.len() < MOST)
        {
            Some(at) => {
                tried.push(at);
                Next::Call(Call::new(function, &[at.0, 1]))
            }
            None => Next::Done(()),
        };
        // Nobody waits for what comes of it but the task itself.
        tables.errands.want_for_itself(self.id, next).ok()?;
        self.first_call(breakpoint, tables)
    }
}
