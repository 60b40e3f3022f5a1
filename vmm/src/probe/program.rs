//! What a handler sees and changes of a program that has come to a place of its probe.

use crate::memory::GuestRam;
use probe_engine::addr::Gva;
use probe_engine::paging::PageFault;
use probe_engine::probe::plan::ProbePlan;
use probe_engine::regs::{Register, Regs};
use probe_engine::virt_memory::VirtMemory;

/// The registers of a program, which the kernel has saved: it goes on with them.
#[derive(Clone, Copy)]
pub struct ProgramRegs<'a> {
    /// `struct pt_regs` (GVA).
    at: Gva,
    memory: VirtMemory<'a, GuestRam>,
}

impl<'a> ProgramRegs<'a> {
    /// Those of a program for which the kernel calls a probe of this `plan` with `regs`; `None` of a probe that is in no program.
    pub(crate) fn of(plan: &ProbePlan, regs: &Regs, memory: VirtMemory<'a, GuestRam>) -> Option<Self> {
        let program = plan.program.as_ref()?;
        let at = regs.args().get(usize::from(program.saved())).copied()?;
        Some(Self { at: Gva(at), memory })
    }

    /// What a register holds.
    ///
    /// # Errors
    /// The [`PageFault`] of a kernel that has saved it nowhere.
    pub fn get(&self, register: Register) -> Result<u64, PageFault> {
        self.memory.read_u64(self.place(register))
    }

    /// The program goes on with this value. At an entry that may be an argument, and where a function returns, what it returns
    /// ([`Register::Rax`]).
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn set(&self, register: Register, value: u64) -> Result<(), PageFault> {
        self.memory.write(self.place(register), &value.to_le_bytes())
    }

    fn place(&self, register: Register) -> Gva {
        self.at.add(register.saved().into())
    }
}
