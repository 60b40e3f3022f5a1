//! Guest debugging of one vCPU: software breakpoints intercepted, debug registers set, exceptions given back.

use super::exit::DebugExit;
use super::vcpu::KvmVcpu;
use kvm_bindings::{
    KVM_GUESTDBG_BLOCKIRQ, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_INJECT_BP, KVM_GUESTDBG_INJECT_DB,
    KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP, KVM_GUESTDBG_USE_SW_BP, kvm_guest_debug,
};
use probe_engine::addr::Gva;
use probe_engine::probe::watch::{Condition, Length};
use vmm_sys_util::errno;

/// What one debug register does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebugRegister {
    /// The first byte (GVA), a multiple of the length.
    pub at: Gva,
    /// How many bytes; one for execution.
    pub length: Length,
    /// What it fires at.
    pub condition: Condition,
}

impl DebugRegister {
    /// A breakpoint on the instruction at `at`.
    #[must_use]
    pub fn execution(at: Gva) -> Self {
        Self { at, length: Length::One, condition: Condition::Execute }
    }
}

/// What DR0 to DR3 do. While any is set, KVM hides the guest's own debug registers from the CPU and every #DB
/// comes to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Breakpoints(pub [Option<DebugRegister>; 4]);

impl Breakpoints {
    /// Execution breakpoints at up to four addresses.
    #[must_use]
    pub fn at(addresses: &[Gva]) -> Self {
        let mut all = Self::default();
        for (register, address) in all.0.iter_mut().zip(addresses) {
            *register = Some(DebugRegister::execution(*address));
        }
        all
    }

    /// The data registers among those that DR6 names: their accesses have been made. DR6 may name registers as well
    /// that are not in use (Intel SDM volume 3, 18.2.3).
    #[must_use]
    pub fn accessed(&self, dr6: u64) -> [bool; 4] {
        self.fired(dr6, |register| register.condition != Condition::Execute)
    }

    /// The execution breakpoints at `rip` among those that DR6 names: their instruction is about to run.
    #[must_use]
    pub fn reached(&self, dr6: u64, rip: Gva) -> [bool; 4] {
        self.fired(dr6, |register| register.condition == Condition::Execute && register.at == rip)
    }

    fn fired(&self, dr6: u64, is_it: impl Fn(&DebugRegister) -> bool) -> [bool; 4] {
        let mut fired = [false; 4];
        for (n, (fired, register)) in fired.iter_mut().zip(&self.0).enumerate() {
            *fired = dr6 & 1 << n != 0 && register.as_ref().is_some_and(&is_it);
        }
        fired
    }

    /// DR7 and the addresses as KVM takes them (Intel SDM volume 3, 18.2.4).
    fn control(&self) -> kvm_guest_debug {
        /// Bit 10 of DR7 reads as one; bits 0, 2, 4, 6 enable each register locally, 1, 3, 5, 7 globally. From bit 16
        /// on each has four bits: two for what it fires at, two for its length.
        const DR7_FIXED: u64 = 1 << 10;
        let mut debug =
            kvm_guest_debug { control: KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_SW_BP, ..Default::default() };
        let mut dr7 = DR7_FIXED;
        for (n, (address, register)) in debug.arch.debugreg.iter_mut().zip(self.0).enumerate() {
            if let Some(DebugRegister { at, length, condition }) = register {
                *address = at.0;
                dr7 |= 2 << (2 * n) | (condition_bits(condition) | length_bits(length) << 2) << (16 + 4 * n);
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

/// R/W0 to R/W3 of DR7.
fn condition_bits(condition: Condition) -> u64 {
    match condition {
        Condition::Execute => 0b00,
        Condition::Write => 0b01,
        Condition::ReadWrite => 0b11,
    }
}

/// LEN0 to LEN3 of DR7: eight bytes came last.
fn length_bits(length: Length) -> u64 {
    match length {
        Length::One => 0b00,
        Length::Two => 0b01,
        Length::Four => 0b11,
        Length::Eight => 0b10,
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

impl DebugException {
    /// #DB of one step (Intel SDM volume 3, 18.2.3): BS, among bits that read as ones.
    pub(crate) const STEP: Self = Self::Debug { dr6: 0xffff_0ff0 | DebugExit::STEP };
}

impl KvmVcpu {
    /// Intercepts software breakpoints from now on, and sets these debug registers.
    ///
    /// # Errors
    /// What KVM_SET_GUEST_DEBUG said.
    pub fn debug(&self, breakpoints: &Breakpoints) -> Result<(), errno::Error> {
        self.fd().set_guest_debug(&breakpoints.control())
    }

    /// The same for one instruction, at which the guest takes no interrupt: it ends with a debug exit that has [`STEP`](DebugExit::STEP).
    /// Registers that were set have to be KVM's by now: KVM steps where RIP is at this moment.
    ///
    /// # Errors
    /// What KVM_SET_GUEST_DEBUG said.
    pub fn debug_step(&self, breakpoints: &Breakpoints) -> Result<(), errno::Error> {
        let mut debug = breakpoints.control();
        debug.control |= KVM_GUESTDBG_SINGLESTEP | KVM_GUESTDBG_BLOCKIRQ;
        match self.fd().set_guest_debug(&debug) {
            // A KVM from before Linux 5.15 cannot keep interrupts away: the instruction may be the first one of a handler.
            Err(error) if error.errno() == libc::EINVAL => {
                debug.control &= !KVM_GUESTDBG_BLOCKIRQ;
                self.fd().set_guest_debug(&debug)
            }
            set => set,
        }
    }

    /// Gives the guest its `exception` when it next runs. Registers must not be written in between: that would
    /// drop the exception again.
    ///
    /// # Errors
    /// EBUSY when another exception is pending already, or what else the system calls said.
    pub fn inject(
        &mut self,
        exception: DebugException,
        breakpoints: &Breakpoints,
    ) -> Result<(), errno::Error> {
        self.end_shadow()?;
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
        let execution = |at| Some(DebugRegister::execution(Gva(at)));
        let debug = Breakpoints([execution(0x1000), None, execution(0x2000), None]).control();
        assert_eq!(debug.arch.debugreg[..4], [0x1000, 0, 0x2000, 0]);
        assert_eq!(debug.arch.debugreg[7], 0x400 | 0x2 | 0x20);
        assert_eq!(Breakpoints::default().control().control & KVM_GUESTDBG_USE_HW_BP, 0);
    }

    #[test]
    fn conditions_and_lengths_are_those_of_the_manual() {
        let cases = [
            (Condition::Execute, Length::One, 0b0000),
            (Condition::Write, Length::One, 0b0001),
            (Condition::Write, Length::Two, 0b0101),
            (Condition::ReadWrite, Length::Four, 0b1111),
            (Condition::Write, Length::Eight, 0b1001),
            (Condition::ReadWrite, Length::Eight, 0b1011),
        ];
        for (condition, length, bits) in cases {
            for n in 0..4 {
                let mut all = Breakpoints::default();
                all.0[n] = Some(DebugRegister { at: Gva(0x1000), length, condition });
                let dr7 = all.control().arch.debugreg[7];
                assert_eq!(
                    dr7,
                    0x400 | 2 << (2 * n) | bits << (16 + 4 * n),
                    "{condition:?} {length:?} in DR{n}"
                );
            }
        }
    }

    #[test]
    fn dr6_names_registers_of_ours_or_it_is_not_about_them() {
        let write = DebugRegister { at: Gva(0x2000), length: Length::Eight, condition: Condition::Write };
        let execution = DebugRegister::execution(Gva(0x1000));
        let all = Breakpoints([Some(execution), Some(write), None, Some(write)]);
        let (here, elsewhere) = (Gva(0x1000), Gva(0x2000));
        assert_eq!(all.accessed(0b1111), [false, true, false, true]);
        assert_eq!(all.accessed(0b0101), [false; 4]);
        assert_eq!(all.reached(0b1111, here), [true, false, false, false]);
        assert_eq!(all.reached(0b1111, elsewhere), [false; 4]);
        assert_eq!(all.reached(0b1110, here), [false; 4]);
    }
}
