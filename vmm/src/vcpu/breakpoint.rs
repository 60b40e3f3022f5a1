//! An `int3` was executed: whose it is, and what has to happen before it is passed.

use super::hit::{Passed, Taken};
use super::tables::{Cause, VcpuTables};
use super::{Flow, Vcpu, guest_exception};
use crate::kvm::{DebugException, Exception, Shadow};
use crate::probe::{Active, Fault};
use crate::trap::{Breakpoint, Delivery, GuestException};
use probe_engine::addr::Gva;
use probe_engine::probe::table::{Attached, Internal, ProbeId, Site, Verdict};
use probe_engine::regs::Regs;
use std::sync::Arc;

/// What the vCPU waits for before it asks again.
enum Wait {
    /// The control thread's answer.
    Control(Internal),
    /// Space for so many records.
    Reader(usize),
    /// Somebody who has the guest stand still at this probe.
    Stop(ProbeId),
}

impl Vcpu {
    /// Finds whose `int3` it was. After each wait the question is asked again: the answer may have changed.
    pub(super) fn met_int3(&mut self, breakpoint: &Breakpoint, tables: &mut Arc<VcpuTables>) -> Flow {
        self.pass_int3(breakpoint, tables, false)
    }

    /// The same, of one that the control thread may have `answered` already.
    pub(super) fn pass_int3(
        &mut self,
        breakpoint: &Breakpoint,
        tables: &mut Arc<VcpuTables>,
        mut answered: bool,
    ) -> Flow {
        let at = Gva(breakpoint.regs.rip);
        let passed = self.passed.take();
        self.was_moved = false;
        let mut has_stood = false;
        loop {
            let wait = match tables.sites.judge(at, || self.byte_at(at)) {
                // A task is back at a trap that is not there any more.
                Verdict::Foreign if answered || has_stood => {
                    return self.go_on(breakpoint, &breakpoint.regs, Shadow::Kept);
                }
                Verdict::Foreign => return self.give_back(guest_exception(breakpoint.delivery), tables),
                Verdict::Stale => return self.go_on(breakpoint, &breakpoint.regs, Shadow::Kept),
                Verdict::Ours(site) if !has_stood && stop(site, passed, &breakpoint.regs).is_some() => {
                    stop(site, passed, &breakpoint.regs).map_or(Wait::Reader(0), Wait::Stop)
                }
                Verdict::Ours(site) => match site.internal {
                    Some(internal) if internal.holds() && !answered => Wait::Control(internal),
                    internal => {
                        let records =
                            site.probes.iter().filter(|attached| attached.probe.plan.records()).count();
                        let is_counted = passed.is_some_and(|passed| passed.is_next(&breakpoint.regs));
                        if !answered
                            && !is_counted
                            && let Some(regs) = self.bring_in(breakpoint, site, tables)
                        {
                            return self.go_on(breakpoint, &regs, Shadow::Over);
                        }
                        if self.recorder.has_space(records) {
                            self.answer(internal, breakpoint, tables);
                            let (taken, requests) = self.hit(breakpoint, site, passed, tables);
                            let flow = match taken {
                                Taken::Over(flow) => flow,
                                Taken::Device(regs) => self.run_from_copy(&regs, tables),
                            };
                            return self.grant(flow, requests, tables);
                        }
                        Wait::Reader(records)
                    }
                },
                Verdict::RingFull => {
                    self.passed = passed;
                    return self.ring_full(breakpoint, tables);
                }
                Verdict::Gate(gate) => return self.gate_opened(breakpoint, gate, tables),
                Verdict::CallGate => return self.at_call_gate(breakpoint, tables),
                Verdict::CopyEnd(end) => {
                    let (flow, requests) = self.copy_ended(breakpoint, end, tables);
                    return self.grant(flow, requests, tables);
                }
                Verdict::Return(number, owner) if self.recorder.has_space(1) => {
                    let (flow, requests) = self.returned(breakpoint, number, owner, tables);
                    return self.grant(flow, requests, tables);
                }
                Verdict::Return(..) => Wait::Reader(1),
            };
            let flow = match wait {
                Wait::Reader(records) => {
                    self.wait_for_reader(&breakpoint.regs, tables, |vcpu| vcpu.recorder.has_space(records))
                }
                Wait::Control(internal) => {
                    answered = true;
                    self.hold(Cause::Internal(internal), breakpoint.regs, tables)
                }
                Wait::Stop(probe) => {
                    has_stood = true;
                    self.hold(Cause::Stop(probe), breakpoint.regs, tables)
                }
            };
            if let Flow::End = flow {
                return Flow::End;
            }
            if std::mem::take(&mut self.was_moved) {
                return Flow::Run;
            }
            if answered && let Some(regs) = self.first_call(breakpoint, tables) {
                return self.go_on(breakpoint, &regs, Shadow::Over);
            }
        }
    }

    /// Does what an internal site asks for, where that needs no other thread.
    fn answer(&mut self, internal: Option<Internal>, breakpoint: &Breakpoint, tables: &VcpuTables) {
        match internal {
            // fixup_exception(regs, vector, error code, address)
            Some(Internal::Fault) => {
                let Regs { rdi, rsi, rdx, rcx, .. } = breakpoint.regs;
                let fault = Fault { vector: rsi as u8, code: rdx as u32, address: Gva(rcx) };
                self.fault_reported(Gva(rdi), &fault, tables);
            }
            // page_fault_oops(regs, error code, address)
            Some(Internal::PageFault) => {
                let Regs { rdi, rsi, rdx, .. } = breakpoint.regs;
                let fault = Fault { vector: Fault::PAGE_FAULT, code: rsi as u32, address: Gva(rdx) };
                self.fault_reported(Gva(rdi), &fault, tables);
            }
            Some(Internal::TaskGone) => {
                let task = Gva(breakpoint.regs.rdi);
                for pool in tables.returns.iter().filter_map(|probe| probe.pool()) {
                    pool.forget_task(task);
                }
                if let Some(detoured) = &tables.detoured {
                    detoured.instances.forget_task(&*self.ram, task);
                }
            }
            _ => {}
        }
    }

    /// Continues with `regs`; nothing is written when they are those of the exit. Where no code can be the guest gets
    /// #GP, as at a branch there.
    pub(super) fn go_on(&mut self, breakpoint: &Breakpoint, regs: &Regs, shadow: Shadow) -> Flow {
        if !self.may_be_code(Gva(regs.rip)) {
            let at_site = Regs { rip: breakpoint.regs.rip, ..*regs };
            return self.raise(&at_site, Exception::GeneralProtection);
        }
        if breakpoint.delivery == Delivery::Reflected || *regs != breakpoint.regs {
            self.kvm.set_regs(regs);
        }
        self.kvm.set_shadow(shadow, regs);
        Flow::Run
    }
    /// As [`go_on`](Self::go_on), where the guest steps through its own code: it has not executed the instruction itself,
    /// and gets the step from us.
    pub(super) fn stepped(&mut self, breakpoint: &Breakpoint, regs: &Regs, tables: &VcpuTables) -> Flow {
        if !self.may_be_code(Gva(regs.rip)) {
            return self.go_on(breakpoint, regs, Shadow::Over);
        }
        match self.kvm.write_regs(regs) {
            Ok(()) => self.give_back(GuestException::Intercepted(DebugException::STEP), tables),
            Err(error) => self.failed("KVM refused registers", error, *regs),
        }
    }
}

/// The probe of `site` at which the guest is to stand still that comes there with these registers.
fn stop(site: &Site<Arc<Active>>, passed: Option<Passed>, regs: &Regs) -> Option<ProbeId> {
    let passed = passed.filter(|passed| passed.is_next(regs));
    let is_new = |attached: &&Attached<Arc<Active>>| !passed.is_some_and(|passed| passed.counted(attached));
    let stops = |attached: &&Attached<Arc<Active>>| attached.probe.stops_guest();
    site.probes.iter().filter(is_new).find(stops).map(|attached| attached.probe.id)
}
