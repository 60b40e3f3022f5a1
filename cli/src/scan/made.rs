//! A scan, as lines.

use crate::record::{ScanCheckLine, ScanFindingLine};
use anyhow::Result;
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::names::Names;
use probe_engine::linux::running::RunningKernel;
use probe_engine::memory::PhysMemory;
use probe_engine::scan::processors::ProcessorState;
use probe_engine::scan::{Scan, scan};

/// Scans the memory of a guest that has ended.
pub(crate) struct Scanner {
    /// The kernel's file.
    image: Vec<u8>,
}

/// What has come of the checks.
pub(crate) struct ScanLines {
    pub(crate) findings: Vec<ScanFindingLine>,
    pub(crate) checks: Vec<ScanCheckLine>,
}

impl Scanner {
    /// One for a guest with this kernel.
    pub(crate) fn new(image: Vec<u8>) -> Self {
        Self { image }
    }

    pub(crate) fn scan(
        &self,
        memory: &dyn PhysMemory,
        running: &RunningKernel,
        processors: &[ProcessorState],
    ) -> Result<ScanLines> {
        let kernel = Kernel::read(&self.image, None)?;
        Ok(ScanLines::of(&scan(&kernel, running, memory, processors)?, &kernel, running))
    }
}

impl ScanLines {
    pub(crate) fn of(scan: &Scan, kernel: &Kernel, running: &RunningKernel) -> Self {
        let names = Names { kernel: kernel.symbols(), slide: running.map.slide(), modules: &scan.names };
        let findings = scan.checks.iter().flat_map(|made| {
            made.findings.iter().map(|finding| ScanFindingLine::of(made.check, finding, &names))
        });
        Self { findings: findings.collect(), checks: scan.checks.iter().map(ScanCheckLine::of).collect() }
    }

    /// How much was found.
    pub(crate) fn found(&self) -> u64 {
        self.checks.iter().map(ScanCheckLine::findings).sum()
    }
}
