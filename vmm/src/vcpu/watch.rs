//! Debug registers fired: at a step of the boot, or at what is watched.

use super::note::note;
use super::tables::{Cause, VcpuTables};
use super::{Flow, Vcpu};
use crate::clock;
use crate::events::{SeenHit, What};
use crate::kvm::{DebugRegister, Exception, Shadow};
use crate::memory::GuestRam;
use crate::probe::{Access, Active, HandlerRequest, Kind, Watching};
use crate::trap::{Fired, GuestException};
use probe_engine::addr::Gva;
use probe_engine::probe::watch::{Condition, Length};
use probe_engine::regs::{Regs, rflags};
use probe_engine::virt_memory::VirtMemory;
use std::sync::Arc;

impl Vcpu {
    /// Serves the watches among the registers that fired. An execution breakpoint without one is a step of the boot.
    pub(super) fn fired(&mut self, fired: &Fired, tables: &mut Arc<VcpuTables>) -> Flow {
        // What has fired is what stood then, whatever the tables become while this vCPU waits.
        let at_exit = tables.clone();
        let watches = || {
            let registers = at_exit.breakpoints.0.iter().zip(&at_exit.watches).zip(fired.registers);
            let fired = registers.filter(|(_, fired)| *fired);
            fired.filter_map(|((register, watch), _)| register.as_ref().zip(watch.as_ref()))
        };
        let count = watches().count();
        // The boot may have come to a step where somebody watches as well.
        let fired_of_boot =
            at_exit.watches.iter().zip(fired.registers).any(|(watch, fired)| fired && watch.is_none());
        if fired.execution && fired_of_boot {
            let flow = self.hold(Cause::Breakpoint, fired.regs, tables);
            if count == 0 {
                // The breakpoint may still be there: RF lets its instruction pass.
                self.resume_past_breakpoint();
            }
            if count == 0 || matches!(flow, Flow::End) {
                return flow;
            }
        }
        while !self.recorder.has_space(count) {
            let may_go_on = |vcpu: &Self| vcpu.recorder.has_space(count);
            if let Flow::End = self.wait_for_reader(&fired.regs, tables, may_go_on) {
                return Flow::End;
            }
        }
        let stop = watches().find(|(_, probe)| probe.stops_guest()).map(|(_, probe)| probe.id);
        let (mut regs, requests) = self.serve(fired, watches(), &at_exit);
        if fired.execution && regs.rip == fired.regs.rip {
            regs.rflags |= rflags::RF;
        }
        if !self.may_be_code(Gva(regs.rip)) {
            return self.raise(&Regs { rip: fired.regs.rip, ..regs }, Exception::GeneralProtection);
        }
        // An exception is injected after the registers are written, or it is dropped.
        if fired.guest.is_none() {
            if regs != fired.regs {
                self.kvm.set_regs(&regs);
            }
            self.kvm.set_shadow(Shadow::Kept, &regs);
        } else if regs != fired.regs
            && let Err(error) = self.kvm.write_regs(&regs)
        {
            return self.failed("KVM refused registers", error, regs);
        }
        let flow = match (self.grant(Flow::Run, requests, tables), stop) {
            (Flow::Run, Some(probe)) => {
                let regs = self.kvm.regs();
                self.hold(Cause::Stop(probe), regs, tables)
            }
            (flow, _) => flow,
        };
        match (flow, fired.guest) {
            (Flow::Run, Some(exception)) => self.give_back(GuestException::Intercepted(exception), tables),
            (flow, _) => flow,
        }
    }

    /// Counts, records and hands out the hits of `watches`, in the order of their registers.
    fn serve<'a>(
        &mut self,
        fired: &Fired,
        watches: impl Iterator<Item = (&'a DebugRegister, &'a Arc<Active>)>,
        tables: &VcpuTables,
    ) -> (Regs, Vec<HandlerRequest>) {
        let ticks = clock::ticks();
        let mut regs = fired.regs;
        let mut requests = Vec::new();
        let area = self.per_cpu_area(tables);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let clock = &*self.clock;
        let context = tables.context(&memory, self.id, (ticks, clock), area);
        for (register, probe) in watches {
            let Kind::Watch(watching) = &probe.kind else { continue };
            // What stands there now is what the next access finds.
            let access = access(watching, register, &memory);
            if !context.is_inside(probe.plan.scope) {
                probe.pass_outside();
                continue;
            }
            let task = if probe.plan.reads() { context.task() } else { None };
            let scene = context.scene(&regs, None, task.as_ref());
            let counts = !probe.is_retired() && self.recorder.capture(&probe.plan.capture, &scene);
            if !counts || !probe.takes_hit() {
                continue;
            }
            let what = match access {
                None => What::Hit { args: fired.regs.args() },
                Some(Access { old, new }) => What::Access { old, new },
            };
            let seen = SeenHit { ticks, probe: probe.id, rip: Gva(fired.regs.rip), what, task };
            note(&mut self.recorder, probe, &context, &fired.regs, seen);
            if let Some(handler) = &watching.handler {
                let mut hit = context.hit(probe.id, register.at, regs, &mut requests);
                hit.access = access;
                probe.call(&mut hit, |hit| handler(hit));
                regs = hit.regs;
            }
        }
        (regs, requests)
    }
}

/// What an access did, as far as memory tells; `None` at an execution. What cannot be read has not changed.
fn access(
    watching: &Watching,
    register: &DebugRegister,
    memory: &VirtMemory<'_, GuestRam>,
) -> Option<Access> {
    match register.condition {
        Condition::Execute => None,
        Condition::Write | Condition::ReadWrite => Some(match value(memory, register.at, register.length) {
            Some(new) => Access { old: watching.replace(new), new },
            None => Access { old: watching.last(), new: watching.last() },
        }),
    }
}

/// What memory holds at `at`, extended with zeros; `None` where it is not mapped.
pub(crate) fn value(memory: &VirtMemory<'_, GuestRam>, at: Gva, length: Length) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(at, bytes.get_mut(..length.bytes() as usize)?).ok()?;
    Some(u64::from_le_bytes(bytes))
}
