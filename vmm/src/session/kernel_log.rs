//! The log of the guest's kernel, and the reports in it.

use super::stage::RunningKernel;
use crate::memory::GuestRam;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::printk::{PrintkLayout, PrintkReader};
use probe_engine::linux::splat::{Splat, SplatParser};
use probe_engine::virt_memory::VirtMemory;
use std::time::{Duration, Instant};

/// How often it is looked at where nobody says that something was written.
const OFTEN: Duration = Duration::from_millis(100);

/// The log, as far as it was read.
pub(super) struct KernelLog {
    /// Where it is, in a kernel that was not moved; `None` where nobody wants to know, or can.
    layout: Option<PrintkLayout>,
    reader: PrintkReader,
    parser: SplatParser,
    looked: Instant,
}

impl KernelLog {
    /// The log of `kernel`, if it `is_wanted`.
    pub(super) fn new(kernel: &Landmarks, is_wanted: bool, now: Instant) -> Self {
        Self {
            layout: kernel.printk.clone().filter(|_| is_wanted),
            reader: PrintkReader::default(),
            parser: SplatParser::default(),
            looked: now,
        }
    }

    /// Whether it is time to look at it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.layout.is_some() && now.saturating_duration_since(self.looked) >= OFTEN
    }

    /// How many of its records were gone before they were read.
    pub(super) fn lost(&self) -> u64 {
        self.reader.lost()
    }

    /// The reports that are whole `now`.
    pub(super) fn look(&mut self, running: &RunningKernel, ram: &GuestRam, now: Instant) -> Vec<Splat> {
        self.looked = now;
        let mut splats = Vec::new();
        if !self.read(running, ram, false, &mut splats) {
            splats.extend(self.parser.pause());
        }
        splats
    }

    /// The same when the guest has ended: whole or not.
    pub(super) fn finish(&mut self, running: &RunningKernel, ram: &GuestRam) -> Vec<Splat> {
        let mut splats = Vec::new();
        while self.read(running, ram, true, &mut splats) {}
        splats.extend(self.parser.finish());
        splats
    }

    /// Reads what has come in, and says whether anything has.
    fn read(
        &mut self,
        running: &RunningKernel,
        ram: &GuestRam,
        has_ended: bool,
        splats: &mut Vec<Splat>,
    ) -> bool {
        let Some(layout) = &self.layout else { return false };
        let memory = VirtMemory::new(ram, running.space);
        let records = self.reader.read(&layout.slid(running.map.slide()), &memory, has_ended);
        for record in &records {
            splats.extend(self.parser.record(record));
        }
        !records.is_empty()
    }
}
