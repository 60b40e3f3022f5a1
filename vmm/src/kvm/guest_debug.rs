//! Guest debugging of one vCPU: software breakpoints intercepted, hardware breakpoints set, exceptions given back.

use super::vcpu::KvmVcpu;
use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_INJECT_BP, KVM_GUESTDBG_INJECT_DB, KVM_GUESTDBG_USE_HW_BP,
    KVM_GUESTDBG_USE_SW_BP, kvm_guest_debug,
};
use probe_engine::addr::Gva;
use vmm_sys_util::errno;

/// Execution breakpoints in DR0 to DR3, by guest-virtual address. While any is set, KVM hides the guest's own
/// debug registers from the CPU and every #DB comes to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Breakpoints(pub [Option<Gva>; 4]);

impl Breakpoints {
    /// Breakpoints at up to four addresses.
    #[must_use]
    pub fn at(addresses: &[Gva]) -> Self {
        let mut all = Self::default();
        for (register, address) in all.0.iter_mut().zip(addresses) {
            *register = Some(*address);
        }
        all
    }

    /// Whether one of them is at `address`.
    #[must_use]
    pub fn contain(&self, address: Gva) -> bool {
        self.0.contains(&Some(address))
    }

    fn control(&self) -> kvm_guest_debug {
        /// DR7 bit 10 reads as one; bits 0, 2, 4, 6 enable each register locally, 1, 3, 5, 7 globally. Type and
        /// length stay 0: execution.
        const DR7_FIXED: u64 = 1 << 10;
        let mut debug =
            kvm_guest_debug { control: KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP, ..Default::default() };
        let mut dr7 = DR7_FIXED;
        for (n, (register, address)) in debug.arch.debugreg.iter_mut().zip(self.0).enumerate() {
            if let Some(Gva(address)) = address {
                *register = address;
                dr7 |= 2 << (2 * n);
            }
        }
        if dr7 != DR7_FIXED {
            debug.control |= KVM_GUESTDBG_USE_HW_BP;
            if let Some(register) = debug.arch.debugreg.get_mut(7) {
                *register = dr7;
            }
        }
        debug
    }
}

/// An exception that belongs to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DebugException {
    /// #BP, of the `int3` at RIP.
    Breakpoint,
    /// #DB, with the cause bits that DR6 is to show.
    Debug {
        /// See [`super::DebugExit::dr6`].
        dr6: u64,
    },
}

impl KvmVcpu {
    /// Intercepts software breakpoints from now on, and sets these hardware ones.
    ///
    /// # Errors
    /// What KVM_SET_GUEST_DEBUG said.
    pub fn debug(&self, breakpoints: &Breakpoints) -> Result<(), errno::Error> {
        self.fd().set_guest_debug(&breakpoints.control())
    }

    /// Gives the guest its `exception` when it next runs. Registers must not be written in between: that would
    /// drop the exception again.
    ///
    /// # Errors
    /// EBUSY when another exception is pending already, or what else the system calls said.
    pub fn inject(&self, exception: DebugException, breakpoints: &Breakpoints) -> Result<(), errno::Error> {
        let mut debug = breakpoints.control();
        match exception {
            DebugException::Breakpoint => debug.control |= KVM_GUESTDBG_INJECT_BP,
            DebugException::Debug { dr6 } => {
                let mut registers = self.fd().get_debug_regs()?;
                registers.dr6 = dr6;
                self.fd().set_debug_regs(&registers)?;
                debug.control |= KVM_GUESTDBG_INJECT_DB;
            }
        }
        self.fd().set_guest_debug(&debug)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_breakpoint_gets_its_register_and_enable_bit() {
        let debug = Breakpoints([Some(Gva(0x1000)), None, Some(Gva(0x2000)), None]).control();
        assert_eq!(debug.arch.debugreg[..4], [0x1000, 0, 0x2000, 0]);
        assert_eq!(debug.arch.debugreg[7], 0x400 | 0x2 | 0x20);
        assert_eq!(Breakpoints::default().control().control & KVM_GUESTDBG_USE_HW_BP, 0);
    }
}
