//! What vCPUs ask for and what is commanded, carried out in one stop of the world.

use super::control::{Control, GuestPanic, PANIC_GRACE, PauseCause};
use super::guarding::ModuleStep;
use super::handle::{CommandError, Done, Message};
use super::modules::Modules;
use super::registry::Registry;
use super::removed::RemovedProbe;
use super::report::{Death, Outcome, ProbeState};
use super::resolver::RegisterError;
use super::stage::{self, BootPhase, Reached};
use super::stop::Stop;
use super::tracepoints::Answering;
use super::watches;
use crate::clock;
use crate::errands::Closed;
use crate::memory::GuestRam;
use crate::probe::{Command, HandlerRequest};
use crate::trap::{Delivery, Int3Handlers};
use crate::vcpu::{Cause, VcpuRequest, VcpuTables};
use crate::world::Parked;
use probe_engine::addr::Gva;
use probe_engine::linux::modules::ModuleState;
use probe_engine::linux::running::{KernelMap, RunningKernel};
use probe_engine::paging::PageFault;
use probe_engine::probe::pace::Pace;
use probe_engine::probe::table::{Internal, ProbeId};
use probe_engine::virt_memory::VirtMemory;
use std::collections::HashSet;
use std::time::Instant;

impl Control<'_> {
    /// Answers the vCPUs that stopped by themselves, carries out what was commanded, and tries again what could not be
    /// done before, all in one stop of the world.
    pub(super) fn attend(&mut self) {
        // What a handler has asked for before a message was sent is there as well.
        let messages = self.serve_unstopped(self.messages.try_iter());
        let asked: Vec<HandlerRequest> = self.requests.try_iter().collect();
        let may_change_names = !self.ledger.has_names() || self.takes_events();
        let requests = self.postponed.due(self.world.take_requests(), may_change_names);
        let now = Instant::now();
        let is_due = self.has_due(now);
        let is_idle = messages.is_empty() && asked.is_empty() && requests.is_empty() && !is_due;
        if is_idle || self.outcome.is_some() {
            return;
        }
        let world = self.world.clone();
        let begun = Instant::now();
        let parked = world.park(|id| self.threads.kick(id));
        self.sweep.begin();
        let mut tables = VcpuTables::clone(&world.tables());
        self.tracepoints_switched();
        let mut released = self.programs_placed();
        for request in requests {
            let vcpu = request.vcpu;
            match request.cause {
                Cause::Breakpoint => self.stage_reached(&request, &parked, &mut tables),
                Cause::Internal(internal) => self.hook_reached(&request, internal, &parked, &mut tables),
                Cause::Called => {}
                Cause::Stop(probe) => self.stop_reached(vcpu, probe, request.regs, &mut tables),
                Cause::Stepped => self.stepped(vcpu, request.regs, &mut tables),
                Cause::Device => self.arming.sites.run_from_copy(Gva(request.regs.rip)),
                Cause::Commands(commands) => {
                    for command in commands {
                        if let Err(error) = self.carry_out(command, &parked, &mut tables) {
                            self.note_refused(&error);
                        }
                    }
                }
            }
            parked.release(vcpu);
        }
        for request in asked {
            match request {
                HandlerRequest::Soon(command) | HandlerRequest::Wait(command) => {
                    if let Err(error) = self.carry_out(command, &parked, &mut tables) {
                        self.note_refused(&error);
                    }
                }
                HandlerRequest::Broken(probe, words) => {
                    self.registry.set_state(probe, ProbeState::Broken(words));
                }
                HandlerRequest::Held(held) => self.note_held(held),
                // The vCPU itself has seen to these.
                HandlerRequest::Spent | HandlerRequest::Stand(_) => {}
            }
        }
        let mut answers = Vec::new();
        for message in messages {
            match message {
                Message::Command(command, told, answer) => {
                    let is_switching = self.is_about_switching(&command);
                    let is_register = matches!(command, Command::Register(_));
                    let result = self.carry_out(command, &parked, &mut tables);
                    if let (Some(told), Ok(done)) = (told, &result) {
                        told(&done.ids);
                    }
                    answers.push(Answering { answer, result, is_switching, is_register });
                }
                Message::List(answer) => {
                    let _ = answer.send(self.list());
                }
                Message::Counters(answer) => {
                    let _ = answer.send(self.counters(parked.positions().len()));
                }
                Message::Standing(answer) => {
                    let _ = answer.send(self.standing(&parked.positions(), &tables));
                }
                // Those are answered already.
                Message::Unstopped(_) => {}
                Message::Held(answer) => {
                    let _ = answer.send(self.held());
                }
                Message::Release(gate, answer) => {
                    let _ = answer.send(self.release(gate));
                }
                Message::Follow(follower, answer) => {
                    self.follow(follower);
                    let _ = answer.send(());
                }
                Message::Kernel(answer) => {
                    let _ = answer.send(self.kernel_place());
                }
                Message::Step(vcpu, answer) => {
                    let _ = answer.send(self.step(vcpu, &parked, &mut tables));
                }
                Message::SetRegs(vcpu, regs, answer) => {
                    let _ = answer.send(self.set_regs(vcpu, *regs, &parked, &tables));
                }
                Message::Write(wanted, answer) => {
                    let _ = answer.send(self.write(&wanted, &parked, &mut tables));
                }
                Message::Read(wanted, answer) => {
                    let _ = answer.send(self.read(wanted, &parked.positions(), &tables));
                }
            }
        }
        self.reconcile(&parked, &mut tables);
        self.switch_tracepoints(None, &parked, &mut tables);
        self.place_programs(None, &parked, &mut tables);
        self.free_consumers();
        if self.programs.under_way.is_none() {
            released.extend(self.programs.released(true));
        }
        let answers = self.answerable(answers, &parked, &mut tables);
        self.send_for_worker(&parked, &mut tables);
        self.tell_stopped(&parked, &tables);
        world.set_tables(&parked, tables);
        if self.outcome.is_some() {
            parked.end();
        }
        drop(parked);
        drop(released);
        self.sweep.end(Instant::now(), begun.elapsed());
        if !self.announced {
            self.stopped += begun.elapsed();
            let is_switching = self.has_tracepoints_to_switch() || self.has_programs_to_place();
            if self.arming.is_ready() && !is_switching {
                self.announced = true;
                let probes = self.observed();
                self.sink.armed(&probes, self.stopped);
            }
        }
        for Answering { answer, result, .. } in answers {
            let _ = answer.send(result);
        }
    }

    pub(super) fn reconcile(&mut self, parked: &Parked<'_>, tables: &mut VcpuTables) {
        self.note_switched_on();
        self.arming.reconcile(&mut self.registry, &Stop { parked, ram: &self.ram }, tables);
        if !self.arming.is_ready()
            && let (Some(map), Ok(stage)) = (self.stage.map(), self.stage.breakpoints(&self.kernel))
        {
            watches::set_early(&mut self.registry, &map, &stage, tables);
        }
        tables.gates = self.registry.known_gates();
    }

    /// A handler that gave a command is not there any more to be told.
    fn note_refused(&mut self, error: &CommandError) {
        self.refused.commands += 1;
        self.refused.first.get_or_insert_with(|| error.to_string());
    }

    /// Changes what is wanted. What is wanted is armed in the same stop.
    fn carry_out(
        &mut self,
        command: Command,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) -> Result<Done, CommandError> {
        let known =
            |registry: &Registry, ids: &[ProbeId]| match ids.iter().find(|id| !registry.contains(**id)) {
                Some(unknown) => Err(CommandError::Unknown(*unknown)),
                None => Ok(()),
            };
        match command {
            Command::Register(probes) => {
                let ids = self.registry.register(probes)?;
                if let Some((mut modules, map)) = self.modules() {
                    let head = map.gva(modules.layout.head);
                    modules.look_around(head);
                }
                self.reconcile(parked, tables);
                if let Some(error) = self.refused(&ids) {
                    self.registry.unregister(&ids);
                    self.reconcile(parked, tables);
                    return Err(error.into());
                }
                Ok(ids.into())
            }
            Command::Unregister(mut ids) => {
                known(&self.registry, &ids)?;
                // Returns that are not read are not wanted any more afterwards.
                if self.takes_events() {
                    self.drain();
                }
                let mut seen = HashSet::new();
                ids.retain(|id| seen.insert(*id));
                let removed = self.registry.report_of(&ids, &self.reader, |id| self.lost(id));
                for report in &removed {
                    let plan = self.registry.get(report.id).map(|entry| entry.active.plan.clone());
                    if plan.as_ref().is_some_and(|plan| plan.pace == Some(Pace::Stop)) {
                        continue;
                    }
                    let records = plan.is_some_and(|plan| plan.records());
                    let lost = self.lost(report.id);
                    self.removed.push(RemovedProbe::new(report, records, &self.reader, lost));
                }
                self.registry.unregister(&ids);
                self.durations.forget(&ids);
                Ok(Done { ids, removed })
            }
            Command::Enable(ids) => {
                known(&self.registry, &ids)?;
                self.registry.enable(&ids, true);
                Ok(ids.into())
            }
            Command::Disable(ids) => {
                known(&self.registry, &ids)?;
                self.registry.enable(&ids, false);
                Ok(ids.into())
            }
            Command::Arm(armed) => {
                self.registry.arm(armed);
                Ok(Vec::new().into())
            }
            Command::Optimize(on) => {
                self.arming.sites.detours.switch(on);
                Ok(Vec::new().into())
            }
            Command::Pause => {
                self.paused.get_or_insert_with(clock::ticks);
                tables.stepping = None;
                parked.freeze();
                Ok(Vec::new().into())
            }
            Command::Resume => {
                self.resume(parked, tables);
                Ok(Vec::new().into())
            }
            Command::ResumeAfter(stop) => {
                if self.debugging.is_last(stop) {
                    self.resume(parked, tables);
                }
                Ok(Vec::new().into())
            }
            Command::LetGoAfter(stop) => {
                if self.debugging.is_last(stop) && self.pause_cause == PauseCause::Commands {
                    self.resume(parked, tables);
                }
                Ok(Vec::new().into())
            }
            Command::Stop => {
                self.outcome = Some(Outcome::Stopped);
                Ok(Vec::new().into())
            }
            Command::GiveUp => {
                self.standstill.expire(Instant::now());
                Ok(Vec::new().into())
            }
        }
    }

    /// Nobody wants the guest to stand still any more. Tasks that are held have been so by no time in which nobody could come.
    fn resume(&mut self, parked: &Parked<'_>, tables: &mut VcpuTables) {
        tables.stepping = None;
        let Some(since) = self.paused.take() else { return };
        self.pause_cause = PauseCause::Commands;
        let ticks = clock::ticks().saturating_sub(since);
        self.registry.known_gates().0.values().for_each(|gate| gate.postpone(ticks));
        // Who waits for the sink ends that by himself.
        if !self.patience.has_ended() {
            parked.thaw();
        }
    }

    /// The first of `ids` that cannot stand, as the live text shows.
    pub(super) fn refused(&self, ids: &[ProbeId]) -> Option<RegisterError> {
        ids.iter().find_map(|id| {
            let (entry, reason) = (self.registry.get(*id)?, self.registry.refusal(*id)?);
            Some(RegisterError::Refused { name: entry.name(), reason })
        })
    }

    fn stage_reached(&mut self, request: &VcpuRequest, parked: &Parked<'_>, tables: &mut VcpuTables) {
        let reached = self.stage.reach(request, &self.kernel, &self.ram);
        let lost = match reached {
            Ok(None) => return,
            Ok(Some(reached)) => {
                let stop = Stop { parked, ram: &self.ram };
                let (phase, map) = match reached {
                    Reached::Decompressor | Reached::Kernel => (BootPhase::Unknown, None),
                    Reached::Start(map) => (BootPhase::Start, Some(map)),
                    Reached::Early(map) => (BootPhase::Early, Some(map)),
                    Reached::Late(map) => (BootPhase::Late, Some(map)),
                };
                if phase == BootPhase::Late {
                    self.sending.idt = Some(Gva(request.system.idt.base));
                }
                if let Some(map) = map {
                    match self.watched_handlers(request, phase, &map) {
                        Ok(handlers) => tables.int3_handlers = handlers,
                        Err(error) => {
                            let words = format!("its handler for breakpoints cannot be read: {error}");
                            self.outcome = Some(Outcome::Died(Death::Lost(words)));
                            return;
                        }
                    }
                    self.arming.advance(phase, RunningKernel { map, space: request.system.space() }, &stop);
                    self.sink.names(map.slide(), &[]);
                }
                self.stage.breakpoints(&self.kernel)
            }
            Err(error) => Err(error),
        };
        match lost {
            Ok(stage) => tables.breakpoints = stage::breakpoints(&stage, tables.int3_handlers),
            Err(error) => self.outcome = Some(Outcome::Died(Death::Lost(error.to_string()))),
        }
    }

    /// The guest's handlers for vector 3, where breakpoints have to stand on them: its IDT is the truth, which the guest
    /// changes once after its start.
    fn watched_handlers(
        &self,
        request: &VcpuRequest,
        phase: BootPhase,
        map: &KernelMap,
    ) -> Result<Int3Handlers, PageFault> {
        match self.delivery {
            Delivery::Intercepted => Ok([None; 2]),
            Delivery::Reflected => {
                let memory = VirtMemory::new(&*self.ram, request.system.space());
                let now = crate::trap::handler(Gva(request.system.idt.base), 3, &memory)?;
                let next = self.kernel.int3_entry.filter(|_| phase == BootPhase::Start);
                Ok([Some(now), next.map(|link| map.gva(link))])
            }
        }
    }

    fn hook_reached(
        &mut self,
        request: &VcpuRequest,
        internal: Internal,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
    ) {
        self.arming.hooks.reached(internal);
        let argument = Gva(request.regs.rdi);
        match internal {
            Internal::ModuleReady => {
                self.change_modules(parked, tables, |modules| modules.ready(argument));
                self.follow_module(argument, ModuleStep::Ready, tables);
                self.switch_tracepoints(Some(request.vcpu), parked, tables);
            }
            Internal::Exec => self.place_programs(Some(request.vcpu), parked, tables),
            Internal::Drivers => self.switch_tracepoints(Some(request.vcpu), parked, tables),
            // tracepoint_module_notify(block, state, module)
            Internal::ModuleTracepoints if request.regs.rsi == ModuleState::Going as u64 => {
                let module = Gva(request.regs.rdx);
                let going = self.modules().map(|(mut modules, _)| modules.going(module)).unwrap_or_default();
                self.tracepoints_go(&going, request.vcpu, parked, tables);
            }
            Internal::ModuleGone => {
                // What was found there has its names still.
                self.follow_module(argument, ModuleStep::Gone, tables);
                self.change_modules(parked, tables, |modules| {
                    modules.gone(argument);
                    Vec::new()
                });
            }
            Internal::ModuleInitDone => {
                self.change_modules(parked, tables, |modules| {
                    modules.init_done(&(Gva(request.regs.rsi)..Gva(request.regs.rdx)));
                    Vec::new()
                });
                self.follow_module(argument, ModuleStep::Initialized, tables);
            }
            Internal::Sealed => self.seal(tables),
            Internal::Report => self.about_to_report(),
            Internal::Tainted => self.reported(parked),
            Internal::Panic if self.panic.is_none() => {
                self.about_to_report();
                let memory = VirtMemory::new(&*self.ram, request.system.space());
                let message = read_text(argument, &memory);
                let deadline = Instant::now() + PANIC_GRACE;
                let stack = tables.stack(&memory, &request.regs, None);
                self.sending.errands.close(Closed::Panicked);
                self.panic = Some(GuestPanic { message, regs: request.regs, stack, deadline });
            }
            Internal::PanicTold if self.arming.hooks.is_panic(argument, tables.kernel.slide) => {
                let memory = VirtMemory::new(&*self.ram, request.system.space());
                let message = read_text(Gva(request.regs.rdx), &memory);
                if let Some(panic) = self.panic.as_mut().filter(|_| !message.is_empty()) {
                    panic.message = message;
                }
                if self.arming.hooks.stops_at_splats() {
                    self.reported(parked);
                }
            }
            _ => {}
        }
    }

    /// The guest loads or frees something: that has other names afterwards, and the events before are shown by the names of
    /// before. `change` returns where traps stood (GVA) that are no more.
    fn change_modules(
        &mut self,
        parked: &Parked<'_>,
        tables: &mut VcpuTables,
        change: impl FnOnce(&mut Modules<'_>) -> Vec<Gva>,
    ) {
        if self.ledger.has_names() {
            self.drain();
            self.hand_on_findings();
        }
        let Some((mut modules, map)) = self.modules() else { return };
        let lost = change(&mut modules);
        self.arming.forget(&lost, &Stop { parked, ram: &self.ram }, tables);
        self.ledger.publish(&mut tables.kernel);
        if self.ledger.has_names() {
            self.sink.names(map.slide(), &tables.kernel.names);
        }
    }

    /// The guest's modules, and where its kernel is, once that is known.
    fn modules(&mut self) -> Option<(Modules<'_>, KernelMap)> {
        let RunningKernel { map, space } = *self.arming.running()?;
        let modules = Modules {
            layout: self.kernel.modules.as_ref()?,
            memory: VirtMemory::new(&*self.ram, space),
            ledger: &mut self.ledger,
            registry: &mut self.registry,
        };
        Some((modules, map))
    }
}

/// The message of a panic, or its format string: printable text of at most a line.
fn read_text(at: Gva, memory: &VirtMemory<'_, GuestRam>) -> String {
    const LONGEST: u64 = 200;
    let mut text = String::new();
    for offset in 0..LONGEST {
        let mut byte = [0];
        match memory.read(at.add(offset), &mut byte) {
            Ok(()) if byte != [0] && byte != *b"\n" => text.extend(byte.escape_ascii().map(char::from)),
            _ => break,
        }
    }
    text
}
