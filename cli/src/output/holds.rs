//! Orders that are forced, as the user calls them.

use super::names::GuestNames;
use super::stands;
use crate::record::{GateEnd, HeldCpu, HoldLine};
use probe_engine::probe::pace::{GateId, HoldMode, Pace};
use probe_engine::request::ProbeRequest;
use std::collections::BTreeMap;
use vmm::session::{GateReport, Held, HoldEnd, Stands};

/// What the user calls the two ends of each gate.
pub(super) struct GateNames(BTreeMap<GateId, Ends>);

/// Where a task is held, and where another one has to come.
#[derive(Clone, Default)]
struct Ends {
    hold: String,
    until: String,
    /// What the CPU of a task that is held is to do.
    mode: HoldMode,
}

impl GateNames {
    /// Those of the gates that `probes` name.
    pub(super) fn of(probes: &[ProbeRequest]) -> Self {
        let mut gates = BTreeMap::<GateId, Ends>::new();
        for asked in probes {
            let name = || asked.pattern.clone().unwrap_or_else(|| asked.name());
            match asked.plan.pace {
                Some(Pace::Hold { gate, mode, .. }) => {
                    let ends = gates.entry(gate).or_default();
                    (ends.hold, ends.mode) = (name(), mode);
                }
                Some(Pace::Open { gate }) => gates.entry(gate).or_default().until = name(),
                Some(Pace::Delay(_) | Pace::Turn { .. } | Pace::Stop) | None => {}
            }
        }
        Self(gates)
    }

    fn ends(&self, gate: GateId) -> Ends {
        self.0.get(&gate).cloned().unwrap_or_default()
    }

    /// The line of a task that was held.
    pub(super) fn line(&self, held: &Held, names: &GuestNames) -> HoldLine {
        let Ends { hold, until, mode } = self.ends(held.gate);
        let (by, cpus, sleepers) = match &held.end {
            HoldEnd::Opened { by } => (u32::try_from(*by).ok(), Vec::new(), Vec::new()),
            HoldEnd::Released => (None, Vec::new(), Vec::new()),
            HoldEnd::TimedOut(Stands { cpus, sleepers }) => (
                None,
                cpus.iter().map(|stood| stands::cpu(stood, names)).collect(),
                sleepers.iter().map(|sleeper| stands::sleeper(sleeper, names)).collect(),
            ),
        };
        HoldLine {
            time_ns: held.nanos,
            guest_ns: held.guest_nanos,
            vcpu: held.vcpu as u32,
            task: held.task,
            hold,
            until,
            waited_ns: held.waited,
            cpu: match (mode, held.mode) {
                (HoldMode::Cpu, _) => HeldCpu::Waited,
                (HoldMode::Task, HoldMode::Task) => HeldCpu::RanOthers,
                (HoldMode::Task, HoldMode::Cpu) => HeldCpu::CouldNot,
            },
            by,
            released: held.end == HoldEnd::Released,
            cpus,
            sleepers,
        }
    }

    /// What a gate came to.
    pub(super) fn end(&self, gate: &GateReport) -> GateEnd {
        let Ends { hold, until, .. } = self.ends(gate.gate);
        let GateReport { reached, timed_out, released, unfinished, passed, .. } = *gate;
        GateEnd { hold, until, reached, timed_out, released, unfinished, passed }
    }
}
