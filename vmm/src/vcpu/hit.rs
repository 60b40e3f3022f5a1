//! A hit of a site: handlers first, in order of registration, then past the instruction.

use super::note::note;
use super::tables::{Cause, VcpuTables};
use super::{End, Flow, Vcpu};
use crate::clock;
use crate::events::{SeenHit, What};
use crate::imposed::{Came, Coming};
use crate::kvm::{Exception, Shadow};
use crate::probe::{Active, Fault, HandlerRequest, HitContext, Kind, ProgramRegs, Waiting};
use crate::trap::Breakpoint;
use probe_engine::addr::Gva;
use probe_engine::insn::emulate::{Passed as How, Segments};
use probe_engine::insn::fault::EmulationFault;
use probe_engine::linux::ftrace_site::FTRACE_SITE;
use probe_engine::probe::inject::skip_function;
use probe_engine::probe::plan::GuardAction;
use probe_engine::probe::table::{Anchor, Attached, CopyEnd, Site, StepMethod};
use probe_engine::regs::{Regs, rflags};
use probe_engine::virt_memory::VirtMemory;
use std::sync::Arc;

/// A vCPU has been counted at one of ftrace's nops, and is to execute the instruction behind it.
///
/// Its probes may move there in the meantime, and must not count the same call again. No interrupt comes between the
/// two, so that only a stop of the world can.
#[derive(Debug, Clone, Copy)]
pub struct Passed {
    nop: Gva,
    to: Gva,
    /// Its stack pointer there, where that is known: in a detour it depends on how far that has come.
    rsp: Option<u64>,
}

impl Passed {
    /// By a vCPU that had been held behind the nop, at `regs`.
    pub(super) fn at_gate(nop: Gva, regs: &Regs) -> Self {
        Self { nop, to: Gva(regs.rip), rsp: Some(regs.rsp) }
    }

    /// Where.
    pub(super) fn nop(&self) -> Gva {
        self.nop
    }

    /// By a vCPU in the detour that stood at `nop`.
    pub(super) fn in_detour(nop: Gva) -> Self {
        Self { nop, to: nop.add(FTRACE_SITE), rsp: None }
    }

    /// Whether that is still what a vCPU with these registers is about to do.
    pub(super) fn is_next(&self, regs: &Regs) -> bool {
        self.to == Gva(regs.rip) && self.rsp.is_none_or(|rsp| rsp == regs.rsp)
    }

    /// Whether the probe was counted there.
    pub(super) fn counted(&self, attached: &Attached<Arc<Active>>) -> bool {
        attached.anchor == Anchor::Behind(self.nop)
    }
}

/// How far a hit got.
pub(super) enum Taken {
    /// It is over.
    Over(Flow),
    /// Handlers have run, but the instruction accesses a device: only the guest's own CPU can execute it.
    Device(Regs),
}

impl Vcpu {
    pub(super) fn hit(
        &mut self,
        breakpoint: &Breakpoint,
        site: &Site<Arc<Active>>,
        passed: Option<Passed>,
        tables: &VcpuTables,
    ) -> (Taken, Vec<HandlerRequest>) {
        let mut ticks = clock::ticks();
        let at = Gva(breakpoint.regs.rip);
        let mut regs = breakpoint.regs;
        let mut requests = Vec::new();
        let area = self.area_at_site(tables);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let clock = &*self.clock;
        let context = tables.context(&memory, self.id, (ticks, clock), area);
        let is_told = site.probes.iter().any(|attached| attached.probe.plan.tells_task());
        let task = if is_told { context.task() } else { None };
        let passed = passed.filter(|passed| passed.is_next(&regs));
        let entered = breakpoint.regs;
        let is_new = |attached: &&Attached<Arc<Active>>| {
            !passed.is_some_and(|passed| passed.counted(attached))
                && attached.probe.is_called(&entered, tables.window)
        };
        for attached in site.probes.iter().filter(is_new) {
            let probe = &*attached.probe;
            let Some((order, within)) = probe.turns().filter(|_| context.is_inside(probe.plan.scope)) else {
                continue;
            };
            let scene = context.scene(&regs, None, task.as_ref());
            if probe.is_broken() || !self.recorder.capture(&probe.plan.capture, &scene) {
                continue;
            }
            let (within, counted_at) = (clock.rate().ticks(within), passed.map(|passed| passed.nop()));
            let coming = Coming { probe: probe.told_as, vcpu: self.id, task, within, counted_at };
            match order.come(&coming, clock::ticks, &self.ram) {
                Came::Goes(now) => ticks = now,
                Came::Waits(gate) => {
                    // It is no hit yet: the guest comes here once more.
                    self.passed = passed;
                    let requests = vec![HandlerRequest::Stand(Waiting::Turn(gate))];
                    return (Taken::Over(self.go_on(breakpoint, &breakpoint.regs, Shadow::Kept)), requests);
                }
            }
        }
        // What the caller gets of a call that fails.
        let mut injected = None;
        for attached in site.probes.iter().filter(is_new) {
            let probe = &*attached.probe;
            if !context.is_inside(probe.plan.scope) {
                probe.pass_outside();
                continue;
            }
            match &probe.kind {
                Kind::Instruction(handlers) => {
                    let scene = context.scene(&regs, None, task.as_ref());
                    if !self.recorder.capture(&probe.plan.capture, &scene) || !probe.takes_hit() {
                        continue;
                    }
                    if probe.injects() {
                        let may_fail =
                            injected.is_none() && regs.rip == at.0 && memory.read_u64(Gva(regs.rsp)).is_ok();
                        let Some(value) = may_fail.then(|| probe.injected(task.as_ref())).flatten() else {
                            continue;
                        };
                        injected = Some(value);
                    }
                    if probe.plan.once && !probe.is_put_back() {
                        requests.push(HandlerRequest::Spent);
                    }
                    let what = What::Hit { args: regs.args() };
                    let seen = SeenHit { ticks, probe: probe.told_as, rip: at, what, task };
                    note(&mut self.recorder, probe, &context, &regs, seen);
                    if handlers.pre.is_some() {
                        let mut hit = context.hit(probe.told_as, at, regs, &mut requests);
                        hit.captured = Some((&probe.plan.capture, self.recorder.captured()));
                        hit.program = ProgramRegs::of(&probe.plan, &entered, memory);
                        probe.pre(&mut hit);
                        regs = hit.regs;
                    }
                    if probe.plan.guard == Some(GuardAction::Stop) {
                        return (Taken::Over(self.over(End::Guarded)), requests);
                    }
                    probe.pace(self.id, task, &self.ram, &mut requests);
                }
                // A function that a handler before has skipped is not entered.
                Kind::Return(handlers, pool) if regs.rip == at.0 => {
                    let mut hit = context.hit(probe.told_as, at, regs, &mut requests);
                    super::call::enter(probe, handlers, pool, &mut hit, tables);
                    regs = hit.regs;
                }
                Kind::Return(..) | Kind::Watch(_) => {}
            }
        }
        // Return probes have put their own addresses on the stack by now, so that they see the return.
        if let Some(value) = injected.filter(|_| regs.rip == at.0) {
            // It was readable before.
            let _ = skip_function(&mut regs, &memory, value);
        }
        if regs.rip != at.0 {
            return (Taken::Over(self.go_on(breakpoint, &regs, Shadow::Over)), requests);
        }
        let flow = match &site.step {
            StepMethod::Copy(entry) => {
                regs.rip = entry.0;
                self.go_on(breakpoint, &regs, Shadow::Kept)
            }
            StepMethod::PutBack(once) => {
                if once.put_back(&self.ram.unsealed()).is_err() {
                    let words = format!("the text at {at} is not in memory");
                    return (Taken::Over(self.over(End::Failed(words, regs))), requests);
                }
                self.go_on(breakpoint, &regs, Shadow::Kept)
            }
            StepMethod::Emulate(emulation) => {
                let before = regs;
                let segments = if emulation.has_base() { system.segments() } else { Segments::default() };
                match emulation.execute(&mut regs, &memory, &segments) {
                    Ok(how) => {
                        for probe in post_handlers(site.probes.iter().filter(is_new), &context) {
                            let mut hit = context.hit(probe.told_as, at, regs, &mut requests);
                            probe.post(&mut hit);
                            regs = hit.regs;
                        }
                        let is_nop = site.probes.iter().any(|attached| attached.anchor == Anchor::Nop);
                        if is_nop {
                            self.passed = Some(Passed { nop: at, to: Gva(regs.rip), rsp: Some(regs.rsp) });
                        }
                        if before.rflags & rflags::TF != 0 {
                            self.stepped(breakpoint, &regs, tables)
                        } else if is_nop || how == How::InShadow {
                            self.go_on(breakpoint, &regs, Shadow::Begins)
                        } else {
                            self.go_on(breakpoint, &regs, Shadow::Over)
                        }
                    }
                    Err(fault) => {
                        let Some(exception) = Exception::of(fault) else {
                            return (Taken::Device(before), requests);
                        };
                        let told = told(exception, fault);
                        for probe in site.probes.iter().filter(is_new).map(|attached| &*attached.probe) {
                            if context.is_inside(probe.plan.scope) {
                                let mut hit = context.hit(probe.told_as, at, before, &mut requests);
                                probe.fault(&mut hit, &told);
                            }
                        }
                        self.raise(&before, exception)
                    }
                }
            }
        };
        (Taken::Over(flow), requests)
    }

    /// Has the site at `regs`' RIP passed by a copy from now on, and lets the guest go on there.
    pub(super) fn run_from_copy(&mut self, regs: &Regs, tables: &mut Arc<VcpuTables>) -> Flow {
        if let Flow::End = self.hold(Cause::Device, *regs, tables) {
            return Flow::End;
        }
        let at = Gva(regs.rip);
        match tables.sites.get(at).map(|site| &site.step) {
            Some(StepMethod::Copy(entry)) => {
                self.kvm.set_regs(&Regs { rip: entry.0, ..*regs });
                Flow::Run
            }
            // Disarmed meanwhile: it runs where it stands.
            None => {
                self.kvm.set_regs(regs);
                Flow::Run
            }
            Some(StepMethod::Emulate(_) | StepMethod::PutBack(_)) => {
                let words = format!("the probed instruction at {at} accesses a device and has no copy");
                self.over(End::Failed(words, *regs))
            }
        }
    }

    /// A copy has run: post handlers, then on behind the original.
    pub(super) fn copy_ended(
        &mut self,
        breakpoint: &Breakpoint,
        end: CopyEnd,
        tables: &VcpuTables,
    ) -> (Flow, Vec<HandlerRequest>) {
        let mut requests = Vec::new();
        let mut regs = breakpoint.regs;
        regs.rip = end.next.0;
        let area = self.area_at_site(tables);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let (ticks, clock) = (clock::ticks(), &*self.clock);
        let context = tables.context(&memory, self.id, (ticks, clock), area);
        // The site may have gone while the copy ran.
        let site = tables.sites.get(end.site);
        let ended = regs;
        let is_called = |attached: &&Attached<Arc<Active>>| attached.probe.is_called(&ended, tables.window);
        let probes = site.into_iter().flat_map(|site| &site.probes).filter(is_called);
        for probe in post_handlers(probes, &context) {
            let mut hit = context.hit(probe.told_as, end.site, regs, &mut requests);
            probe.post(&mut hit);
            regs = hit.regs;
        }
        (self.go_on(breakpoint, &regs, Shadow::Over), requests)
    }

    /// The probed instruction faults: the guest gets its exception with RIP on the instruction.
    pub(super) fn raise(&mut self, regs: &Regs, exception: Exception) -> Flow {
        match self.kvm.raise(exception, regs) {
            Ok(()) => Flow::Run,
            Err(error) => self.failed("KVM refused the fault of a probed instruction", error, *regs),
        }
    }

    /// Passes on what handlers want, after all of the hit is done.
    pub(super) fn grant(
        &mut self,
        flow: Flow,
        requests: Vec<HandlerRequest>,
        tables: &mut Arc<VcpuTables>,
    ) -> Flow {
        if requests.is_empty() {
            return flow;
        }
        let (mut commands, mut waiting) = (Vec::new(), Vec::new());
        for request in requests {
            match request {
                HandlerRequest::Wait(command) => commands.push(command),
                HandlerRequest::Stand(wait) => waiting.push(wait),
                other => self.mailbox.deliver(other),
            }
        }
        let flow = match flow {
            Flow::Run if !commands.is_empty() => {
                let regs = self.kvm.regs();
                self.hold(Cause::Commands(commands), regs, tables)
            }
            flow => flow,
        };
        match flow {
            Flow::Run => self.wait_for(waiting, tables),
            Flow::End => Flow::End,
        }
    }
}

/// Those of `probes` that have one to be called in this `context`.
fn post_handlers<'a>(
    probes: impl Iterator<Item = &'a Attached<Arc<Active>>>,
    context: &HitContext<'_>,
) -> impl Iterator<Item = &'a Active> {
    let is_called =
        |probe: &&Active| probe.has_post() && !probe.is_broken() && context.is_inside(probe.plan.scope);
    probes.map(|attached| &*attached.probe).filter(is_called)
}

/// What a fault handler is told of `exception`, into which `fault` was made.
fn told(exception: Exception, fault: EmulationFault) -> Fault {
    let (vector, code) = exception.vector_and_code();
    let address = match fault {
        EmulationFault::Page(fault) => fault.at,
        EmulationFault::Stack(at) | EmulationFault::BranchTarget(at) | EmulationFault::NotRam(at) => at,
    };
    Fault { vector, code, address }
}
