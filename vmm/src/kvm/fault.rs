//! Faults that a probed instruction would have raised, raised on its behalf.

use super::vcpu::{KvmVcpu, to_kvm};
use kvm_bindings::KVM_VCPUEVENT_VALID_NMI_PENDING;
use probe_engine::insn::fault::EmulationFault;
use probe_engine::paging::PageFault;
use probe_engine::regs::{Regs, rflags};
use vmm_sys_util::errno;

/// An exception with an error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exception {
    /// #PF, with CR2 and the error code.
    PageFault(PageFault),
    /// #SS(0).
    Stack,
    /// #GP(0).
    GeneralProtection,
}

impl Exception {
    /// What the guest's CPU raises for `fault`; `None` where the guest may access a device and only the host cannot.
    #[must_use]
    pub fn of(fault: EmulationFault) -> Option<Self> {
        match fault {
            EmulationFault::Page(fault) if fault.canonical => Some(Self::PageFault(fault)),
            EmulationFault::Page(_) | EmulationFault::BranchTarget(_) => Some(Self::GeneralProtection),
            EmulationFault::Stack(_) => Some(Self::Stack),
            EmulationFault::NotRam(_) => None,
        }
    }

    /// Its vector and error code (Intel SDM volume 3, 6.15).
    #[must_use]
    pub fn vector_and_code(self) -> (u8, u32) {
        match self {
            Self::PageFault(fault) => (14, fault.code),
            Self::Stack => (12, 0),
            Self::GeneralProtection => (13, 0),
        }
    }
}

impl KvmVcpu {
    /// Raises `exception` at `regs`, of which RIP is on the faulting instruction. RF is set in the frame, as the
    /// CPU does for faults (Intel SDM volume 3, 18.3.1.1).
    ///
    /// # Errors
    /// What the system calls said.
    pub fn raise(&mut self, exception: Exception, regs: &Regs) -> Result<(), errno::Error> {
        // Registers first: writing them drops a pending exception.
        self.fd().set_regs(&to_kvm(&Regs { rflags: regs.rflags | rflags::RF, ..*regs }))?;
        if let Exception::PageFault(fault) = exception {
            let mut sregs = self.fd().get_sregs()?;
            sregs.cr2 = fault.at.0;
            self.fd().set_sregs(&sregs)?;
        }
        let (vector, code) = exception.vector_and_code();
        let mut events = self.fd().get_vcpu_events()?;
        // An NMI that comes between the two calls must stay pending.
        events.flags &= !KVM_VCPUEVENT_VALID_NMI_PENDING;
        events.exception.injected = 1;
        events.exception.nr = vector;
        events.exception.has_error_code = 1;
        events.exception.error_code = code;
        // It ends where the exception is delivered.
        events.interrupt.shadow = 0;
        self.fd().set_vcpu_events(&events)
    }
}
