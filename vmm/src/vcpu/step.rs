//! One instruction of one vCPU, while all others stand still.
//!
//! What stands at the instruction is passed as always: a probe there counts its hit, and its handlers run. The instruction is over
//! when the vCPU is behind it and in no code of ours: a copy, a detour and a trampoline belong to the instruction that leads there.
//! Where nothing of ours stands, the CPU executes the instruction with a trap behind it (KVM_GUESTDBG_SINGLESTEP), and takes no interrupt.

use super::tables::VcpuTables;
use super::{Flow, Vcpu};
use crate::kvm::{DebugExit, Shadow, held_rflags};
use crate::trap::{Breakpoint, Delivery};
use probe_engine::addr::Gva;
use probe_engine::insn::emulate::Emulation;
use probe_engine::insn::plan::{StepPlan, plan};
use probe_engine::probe::table::Verdict;
use probe_engine::regs::{Regs, rflags};
use probe_engine::virt_memory::VirtMemory;
use std::sync::Arc;

/// An instruction that a vCPU is to execute.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// The registers before it.
    from: Regs,
    /// Whether the CPU has executed one.
    is_done: bool,
}

impl Vcpu {
    /// Whether this vCPU is to execute an instruction is said by the tables after a stop, in which it was at `regs`.
    pub(super) fn begin_step(&mut self, regs: &Regs, tables: &VcpuTables) {
        self.step = match (tables.stepping == Some(self.id), self.step) {
            (true, None) => Some(Step { from: *regs, is_done: false }),
            (true, step) => step,
            (false, _) => None,
        };
    }

    /// Whether the vCPU, which is at `regs`, has executed its instruction.
    pub(super) fn has_stepped(&self, regs: &Regs, tables: &VcpuTables) -> bool {
        self.step.is_some_and(|step| {
            (step.is_done || is_elsewhere(&step.from, regs)) && !tables.is_own(Gva(regs.rip))
        })
    }

    /// Goes a part of the way. Registers that were set are KVM's by now.
    pub(super) fn step_on(&mut self, tables: &mut Arc<VcpuTables>) -> Flow {
        let regs = self.kvm.regs();
        let at = Gva(regs.rip);
        // A trap of ours is not executed: where it goes to the guest first, the flags that it leaves there are those of a step.
        let is_ours = match tables.sites.judge(at, || self.byte_at(at)) {
            Verdict::Foreign | Verdict::Stale => false,
            Verdict::Ours(_)
            | Verdict::CopyEnd(_)
            | Verdict::Return(..)
            | Verdict::RingFull
            | Verdict::Gate(_)
            | Verdict::CallGate => true,
        };
        if is_ours {
            return self.met_int3(&Breakpoint { regs, delivery: Delivery::Intercepted }, tables);
        }
        let system = self.kvm.system();
        let user = || system.space();
        let memory = VirtMemory::new(&*self.ram, tables.spaces(&user));
        if let Some(emulation) = shows_flags(at, &memory) {
            let mut after = regs;
            if emulation.execute(&mut after, &memory, &system.segments()).is_ok() {
                self.kvm.set_regs(&after);
                self.kvm.set_shadow(Shadow::Over, &after);
                return Flow::Run;
            }
        }
        match self.kvm.debug_step(&tables.breakpoints) {
            Ok(()) => self.run(tables),
            Err(error) => self.failed("KVM refused to execute one instruction", error, regs),
        }
    }

    /// What is left of `exit` for others, when it says that the instruction was executed.
    pub(super) fn without_step(&mut self, exit: DebugExit) -> Option<DebugExit> {
        const DEBUG: u32 = 1;
        /// DR0 to DR3 fired, debug registers are accessed, another task runs.
        const OTHERS: u64 = 0xf | 1 << 13 | 1 << 15;
        let Some(step) = self.step.as_mut().filter(|_| exit.exception == DEBUG) else { return Some(exit) };
        if exit.dr6 & DebugExit::STEP == 0 {
            return Some(exit);
        }
        step.is_done = true;
        // A guest that steps through its own code wants to know it as well.
        if step.from.rflags & rflags::TF != 0 {
            return Some(exit);
        }
        let exit = DebugExit { dr6: exit.dr6 & !DebugExit::STEP, ..exit };
        (exit.dr6 & OTHERS != 0).then_some(exit)
    }
}

/// Whether a CPU that is at `now` has done something since it was at `before`. QEMU's processor gives RFLAGS without bit 1, which
/// KVM sets in what is written, and RF is there for a breakpoint alone.
fn is_elsewhere(before: &Regs, now: &Regs) -> bool {
    let plain = |regs: &Regs| Regs { rflags: held_rflags(regs.rflags) & !rflags::RF, ..*regs };
    plain(now) != plain(before)
}

/// The instruction at `at`, if it stores the flags: those of a CPU that steps are not the guest's.
fn shows_flags<M: probe_engine::memory::PhysMemory>(
    at: Gva,
    memory: &VirtMemory<'_, M>,
) -> Option<Emulation> {
    const PUSHF: u8 = 0x9c;
    let mut byte = [0];
    memory.read(at, &mut byte).ok().filter(|()| byte == [PUSHF])?;
    match plan(&byte, at, None, false) {
        Ok(StepPlan::Emulate(emulation)) => Some(emulation),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_are_no_results_are_no_step() {
        let before = Regs { rip: 0x1000, rflags: 0x244 | rflags::RF, ..Regs::default() };
        assert!(!is_elsewhere(&before, &Regs { rflags: 0x246, ..before }));
        for now in
            [Regs { rflags: 0x206, ..before }, Regs { rip: 0x1001, ..before }, Regs { rcx: 1, ..before }]
        {
            assert!(is_elsewhere(&before, &now), "{now:?}");
        }
    }
}
