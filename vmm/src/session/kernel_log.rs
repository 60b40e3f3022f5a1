//! The log of the guest's kernel, and the reports in it.

use super::kept_console::ConsoleBytes;
use crate::memory::GuestRam;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::linux::printk::{PrintkLayout, PrintkReader, PrintkRecord, console};
use probe_engine::linux::running::RunningKernel;
use probe_engine::linux::splat::{Splat, SplatParser};
use probe_engine::virt_memory::VirtMemory;
use std::time::{Duration, Instant};

/// How often it is looked at where nobody says that something was written.
const OFTEN: Duration = Duration::from_millis(100);

/// The log, as far as it was read.
pub(super) struct KernelLog {
    source: LogSource,
    reader: PrintkReader,
    parser: SplatParser,
    looked: Instant,
}

/// Where the log is.
enum LogSource {
    /// Nobody wants to know.
    None,
    /// In the guest's memory, in a kernel that was not moved.
    Ring(Box<PrintkLayout>),
    /// On the console alone, as far as that can be told.
    Console(ConsoleBytes),
}

impl KernelLog {
    /// The log of `kernel`, if it `is_wanted`, which otherwise is on the `console`.
    pub(super) fn new(kernel: &Landmarks, is_wanted: bool, console: ConsoleBytes, now: Instant) -> Self {
        let source = match &kernel.printk {
            _ if !is_wanted => LogSource::None,
            Some(layout) => LogSource::Ring(Box::new(layout.clone())),
            None => LogSource::Console(console),
        };
        Self { source, reader: PrintkReader::default(), parser: SplatParser::default(), looked: now }
    }

    /// Whether it is time to look at it.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        !matches!(self.source, LogSource::None) && now.saturating_duration_since(self.looked) >= OFTEN
    }

    /// How many of its records were gone before they were read.
    pub(super) fn lost(&self) -> u64 {
        self.reader.lost()
    }

    /// The reports that are whole `now`.
    pub(super) fn look(
        &mut self,
        running: Option<&RunningKernel>,
        ram: &GuestRam,
        now: Instant,
    ) -> Vec<Splat> {
        self.looked = now;
        let mut splats = Vec::new();
        if !self.read(running, ram, false, &mut splats) {
            splats.extend(self.parser.pause());
        }
        splats
    }

    /// The same where no CPU runs, and one is at the end of what it reports: whole or not.
    pub(super) fn told(
        &mut self,
        running: Option<&RunningKernel>,
        ram: &GuestRam,
        now: Instant,
    ) -> Vec<Splat> {
        self.looked = now;
        self.rest(running, ram, false)
    }

    /// The same when the guest has ended: whole or not.
    pub(super) fn finish(&mut self, running: Option<&RunningKernel>, ram: &GuestRam) -> Vec<Splat> {
        self.rest(running, ram, true)
    }

    /// All that there is, whole or not.
    fn rest(&mut self, running: Option<&RunningKernel>, ram: &GuestRam, has_ended: bool) -> Vec<Splat> {
        let mut splats = Vec::new();
        while self.read(running, ram, has_ended, &mut splats) {}
        splats.extend(self.parser.finish());
        splats
    }

    /// Reads what has come in, and says whether anything has.
    fn read(
        &mut self,
        running: Option<&RunningKernel>,
        ram: &GuestRam,
        has_ended: bool,
        splats: &mut Vec<Splat>,
    ) -> bool {
        let records: Vec<PrintkRecord> = match (&self.source, running) {
            (LogSource::Ring(layout), Some(running)) => {
                let memory = VirtMemory::new(ram, running.space);
                self.reader.read(&layout.slid(running.map.slide()), &memory, has_ended)
            }
            (LogSource::Console(bytes), _) => {
                let bytes = bytes.take(has_ended);
                bytes.split_inclusive(|byte| *byte == b'\n').map(console::record).collect()
            }
            (LogSource::Ring(_), None) | (LogSource::None, _) => Vec::new(),
        };
        for record in &records {
            splats.extend(self.parser.record(record));
        }
        !records.is_empty()
    }
}
