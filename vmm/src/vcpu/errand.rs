//! A worker of the guest's kernel asks at the gate which call to make.

use super::tables::{Cause, VcpuTables};
use super::{Flow, Vcpu, guest_exception};
use crate::errands::AtGate;
use crate::kvm::Shadow;
use crate::trap::Breakpoint;
use probe_engine::regs::Regs;
use probe_engine::virt_memory::VirtMemory;
use std::sync::Arc;

impl Vcpu {
    /// It makes one more call, or goes back to its kernel.
    pub(super) fn at_call_gate(&mut self, breakpoint: &Breakpoint, tables: &mut Arc<VcpuTables>) -> Flow {
        let area = self.area_at_site(tables);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let task = super::call::current_task(tables, &memory, area);
        match tables.errands.ask(&breakpoint.regs, memory, task) {
            Some(AtGate::GoesOn(regs)) => self.go_on(breakpoint, &regs, Shadow::Over),
            Some(AtGate::IsBack(regs)) => self.is_back(&Breakpoint { regs, ..*breakpoint }, tables),
            Some(AtGate::TakesTrap(regs)) => {
                self.kvm.set_regs(&regs);
                self.pass_int3(&Breakpoint { regs, ..*breakpoint }, tables, true)
            }
            None => self.give_back(guest_exception(breakpoint.delivery), tables),
        }
    }

    /// A task that came by has made its calls, and is at the trap again at which it waited. What the calls came to is seen to before
    /// it passes the trap.
    fn is_back(&mut self, at: &Breakpoint, tables: &mut Arc<VcpuTables>) -> Flow {
        self.kvm.set_regs(&at.regs);
        match self.hold(Cause::Called, at.regs, tables) {
            Flow::End => Flow::End,
            _ => self.pass_int3(at, tables, true),
        }
    }

    /// The registers with which the task at `breakpoint`, which has waited there, makes the first of its calls, if it is to make
    /// any.
    pub(super) fn first_call(&mut self, breakpoint: &Breakpoint, tables: &VcpuTables) -> Option<Regs> {
        let area = self.area_at_site(tables);
        let memory = VirtMemory::new(&*self.ram, self.kvm.address_space());
        let task = super::call::current_task(tables, &memory, area);
        tables.errands.begin(self.id, task, &breakpoint.regs, memory)
    }
}
