//! Looking at the memory of a guarded guest, in stops of the world and when the guest has ended.

use super::Sink;
use super::control::Control;
use super::guests_own::GuestsOwn;
use super::patches::Hidden;
use super::report::Outcome;
use super::scanning::{AfterScan, StoodStill};
use crate::clock;
use probe_engine::addr::Gpa;
use std::collections::BTreeMap;
use std::time::Instant;

impl Control<'_> {
    /// The kernel has sealed itself, while no vCPU runs: from now on its memory is looked at. The first look finds what the kernel has
    /// changed for ever, which later ones need not explain again.
    pub(super) fn begin_scanning(&mut self) {
        if self.scanning.is_some() && self.outcome.is_none() {
            self.look_at_memory();
        }
    }

    /// Has the sink look at the memory, if that is due.
    pub(super) fn scan_if_due(&mut self) {
        let is_due = self.scanning.as_ref().is_some_and(|scanning| scanning.is_due(Instant::now()));
        if is_due && self.outcome.is_none() && self.takes_events() {
            let world = self.world.clone();
            let parked = world.park(|id| self.threads.kick(id));
            self.look_at_memory();
            if self.outcome.is_some() {
                parked.end();
            }
        }
    }

    /// Has the sink look at the memory, while no vCPU runs.
    fn look_at_memory(&mut self) {
        let begun = Instant::now();
        let wanted = self.shown(self.arming.hidden(), |sink, stood| sink.scan(stood));
        let now = Instant::now();
        if let Some(guard) = &self.guard {
            guard.scanned(now - begun);
        }
        if wanted == Some(AfterScan::Stop) {
            self.outcome = Some(Outcome::Guarded);
        }
        if let Some(scanning) = &mut self.scanning {
            scanning.looked(now, wanted);
        }
    }

    /// Has the sink look at the memory that the guest leaves, in which nothing is ours any more. That of a kernel that has not sealed itself is
    /// half made.
    pub(super) fn scan_at_end(&mut self) {
        if self.guard.as_ref().is_some_and(|guard| !guard.is_standing()) {
            return;
        }
        self.shown(BTreeMap::new(), |sink, stood| sink.left(stood));
    }

    /// Shows the guest, which stands still and in whose text these bytes of ours are, to the sink.
    fn shown<T>(
        &mut self,
        hidden: BTreeMap<Gpa, Hidden>,
        look: impl FnOnce(&mut dyn Sink, &StoodStill<'_>) -> T,
    ) -> Option<T> {
        let running = self.arming.running()?;
        let processors = self.guard.as_ref().map(|guard| guard.processors()).unwrap_or_default();
        let seals = self.guard.as_ref().and_then(|guard| guard.seals());
        let memory = GuestsOwn { ram: &self.ram, hidden };
        let ticks = clock::ticks();
        let stood = StoodStill {
            memory: &memory,
            running,
            processors: &processors,
            seals: seals.as_ref(),
            nanos: self.clock.rate().nanos(ticks),
            guest_nanos: self.reader.guest_nanos(ticks),
        };
        Some(look(self.sink, &stood))
    }
}
