//! A worker of the guest's kernel asks at the gate which call to make.

use super::tables::VcpuTables;
use super::{Flow, Vcpu, guest_exception};
use crate::kvm::Shadow;
use crate::trap::Breakpoint;
use probe_engine::virt_memory::VirtMemory;

impl Vcpu {
    /// It makes one more call, or goes back to its kernel.
    pub(super) fn at_call_gate(&mut self, breakpoint: &Breakpoint, tables: &VcpuTables) -> Flow {
        let area = self.area_at_site(tables);
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        let task = super::call::current_task(tables, &memory, area);
        match tables.errands.ask(&breakpoint.regs, memory, task) {
            Some(regs) => self.go_on(breakpoint, &regs, Shadow::Over),
            None => self.give_back(guest_exception(breakpoint.delivery), tables),
        }
    }
}
