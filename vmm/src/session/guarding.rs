//! Sealing the kernel's pages once it has booted, and handing on what was found since.

use super::control::Control;
use super::report::{Death, Outcome};
use crate::clock;
use crate::guard::{Done, Finding, Found, Guard, Suspicion, Writer};
use crate::memory::GuestRam;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::linux::running::RunningKernel;
use probe_engine::paging::{Access, PageFault};
use probe_engine::virt_memory::VirtMemory;
use std::io;

/// The kernel's pages cannot be sealed.
#[derive(Debug, thiserror::Error)]
enum SealError {
    #[error("it has no address space in which it changes its text")]
    NoPoking(#[from] PageFault),
    #[error("the host refused to write-protect its pages")]
    Host(#[from] io::Error),
}

impl Control<'_> {
    /// The kernel has sealed itself, while no vCPU runs.
    pub(super) fn seal(&mut self) {
        let Some((guard, running)) = self.guard.as_ref().zip(self.arming.running()) else { return };
        if let Err(error) = seal(guard, &self.ram, *running) {
            let words = format!("its kernel cannot be guarded: {error}");
            self.outcome = Some(Outcome::Died(Death::Lost(words)));
        }
    }

    /// Hands on what has been written to sealed memory.
    pub(super) fn hand_on_findings(&mut self) {
        let Some(guard) = &self.guard else { return };
        for (at, length) in self.ram.take_refused() {
            let (writer, why, done) = (Writer::Device, Suspicion::Device, Done::Denied);
            guard.tell(Found {
                ticks: clock::ticks(),
                at: Some(at),
                length,
                bytes: Vec::new(),
                writer,
                why,
                done,
            });
        }
        let rate = self.clock.rate();
        let told = |found: Found| Finding {
            nanos: rate.nanos(found.ticks),
            guest_nanos: self.reader.guest_nanos(found.ticks),
            at: found.at.map(|at| guard.place(at)),
            length: found.length,
            bytes: found.bytes,
            writer: found.writer,
            why: found.why,
            done: found.done,
        };
        let findings: Vec<Finding> = guard.take().into_iter().map(told).collect();
        if findings.is_empty() {
            return;
        }
        if self.sink_failed || self.sink.findings(&findings).is_err() {
            self.sink_failed = true;
            guard.lose(findings.len() as u64);
        }
    }
}

fn seal(guard: &Guard, ram: &GuestRam, RunningKernel { map, space }: RunningKernel) -> Result<(), SealError> {
    let kernel = guard.kernel();
    let memory = VirtMemory::new(ram, space);
    // struct mm_struct *poking_mm; pgd_t *pgd
    let poking = memory.read_u64(map.gva(kernel.poking_space))?;
    let top = memory.read_u64(Gva(poking).add(kernel.page_table))?;
    let poking: Gpa = memory.translate(Gva(top), Access::Read)?;
    guard.stands(map, poking);
    for pages in &kernel.pages {
        ram.seal(&(map.gpa(pages.start)..map.gpa(pages.end)))?;
    }
    Ok(())
}
