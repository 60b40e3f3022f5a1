//! Faults that a probed instruction would have raised, raised on its behalf.

use super::vcpu::{KvmVcpu, to_kvm};
use probe_engine::paging::PageFault;
use probe_engine::regs::{Regs, rflags};
use vmm_sys_util::errno;

/// An exception with an error code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exception {
    /// #PF, with CR2 and the error code.
    PageFault(PageFault),
    /// #GP(0).
    GeneralProtection,
}

impl KvmVcpu {
    /// Raises `exception` at `regs`, of which RIP is on the faulting instruction. RF is set in the frame, as the
    /// CPU does for faults (Intel SDM volume 3, 18.3.1.1).
    ///
    /// # Errors
    /// What the system calls said.
    pub fn raise(&mut self, exception: Exception, regs: &Regs) -> Result<(), errno::Error> {
        const GP_VECTOR: u8 = 13;
        const PF_VECTOR: u8 = 14;
        // Registers first: writing them drops a pending exception.
        self.fd().set_regs(&to_kvm(&Regs { rflags: regs.rflags | rflags::RF, ..*regs }))?;
        let (vector, code) = match exception {
            Exception::PageFault(fault) => {
                let mut sregs = self.fd().get_sregs()?;
                sregs.cr2 = fault.at.0;
                self.fd().set_sregs(&sregs)?;
                (PF_VECTOR, fault.code)
            }
            Exception::GeneralProtection => (GP_VECTOR, 0),
        };
        let mut events = self.fd().get_vcpu_events()?;
        events.exception.injected = 1;
        events.exception.nr = vector;
        events.exception.has_error_code = 1;
        events.exception.error_code = code;
        self.fd().set_vcpu_events(&events)
    }
}
