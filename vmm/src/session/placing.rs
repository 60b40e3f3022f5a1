//! Registering places in programs, as the guest's own functions do it.
//!
//! A thread has the guest's kernel do that ([`PlacePrograms`]). A file that is not there yet is looked for again whenever a program is
//! about to run: that waits until its places are registered, so that nothing of it is missed.

use super::control::Control;
use super::programs::UnderWay;
use super::report::ProbeState;
use crate::errands::{Caller, Next, PlacePrograms, PlaceStep, Placed, Wanted, Worker};
use crate::vcpu::VcpuTables;
use crate::world::Parked;
use probe_engine::errand::Call;
use probe_engine::linux::scope::Scope;
use probe_engine::probe::table::ProbeId;
use probe_engine::virt_memory::VirtMemory;
use std::collections::BTreeSet;
use std::sync::PoisonError;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a program waits that is about to run.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long its task sleeps until it looks again, in milliseconds.
const PAUSE: u64 = 1;

impl Control<'_> {
    /// Has places in programs registered that are wanted, and those no more that are not. Before a program runs on this vCPU, that
    /// waits until it is done.
    pub(super) fn place_programs(
        &mut self,
        program: Option<usize>,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) {
        if !self.arming.is_ready() || self.panic.is_some() {
            return;
        }
        if let Some(vcpu) = program {
            self.programs.missing.clear();
            self.note_scopes(vcpu);
        }
        self.programs.has_files |= program.is_some() || self.arming.hooks.has_files();
        if !self.programs.has_files || !(self.registry.has_programs() || self.programs.has_registered()) {
            return;
        }
        if let Err(reason) = self.kernel.errands.clone() {
            return self.refuse_programs(&format!("this kernel makes no calls for others: {reason}"));
        }
        if let Err(reason) = self.errand_place(parked, tables) {
            return self.refuse_programs(&reason.to_string());
        }
        // What is under way may have looked for the program's file before that was there.
        let another = u64::from(self.programs.under_way.is_some());
        self.begin_placing();
        if let (Some(vcpu), Some(_), Ok(calls)) = (program, &self.programs.under_way, &self.kernel.uprobes) {
            let (sleep, deadline) = (calls.sleep, Instant::now() + PATIENCE);
            // Nobody waits for it any more when the round is over.
            let wait = move |_: &mut Worker<'_>| match Instant::now() >= deadline {
                true => Next::Done(()),
                false => Next::Call(Call::new(sleep, &[PAUSE])),
            };
            let round = self.programs.rounds + another;
            let wanted = self.sending.errands.want_of(vcpu, wait);
            self.programs.waiting.extend(wanted.map(|wanted| (round, wanted)));
        }
    }

    /// A program is about to run on this vCPU: notes in which scopes that is.
    fn note_scopes(&mut self, vcpu: usize) {
        let scopes = [Scope::Init, Scope::Command];
        let (Some(task), Some(running), Ok(layout)) =
            (self.kernel.task, self.arming.running(), &self.kernel.errands)
        else {
            return self.programs.begun.extend(scopes);
        };
        let slide = running.map.slide();
        let memory = VirtMemory::new(&*self.ram, running.space);
        let own = layout.per_cpu.add(slide).add(8 * vcpu as u64);
        let is_inside = |scope: &Scope| {
            memory.read_u64(own).is_ok_and(|area| task.slid(slide).is_inside(*scope, &memory, area))
        };
        let new = |scope: &Scope| !self.programs.begun.contains(scope) && is_inside(scope);
        let begun: Vec<_> = scopes.into_iter().filter(new).collect();
        self.programs.begun.extend(begun);
    }

    fn begin_placing(&mut self) {
        let (Some(window), Some(running)) = (self.arming.data_window(), self.arming.running()) else {
            return;
        };
        let steps = self.programs.due(&self.registry, window);
        let Ok(calls) = self.kernel.uprobes.clone() else { return };
        if steps.is_empty() || self.programs.under_way.is_some() {
            return;
        }
        let caller = Caller {
            errands: self.sending.errands.clone(),
            wake: self.wake.clone(),
            ram: self.ram.clone(),
            space: running.space,
            slide: running.map.slide(),
        };
        let (consumers, wake) = (self.programs.consumers.clone(), self.wake.clone());
        let (tell, results) = mpsc::channel();
        let asked = steps.clone();
        let work = move || {
            let mut consumers = consumers.lock().unwrap_or_else(PoisonError::into_inner);
            let done = PlacePrograms { caller, calls, consumers: &mut consumers }.carry_out(asked);
            let _ = tell.send(done);
            // A full counter wakes as well.
            let _ = wake.write(1);
        };
        // A thread that does not start is found by what it never tells.
        let _ = std::thread::Builder::new().name("programs".to_owned()).spawn(work);
        self.programs.under_way = Some(UnderWay { steps, results, has_come: None });
        self.programs.rounds += 1;
    }

    /// Takes in what came of those that were registered. Programs that wait for that go on when what is returned is dropped: once
    /// what stands is as that says.
    pub(super) fn programs_placed(&mut self) -> Vec<Wanted<()>> {
        if !self.programs.has_results() {
            return Vec::new();
        }
        let Some(mut under_way) = self.programs.under_way.take() else { return Vec::new() };
        let results = under_way.has_come.take().unwrap_or_default();
        self.unfold(&results);
        let released = self.programs.released(false);
        let looks_again = !self.programs.waiting.is_empty();
        let mut unknown: BTreeSet<ProbeId> = under_way.steps.iter().map(|step| step.probe).collect();
        for (step, placed) in results {
            unknown.remove(&step.probe);
            match (step.on, placed) {
                (true, Placed::Done) => drop(self.programs.on.insert(step.probe, step)),
                (true, Placed::Found(_)) => {}
                (true, Placed::Missing) if looks_again => {}
                (true, Placed::Missing) => drop(self.programs.missing.insert(step.probe)),
                (true, Placed::Refused(reason)) => {
                    self.registry.set_state(step.probe, ProbeState::Refused(reason));
                }
                (false, Placed::Done) => drop(self.programs.on.remove(&step.probe)),
                (false, Placed::Found(_) | Placed::Missing | Placed::Refused(_)) => {
                    unknown.insert(step.probe);
                }
            }
        }
        // A guest that has ended, or panics, comes back from nothing.
        let is_closed = self.sending.errands.closed().is_some();
        for step in under_way.steps.iter().filter(|step| unknown.contains(&step.probe)) {
            self.programs.unknown.insert(step.consumer);
            self.programs.on.remove(&step.probe);
            if !is_closed {
                let reason = "the guest has not come back from registering it".to_owned();
                self.registry.set_state(step.probe, ProbeState::Refused(reason));
            }
        }
        released
    }

    /// Probes of which it is known now for which places they stand: each of those has a probe, and is registered in the next round.
    fn unfold(&mut self, results: &[(PlaceStep, Placed)]) {
        let mut any = false;
        for (step, placed) in results {
            let Placed::Found(places) = placed else { continue };
            match self.registry.unfold(step.probe, places) {
                Ok(()) => any |= self.programs.unfolded.insert(step.probe),
                Err(reason) => self.registry.set_state(step.probe, ProbeState::Refused(reason)),
            }
        }
        let registry = &self.registry;
        self.programs.unfolded.retain(|probe| registry.contains(*probe));
        if any {
            self.programs.wait_longer();
        }
    }

    /// Has the registry give the numbers of consumers to others that nobody is called for any more.
    pub(super) fn free_consumers(&mut self) {
        let window = self.arming.data_window();
        let programs = &self.programs;
        self.registry.free_consumers(|number| window.is_some_and(|window| programs.is_used(window, number)));
    }

    /// Whether places in programs are not as they should be, or it is too early for that.
    pub(super) fn has_programs_to_place(&self) -> bool {
        self.programs.is_busy(&self.registry, self.arming.data_window())
    }

    /// The probes in programs that cannot be registered never stand.
    fn refuse_programs(&mut self, reason: &str) {
        for entry in self.registry.iter_mut().filter(|entry| entry.active.plan.program.is_some()) {
            entry.state = ProbeState::Refused(reason.to_owned());
        }
    }
}
