//! Switching tracepoints of the guest's, as its own functions do it.
//!
//! They are called by a task that comes by where it may sleep, so that no event is missed after that: before drivers are started,
//! before a module's init runs, and when a module goes. At any other time a worker of the guest's kernel is
//! [sent for](super::errands). A probe stands once its tracepoint is switched on.

use super::control::Control;
use super::registry::RegisteredProbe;
use super::report::ProbeState;
use super::tracepoints::{Answering, UnderWay, switched_on};
use crate::errands::{Step, SwitchTracepoints};
use crate::probe::Command;
use crate::vcpu::VcpuTables;
use crate::world::Parked;
use probe_engine::linux::tracepoints::TracepointCalls;
use probe_engine::probe::table::ProbeId;
use rustix::io::Errno;

impl Control<'_> {
    /// Has tracepoints switched: by the task that waits at a trap of ours on this vCPU, or by a worker of the guest's kernel.
    pub(super) fn switch_tracepoints(
        &mut self,
        passer: Option<usize>,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) {
        let Some((calls, slide)) = self.switching() else { return };
        if self.panic.is_some() || (passer.is_none() && !self.arming.hooks.may_switch()) {
            return;
        }
        let steps = self.tracepoints.due(&calls, &self.registry, slide);
        if steps.is_empty() {
            return;
        }
        if let Err(reason) = self.errand_place(parked, tables) {
            return self.refuse(&steps, &format!("its tracepoint cannot be switched on: {reason}"));
        }
        let mut errand = SwitchTracepoints::new(calls, steps.clone());
        let errands = self.sending.errands.clone();
        let wanted = match (passer, &self.kernel.errands) {
            (Some(vcpu), _) => errands.want_of(vcpu, move |worker| errand.next(worker)),
            (None, Ok(_)) => errands.want(move |worker| errand.next(worker)),
            (None, Err(reason)) => {
                let reason = format!(
                    "its tracepoint cannot be switched on while the guest runs, whose kernel makes no calls for others: {reason}"
                );
                return self.refuse(&steps, &reason);
            }
        };
        // None is taken any more of a guest that ends.
        if let Ok(wanted) = wanted {
            self.tracepoints.under_way.push(UnderWay { steps, wanted, results: None });
        }
    }

    /// Whether tracepoints are switched for this command.
    pub(super) fn is_about_tracepoints(&self, command: &Command) -> bool {
        let is_at_one =
            |id: &ProbeId| self.registry.get(*id).is_some_and(|entry| entry.active.plan.tracepoint.is_some());
        match command {
            Command::Register(probes) => probes.iter().any(|probe| probe.plan.tracepoint.is_some()),
            Command::Unregister(ids) | Command::Enable(ids) | Command::Disable(ids) => {
                ids.iter().any(is_at_one)
            }
            Command::Arm(_) => self.registry.has_tracepoints(),
            Command::Optimize(_) | Command::Stop | Command::GiveUp => false,
        }
    }

    /// Whether tracepoints are not as they should be.
    pub(super) fn has_tracepoints_to_switch(&self) -> bool {
        let is_due = |(calls, slide): (TracepointCalls, u64)| {
            !self.tracepoints.due(&calls, &self.registry, slide).is_empty()
        };
        !self.tracepoints.under_way.is_empty() || self.switching().is_some_and(is_due)
    }

    /// Takes in what came of those that were switched.
    pub(super) fn tracepoints_switched(&mut self) {
        self.tracepoints.has_results();
        let (done, under_way) = std::mem::take(&mut self.tracepoints.under_way)
            .into_iter()
            .partition::<Vec<_>, _>(|under_way| under_way.results.is_some());
        self.tracepoints.under_way = under_way;
        for UnderWay { steps, results, .. } in done {
            for (step, result) in steps.into_iter().zip(results.unwrap_or_default()) {
                self.tracepoint_switched(step, result);
            }
        }
    }

    fn tracepoint_switched(&mut self, step: Step, result: Result<(), Errno>) {
        let is_on = step.on && result.is_ok();
        if let Err(error) = result {
            let reason = format!("the guest's kernel has not switched its tracepoint on: {error}");
            self.refuse(std::slice::from_ref(&step), &reason);
        }
        if is_on {
            self.tracepoints.on.insert(step.tracepoint, step);
        } else {
            self.tracepoints.on.remove(&step.tracepoint);
        }
    }

    /// Whoever is at a tracepoint that is switched on, also for others, is called.
    pub(super) fn note_switched_on(&mut self) {
        let Some((calls, slide)) = self.switching() else { return };
        for entry in self.registry.iter_mut() {
            let own = switched_on(entry, &calls, slide);
            entry.is_switched_on = own.is_some_and(|own| self.tracepoints.on.contains_key(&own.tracepoint));
        }
    }

    /// The probes at tracepoints that cannot be switched on never stand.
    fn refuse(&mut self, steps: &[Step], reason: &str) {
        for step in steps {
            // What cannot be switched off is not on any more for us.
            self.tracepoints.on.remove(&step.tracepoint);
            if step.on {
                self.each_at(step, |entry| entry.state = ProbeState::Refused(reason.to_owned()));
            }
        }
    }

    fn each_at(&mut self, step: &Step, change: impl Fn(&mut RegisteredProbe)) {
        let Some((calls, slide)) = self.switching() else { return };
        for entry in self.registry.iter_mut() {
            if switched_on(entry, &calls, slide).is_some_and(|own| own.tracepoint == step.tracepoint) {
                change(entry);
            }
        }
    }

    /// How tracepoints are switched, and by how much the kernel was moved, once that is known.
    fn switching(&self) -> Option<(TracepointCalls, u64)> {
        let running = self.arming.running().filter(|_| self.arming.is_ready())?;
        Some((self.kernel.tracepoints.as_ref().ok().copied()?, running.map.slide()))
    }

    /// Those of the commands that can be answered now, and of earlier ones. One for which a tracepoint has not been switched on is
    /// refused as a whole.
    pub(super) fn answerable(
        &mut self,
        answers: Vec<Answering>,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) -> Vec<Answering> {
        let (waiting, mut now): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answering| answering.is_switching && answering.result.is_ok());
        self.tracepoints.answering.extend(waiting);
        if self.has_tracepoints_to_switch() {
            return now;
        }
        for mut answering in std::mem::take(&mut self.tracepoints.answering) {
            let refused = answering.result.as_ref().ok().and_then(|done| {
                let ids: Vec<_> = done.ids.clone();
                Some((self.refused(&ids)?, ids))
            });
            if let Some((error, ids)) = refused {
                self.registry.unregister(&ids);
                self.reconcile(parked, tables);
                answering.result = Err(error.into());
            }
            now.push(answering);
        }
        now
    }
}
