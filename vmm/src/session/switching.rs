//! Switching tracepoints of the guest's, as its own functions do it.
//!
//! They are called by a task that comes by where it may sleep, so that no event is missed after that: before drivers are started,
//! before a module's init runs, and when a module goes. At any other time a worker of the guest's kernel is
//! [sent for](super::errands). A probe stands once its tracepoint is switched on.

use super::control::Control;
use super::handle::CommandError;
use super::report::ProbeState;
use super::tracepoints::{Answering, Switching, switched_on};
use crate::errands::{Step, SwitchTracepoints};
use crate::probe::Command;
use crate::vcpu::VcpuTables;
use crate::world::Parked;
use probe_engine::addr::Gva;
use probe_engine::probe::plan::ProbePlan;
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
        let Some(switching) = self.switching() else { return };
        if passer.is_none() && !self.arming.hooks.may_switch() {
            return;
        }
        let steps = self.tracepoints.due(&switching, &self.registry, passer.is_some());
        if passer.is_some() {
            let on = steps.iter().filter(|step| step.on);
            self.tracepoints.registrations.come(on.map(|step| step.tracepoint));
        }
        if let (None, Err(reason)) = (passer, &self.kernel.errands) {
            let reason = format!(
                "its tracepoint cannot be switched on while the guest runs, whose kernel makes no calls for others: {reason}"
            );
            return self.refuse(&steps, &reason);
        }
        self.begin_switching(steps, passer, parked, tables);
    }

    /// These tracepoints of a module are about to go: the task that waits at a trap of ours on this vCPU switches them off before.
    pub(super) fn tracepoints_go(
        &mut self,
        tracepoints: &[Gva],
        vcpu: usize,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) {
        let steps = self.tracepoints.going(tracepoints);
        self.begin_switching(steps, Some(vcpu), parked, tables);
    }

    fn begin_switching(
        &mut self,
        steps: Vec<Step>,
        passer: Option<usize>,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) {
        let Some(switching) = self.switching() else { return };
        if steps.is_empty() || self.panic.is_some() || !self.tracepoints.has_room() {
            return;
        }
        if let Err(reason) = self.errand_place(parked, tables) {
            return self.refuse(&steps, &format!("its tracepoint cannot be switched on: {reason}"));
        }
        let registrations = self.tracepoints.registrations.clone();
        let mut errand = SwitchTracepoints::new(switching.calls, steps.clone(), registrations);
        let errands = &self.sending.errands;
        let wanted = match passer {
            Some(vcpu) => errands.want_of(vcpu, move |worker| errand.next(worker)),
            None => errands.want(move |worker| errand.next(worker)),
        };
        // None is taken any more of a guest that ends.
        if let Ok(wanted) = wanted {
            self.tracepoints.begin(steps, wanted);
        }
    }

    /// Whether the guest's own kernel does something for this command.
    pub(super) fn is_about_switching(&self, command: &Command) -> bool {
        let is_at_one =
            |id: &ProbeId| self.registry.get(*id).is_some_and(|entry| needs_guest(&entry.active.plan));
        match command {
            Command::Register(probes) => probes.iter().any(|probe| needs_guest(&probe.plan)),
            Command::Unregister(ids) | Command::Enable(ids) | Command::Disable(ids) => {
                ids.iter().any(is_at_one)
            }
            Command::Arm(_) => self.registry.has_tracepoints() || self.registry.has_programs(),
            Command::Optimize(_)
            | Command::Pause
            | Command::Resume
            | Command::ResumeAfter(_)
            | Command::LetGoAfter(_)
            | Command::Stop
            | Command::GiveUp => false,
        }
    }

    /// Whether tracepoints are not as they should be, or it is too early for that.
    pub(super) fn has_tracepoints_to_switch(&self) -> bool {
        match self.switching() {
            Some(switching) => {
                self.tracepoints.is_busy()
                    || !self.tracepoints.due(&switching, &self.registry, false).is_empty()
            }
            None => self.kernel.tracepoints.is_ok() && self.registry.has_tracepoints(),
        }
    }

    /// Takes in what came of those that were switched.
    pub(super) fn tracepoints_switched(&mut self) {
        for (step, result) in self.tracepoints.results() {
            self.tracepoint_switched(step, result);
        }
    }

    fn tracepoint_switched(&mut self, step: Step, result: Result<(), Errno>) {
        match (step.on, result) {
            (true, Ok(())) if self.tracepoints.registrations.is_registered(step.tracepoint) => {
                self.tracepoints.on.insert(step.tracepoint, step);
            }
            // Its module has gone meanwhile.
            (true, Ok(())) => {}
            (true, Err(error)) => {
                let reason = format!("the guest's kernel has not switched its tracepoint on: {error}");
                self.refuse(std::slice::from_ref(&step), &reason);
            }
            // What cannot be switched off is not on any more for us.
            (false, _) => {
                self.tracepoints.on.remove(&step.tracepoint);
            }
        }
    }

    /// Whoever is at a tracepoint that is switched on, also for others, is called.
    pub(super) fn note_switched_on(&mut self) {
        self.arming.hooks.follow_tracepoints(self.tracepoints.has_switched());
        self.arming.hooks.follow_programs(self.programs.awaits(&self.registry));
        for entry in self.registry.iter_mut().filter(|entry| entry.active.plan.program.is_some()) {
            entry.is_switched_on = self.programs.is_on(entry.active.id);
            entry.was_missing = self.programs.is_missing(entry.active.id);
        }
        let Some(switching) = self.switching() else { return };
        for entry in self.registry.iter_mut().filter(|entry| entry.active.plan.tracepoint.is_some()) {
            let own = switched_on(entry, &switching);
            entry.is_switched_on = own.is_some_and(|own| self.tracepoints.on.contains_key(&own.tracepoint));
        }
    }

    /// The probes at tracepoints that cannot be switched on never stand.
    fn refuse(&mut self, steps: &[Step], reason: &str) {
        let Some(switching) = self.switching() else { return };
        let refused: Vec<Gva> = steps.iter().filter(|step| step.on).map(|step| step.tracepoint).collect();
        for entry in self.registry.iter_mut() {
            if switched_on(entry, &switching).is_some_and(|own| refused.contains(&own.tracepoint)) {
                entry.state = ProbeState::Refused(reason.to_owned());
            }
        }
    }

    /// How tracepoints are switched, once that can be done.
    fn switching(&self) -> Option<Switching> {
        let running = self.arming.running().filter(|_| self.arming.is_ready())?;
        Some(Switching {
            calls: self.kernel.tracepoints.as_ref().ok().copied()?,
            slide: running.map.slide(),
            has_workers: self.kernel.errands.is_ok(),
        })
    }

    /// Those of the commands that can be answered now, and of earlier ones. One that has registered probes is refused as a whole where
    /// a tracepoint has not been switched on.
    pub(super) fn answerable(
        &mut self,
        answers: Vec<Answering>,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) -> Vec<Answering> {
        let (waiting, mut now): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|answering| answering.is_switching && answering.result.is_ok());
        self.tracepoints.answering.extend(waiting);
        let is_closed = self.sending.errands.closed().is_some();
        if (self.has_tracepoints_to_switch() || self.has_programs_to_place()) && !is_closed {
            return now;
        }
        for mut answering in std::mem::take(&mut self.tracepoints.answering) {
            let ids = match &answering.result {
                Ok(done) if answering.is_register => done.ids.clone(),
                _ => Vec::new(),
            };
            if is_closed {
                answering.result = Err(CommandError::Ended);
            } else if let Some(error) = self.refused(&ids) {
                self.registry.unregister(&ids);
                self.reconcile(parked, tables);
                self.switch_tracepoints(None, parked, tables);
                self.place_programs(None, parked, tables);
                answering.result = Err(error.into());
            }
            now.push(answering);
        }
        now
    }
}

/// Whether the guest's own kernel has to do something before such a probe has hits.
fn needs_guest(plan: &ProbePlan) -> bool {
    plan.tracepoint.is_some() || plan.program.is_some()
}
