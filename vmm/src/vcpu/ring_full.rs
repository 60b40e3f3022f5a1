//! A detour has found the ring of its CPU full: the guest waits for the reader there, as it does at a trap.

use super::tables::VcpuTables;
use super::{Flow, Vcpu};
use crate::events::RingSpace;
use crate::kvm::Shadow;
use crate::trap::Breakpoint;
use probe_engine::addr::{Gpa, Gva};
use probe_engine::paging::Access;
use probe_engine::regs::{Regs, rflags};
use probe_engine::virt_memory::VirtMemory;
use std::sync::Arc;

impl Vcpu {
    /// Waits for space in the ring at rcx, and lets the detour note its hit down there, or give it up where it would wait
    /// for ever. See [`Stub`](probe_engine::detour::stub::Stub).
    pub(super) fn ring_full(&mut self, breakpoint: &Breakpoint, tables: &mut Arc<VcpuTables>) -> Flow {
        /// Bytes of the trap.
        const INT3: u64 = 1;
        let ring = self.ring_at(Gva(breakpoint.regs.rcx));
        let space = |vcpu: &Self| {
            ring.map_or(RingSpace::Never, |ring| vcpu.recorder.space_for_detour(&vcpu.ram, ring))
        };
        while space(self) == RingSpace::None {
            let may_go_on = |vcpu: &Self| space(vcpu) != RingSpace::None;
            if let Flow::End = self.wait_for_reader(&breakpoint.regs, tables, may_go_on) {
                return Flow::End;
            }
        }
        let has_space = space(self) == RingSpace::Some;
        let flags = breakpoint.regs.rflags & !rflags::CF;
        let rflags = if has_space { flags | rflags::CF } else { flags };
        let rip = breakpoint.regs.rip.wrapping_add(INT3);
        self.go_on(breakpoint, &Regs { rip, rflags, ..breakpoint.regs }, Shadow::Over)
    }

    fn ring_at(&mut self, at: Gva) -> Option<Gpa> {
        let memory = VirtMemory::new(&*self.ram, self.kvm.address_space());
        memory.translate(at, Access::Read).ok()
    }
}
