//! Scans of a guarded guest's memory, while the guest runs and when it has ended: each thing that they find is told once.

use super::late_kernel::LateKernel;
use super::made::ScanLines;
use super::sightings::Sightings;
use crate::record::{ScanCheckLine, Time};
use crate::scan_policy::OnFailure;
use anyhow::{Context, Result};
use probe_engine::linux::running::RunningKernel;
use probe_engine::scan::{Scan, Scanner};
use vmm::session::{AfterScan, StoodStill};

/// Looks at the memory of a guarded guest.
pub(crate) struct GuardedScans<'a> {
    kernel: &'a LateKernel,
    on_failure: OnFailure,
    scanner: Option<Scanner<'a>>,
    sightings: Sightings,
    /// How much the last look has found, at what the guest has left.
    at_end: Option<u64>,
    has_failed: bool,
}

impl<'a> GuardedScans<'a> {
    /// None yet, of a guest with this kernel.
    pub(crate) fn new(kernel: &'a LateKernel, on_failure: OnFailure) -> Self {
        let sightings = Sightings::default();
        Self { kernel, on_failure, scanner: None, sightings, at_end: None, has_failed: false }
    }

    /// Reads what is wanted of the kernel's file, which takes longer than a look at the memory.
    fn prepare(&mut self, running: &RunningKernel) -> Result<()> {
        if self.scanner.is_none() {
            self.scanner = Some(Scanner::new(self.kernel.get()?, running)?);
        }
        Ok(())
    }

    /// Looks at a guest that is to go on. Says what is to be told, and what follows.
    pub(crate) fn look(&mut self, stood: &StoodStill<'_>) -> Result<(ScanLines, AfterScan)> {
        let mut scan = self.scan(stood)?;
        let seen = self.sightings.look(&mut scan.checks);
        self.has_failed |= seen.has_failed;
        let after = match self.on_failure {
            OnFailure::Stop if seen.has_failed => AfterScan::Stop,
            _ if seen.is_unsure => AfterScan::LookAgain,
            _ => AfterScan::GoOn,
        };
        let lines = self.lines(&scan, stood)?;
        let checks = lines.checks.into_iter().filter(|check| !check.is_silent()).collect();
        Ok((ScanLines { checks, ..lines }, after))
    }

    /// Looks at what the guest has left.
    pub(crate) fn last(&mut self, stood: &StoodStill<'_>) -> Result<ScanLines> {
        let mut scan = self.scan(stood)?;
        let checks: Vec<_> = scan.checks.iter().map(ScanCheckLine::of).collect();
        self.at_end = Some(checks.iter().map(ScanCheckLine::findings).sum());
        self.has_failed |= scan.checks.iter().any(|made| made.failure.is_some());
        self.sightings.last(&mut scan.checks);
        Ok(ScanLines { checks, ..self.lines(&scan, stood)? })
    }

    /// How much there was in the memory at the end, if somebody has looked.
    pub(crate) fn at_end(&self) -> Option<u64> {
        self.at_end
    }

    /// How many things were found in all.
    pub(crate) fn found(&self) -> u64 {
        self.sightings.found()
    }

    /// Whether the guest is to be trusted no more, because a look has failed.
    pub(crate) fn is_blind(&self) -> bool {
        self.has_failed && self.on_failure == OnFailure::Stop
    }

    /// Whether no look has failed before.
    pub(crate) fn is_new_failure(&self) -> bool {
        !self.has_failed
    }

    /// A look has failed as a whole. Says what follows.
    pub(crate) fn failed(&mut self) -> AfterScan {
        self.has_failed = true;
        match self.on_failure {
            OnFailure::Stop => AfterScan::Stop,
            OnFailure::Report => AfterScan::GoOn,
        }
    }

    fn scan(&mut self, stood: &StoodStill<'_>) -> Result<Scan> {
        self.prepare(stood.running)?;
        let scanner = self.scanner.as_mut().context("nothing is known of the kernel")?;
        Ok(scanner.scan(stood.memory, stood.processors, stood.seals))
    }

    fn lines(&self, scan: &Scan, stood: &StoodStill<'_>) -> Result<ScanLines> {
        let StoodStill { running, nanos, guest_nanos, .. } = *stood;
        Ok(ScanLines::of(scan, self.kernel.get()?, running, Some(Time { nanos, guest_nanos })))
    }
}
