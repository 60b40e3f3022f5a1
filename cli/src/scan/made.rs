//! A scan, as lines.

use crate::record::{ScanCheckLine, ScanFindingLine, Time};
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::names::Names;
use probe_engine::linux::running::RunningKernel;
use probe_engine::scan::Scan;

/// What has come of the checks.
pub(crate) struct ScanLines {
    pub(crate) findings: Vec<ScanFindingLine>,
    pub(crate) checks: Vec<ScanCheckLine>,
}

impl ScanLines {
    /// Those of `scan`, made at this `time` of the guest's, if that is known.
    pub(crate) fn of(scan: &Scan, kernel: &Kernel, running: &RunningKernel, time: Option<Time>) -> Self {
        let names = Names { kernel: kernel.symbols(), slide: running.map.slide(), modules: &scan.names };
        let findings = scan.checks.iter().flat_map(|made| {
            made.findings.iter().map(|finding| ScanFindingLine::of(made.check, finding, &names, time))
        });
        Self { findings: findings.collect(), checks: scan.checks.iter().map(ScanCheckLine::of).collect() }
    }
}
