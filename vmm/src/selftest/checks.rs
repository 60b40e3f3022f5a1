//! The checks: each runs a guest of a few instructions and compares what KVM gives back with what is needed.

use super::micro::{self, ExceptionStack, FREE, MicroError, MicroGuest, Privilege};
use super::{BreakpointDelivery, SelftestError};
use crate::devices::{Devices, console::SerialConsole};
use crate::kvm::{Breakpoints, DebugException, DebugExit, Exit, Hypervisor, KvmVcpu, Left};
use crate::trap::{self, Trap};
use kvm_bindings::{
    KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_GUESTDBG_USE_HW_BP, kvm_guest_debug,
    kvm_guest_debug_arch,
};
use probe_engine::addr::Gva;
use probe_engine::memory::NoMemory;
use probe_engine::paging::AddressSpace;
use probe_engine::regs::rflags;
use std::io;
use vmm_sys_util::errno;
use vmm_sys_util::eventfd::EventFd;

const CODE: Gva = FREE;
/// The guest's handler for vector 3: counts in [`COUNT`] and returns.
const HANDLER: Gva = Gva(0x1_8000);
/// Sixteen bytes of data, zero at the start of each check.
const COUNT: Gva = Gva(0x2_0000);
const STACK: Gva = Gva(0x8_0000);

/// `inc dword [COUNT]`
const COUNT_UP: [u8; 7] = [0xff, 0x04, 0x25, 0x00, 0x00, 0x02, 0x00];
const NOP: u8 = 0x90;
const IRETQ: [u8; 2] = [0x48, 0xcf];
/// `nop; int3; nop`
const INT3: [u8; 3] = [NOP, 0xcc, NOP];
const INT3_AT: Gva = Gva(CODE.0 + 1);

const DB_VECTOR: u32 = 1;

/// What was seen in place of what was hoped for, as words for a table.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckFailure {
    /// The guest ran, and did not do what it should.
    #[error("{0}")]
    Saw(String),
    /// A system call failed.
    #[error("KVM refused a call: {0}")]
    Refused(#[from] errno::Error),
    /// The check is larger than its guest.
    #[error(transparent)]
    Memory(#[from] NoMemory),
}

fn saw(what: impl Into<String>) -> CheckFailure {
    CheckFailure::Saw(what.into())
}

/// One vCPU that runs one check after the other.
pub(super) struct Bench {
    guest: MicroGuest,
    vcpu: KvmVcpu,
    devices: Devices,
    has_cmpxchg16b: bool,
}

impl Bench {
    pub(super) fn new(hypervisor: &Hypervisor) -> Result<Self, SelftestError> {
        let guest = MicroGuest::new(hypervisor)?;
        let handler = [&COUNT_UP[..], &IRETQ].concat();
        guest.write(HANDLER, &handler).map_err(MicroError::from)?;
        guest.gate(3, HANDLER, Privilege::User, ExceptionStack::Current).map_err(MicroError::from)?;
        let vcpu = guest.add_vcpu(hypervisor, 0, 1).map_err(MicroError::from)?;
        let interrupt = EventFd::new(0).map_err(|e| SelftestError::Host("an eventfd", e))?;
        let devices = Devices::new(SerialConsole::new(interrupt, Box::new(io::sink()), false));
        let has_cmpxchg16b = vcpu.fd().get_cpuid2(kvm_bindings::KVM_MAX_CPUID_ENTRIES).is_ok_and(|cpuid| {
            const CMPXCHG16B: u32 = 1 << 13;
            cpuid.as_slice().iter().any(|leaf| leaf.function == 1 && leaf.ecx & CMPXCHG16B != 0)
        });
        Ok(Self { guest, vcpu, devices, has_cmpxchg16b })
    }

    /// Begins `code`, followed by the end of the guest, with these breakpoints.
    fn start(&mut self, code: &[u8], breakpoints: &Breakpoints) -> Result<(), CheckFailure> {
        // The last check may have ended in a port access.
        self.complete_access();
        let code = [code, &micro::power_off()].concat();
        self.guest.write(CODE, &code)?;
        self.guest.write(COUNT, &[0; 16])?;
        micro::start(&self.vcpu, CODE, STACK, Privilege::Kernel)?;
        Ok(self.vcpu.debug(breakpoints)?)
    }

    /// Runs to the next exit, and carries an access out.
    fn step(&mut self) -> Seen {
        match self.vcpu.run() {
            Left::Access(access) => self.devices.bus.serve(access).map_or(Seen::Access, |_| Seen::End),
            Left::Exit(exit) => Seen::Exit(exit),
        }
    }

    /// Runs to the first exit that is not a device access.
    fn run(&mut self) -> Seen {
        /// More than any check has. Exits that repeat for ever must not hang us.
        const MOST: usize = 16;
        let mut steps = std::iter::repeat_with(|| self.step()).take(MOST);
        steps.find(|seen| *seen != Seen::Access).unwrap_or(Seen::Exit(Exit::Interrupted))
    }

    /// Lets KVM finish the access of the last exit.
    fn complete_access(&mut self) {
        // Where the guest ends with it, the next step sees that.
        let _ = self.vcpu.complete_access(|access| self.devices.bus.serve(access));
    }

    /// Runs on, which is to be to the end of the guest.
    fn run_to_end(&mut self) -> Result<(), CheckFailure> {
        match self.run() {
            Seen::End => Ok(()),
            seen => Err(saw(seen.words())),
        }
    }

    fn run_to_debug_exit(&mut self) -> Result<DebugExit, CheckFailure> {
        match self.run() {
            Seen::Exit(Exit::Debug(exit)) => Ok(exit),
            seen => Err(saw(seen.words())),
        }
    }

    /// Runs on, which is to be to a #DB with one of the `causes` of DR6 and RIP at `at`.
    fn run_to_db(&mut self, causes: u64, at: Gva) -> Result<(), CheckFailure> {
        let exit = self.run_to_debug_exit()?;
        let rip = Gva(self.vcpu.regs().rip);
        if exit.exception == DB_VECTOR && exit.dr6 & causes != 0 && rip == at {
            return Ok(());
        }
        Err(saw(format!("{}, RIP {rip} instead of {at}", Seen::Exit(Exit::Debug(exit)).words())))
    }

    fn resume_past_breakpoint(&mut self) {
        let mut regs = self.vcpu.regs();
        regs.rflags |= rflags::RF;
        self.vcpu.set_regs(&regs);
    }

    fn debug_with(&self, control: u32, debugreg: [u64; 8]) -> Result<(), errno::Error> {
        let arch = kvm_guest_debug_arch { debugreg };
        self.vcpu.fd().set_guest_debug(&kvm_guest_debug { control, pad: 0, arch })
    }

    /// The count is to be `expected`.
    fn counted(&self, expected: u64) -> Result<(), CheckFailure> {
        match self.guest.read_u64(COUNT)? {
            count if count == expected => Ok(()),
            count => Err(saw(format!("the guest counted {count} instead of {expected}"))),
        }
    }

    /// A guest without anything special runs and ends itself through a port.
    pub(super) fn port_exit(&mut self) -> Result<(), CheckFailure> {
        self.start(&COUNT_UP, &Breakpoints::default())?;
        self.run_to_end()?;
        self.counted(1)
    }

    /// KVM_RUN with `immediate_exit` finishes the port access of the last exit, and runs nothing.
    pub(super) fn access_completion(&mut self) -> Result<(), CheckFailure> {
        const IN_AL_0X80: [u8; 2] = [0xe4, 0x80];
        const OPEN_BUS: u64 = 0xff;
        self.start(&[&IN_AL_0X80[..], &COUNT_UP].concat(), &Breakpoints::default())?;
        match self.step() {
            Seen::Access => {}
            seen => return Err(saw(seen.words())),
        }
        self.complete_access();
        let regs = self.vcpu.regs();
        let behind = CODE.add(IN_AL_0X80.len() as u64);
        if Gva(regs.rip) != behind || regs.rax & 0xff != OPEN_BUS {
            return Err(saw(format!("RIP {:#x} instead of {behind}, RAX {:#x}", regs.rip, regs.rax)));
        }
        self.counted(0)?;
        self.run_to_end()?;
        self.counted(1)
    }

    /// Registers come with the exit and go with the entry.
    pub(super) fn shared_registers(&mut self) -> Result<(), CheckFailure> {
        const MOV_EAX_0X1234_OUT: [u8; 7] = [0xb8, 0x34, 0x12, 0x00, 0x00, 0xe6, 0x80];
        const MOV_COUNT_EBX: [u8; 7] = [0x89, 0x1c, 0x25, 0x00, 0x00, 0x02, 0x00];
        self.start(&[MOV_EAX_0X1234_OUT, MOV_COUNT_EBX].concat(), &Breakpoints::default())?;
        match self.step() {
            Seen::Access => {}
            seen => return Err(saw(seen.words())),
        }
        self.complete_access();
        let mut regs = self.vcpu.regs();
        let sregs = self.vcpu.fd().get_sregs()?;
        if regs.rax != 0x1234 || self.vcpu.address_space() != AddressSpace::new(sregs.cr3, sregs.cr4) {
            return Err(saw("registers of another moment at the exit"));
        }
        regs.rbx = 0x5678;
        self.vcpu.set_regs(&regs);
        self.run_to_end()?;
        self.counted(0x5678)
    }

    /// The CPU executes the guest kernel's instructions. A KVM without VMX or SVM emulates them one by one, and
    /// its emulator lacks many: a 16-byte exchange and vector arithmetic stand for them.
    pub(super) fn native_execution(&mut self) -> Result<(), CheckFailure> {
        /// `xor eax, eax; cdq; mov ebx, 7; xor ecx, ecx`
        const OPERANDS: [u8; 10] = [0x31, 0xc0, 0x99, 0xbb, 7, 0, 0, 0, 0x31, 0xc9];
        /// `lock cmpxchg16b [COUNT]`
        const EXCHANGE: [u8; 10] = [0xf0, 0x48, 0x0f, 0xc7, 0x0c, 0x25, 0x00, 0x00, 0x02, 0x00];
        /// `paddq xmm0, xmm0`
        const ADD_VECTORS: [u8; 4] = [0x66, 0x0f, 0xd4, 0xc0];
        self.start(&ADD_VECTORS, &Breakpoints::default())?;
        self.run_to_end()?;
        if !self.has_cmpxchg16b {
            return Ok(());
        }
        self.start(&[OPERANDS, EXCHANGE].concat(), &Breakpoints::default())?;
        self.run_to_end()?;
        self.counted(7)
    }

    /// An `int3` in kernel mode comes to us, one way or the other.
    pub(super) fn breakpoint(&mut self) -> Result<BreakpointDelivery, CheckFailure> {
        self.start(&INT3, &Breakpoints::default())?;
        match self.run() {
            Seen::Exit(Exit::Debug(exit)) => return self.delivered(exit, BreakpointDelivery::Intercepted),
            Seen::End => self.counted(1)?,
            seen => return Err(saw(seen.words())),
        }
        self.start(&INT3, &watched(BreakpointDelivery::Reflected))?;
        let exit = self.run_to_debug_exit()?;
        self.delivered(exit, BreakpointDelivery::Reflected)
    }

    /// `exit` is to be a breakpoint at the `int3`, by way of `delivery`.
    fn delivered(
        &mut self,
        exit: DebugExit,
        delivery: BreakpointDelivery,
    ) -> Result<BreakpointDelivery, CheckFailure> {
        let breakpoints = watched(delivery);
        match trap::classify(exit, &mut self.vcpu, self.guest.ram(), &breakpoints, [Some(HANDLER), None]) {
            Trap::Breakpoint(b) if b.delivery == delivery && Gva(b.regs.rip) == INT3_AT => Ok(delivery),
            _ => {
                let rip = self.vcpu.regs().rip;
                Err(saw(format!(
                    "{}, RIP {rip:#x} instead of {INT3_AT}",
                    Seen::Exit(Exit::Debug(exit)).words()
                )))
            }
        }
    }

    /// The guest's own `int3` reaches the guest's handler, once.
    pub(super) fn give_back(&mut self, delivery: BreakpointDelivery) -> Result<(), CheckFailure> {
        let breakpoints = watched(delivery);
        self.start(&INT3, &breakpoints)?;
        self.run_to_debug_exit()?;
        match delivery {
            BreakpointDelivery::Intercepted => self.vcpu.inject(DebugException::Breakpoint, &breakpoints)?,
            BreakpointDelivery::Reflected => self.resume_past_breakpoint(),
        }
        self.run_to_end()?;
        self.counted(1)
    }

    /// A debug register stops before an instruction, and RF lets it pass.
    pub(super) fn execution_breakpoint(&mut self) -> Result<(), CheckFailure> {
        let at = CODE.add(1);
        self.start(&[&[NOP], &COUNT_UP[..]].concat(), &Breakpoints::at(&[at]))?;
        self.run_to_db(1, at)?;
        self.counted(0)?;
        self.resume_past_breakpoint();
        match self.run() {
            Seen::End => self.counted(1),
            Seen::Exit(Exit::Debug(_)) => Err(saw("stops, but RF does not let the instruction pass")),
            seen => Err(saw(seen.words())),
        }
    }

    /// A debug register stops behind a store.
    pub(super) fn data_breakpoint(&mut self) -> Result<(), CheckFailure> {
        /// DR7: register 0 enabled, on stores, of four bytes.
        const DR7: u64 = 1 << 10 | 2 | 1 << 16 | 3 << 18;
        self.start(&COUNT_UP, &Breakpoints::default())?;
        self.debug_with(KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP, [COUNT.0, 0, 0, 0, 0, 0, 0, DR7])?;
        self.run_to_db(1, CODE.add(COUNT_UP.len() as u64))?;
        self.counted(1)
    }

    /// One instruction at a time.
    pub(super) fn single_step(&mut self) -> Result<(), CheckFailure> {
        /// DR6: a single step.
        const BS: u64 = 1 << 14;
        self.start(&[NOP, NOP], &Breakpoints::default())?;
        self.debug_with(KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP, [0; 8])?;
        self.run_to_db(BS, CODE.add(1))?;
        self.run_to_db(BS, CODE.add(2))
    }
}

/// The breakpoints that `delivery` takes.
fn watched(delivery: BreakpointDelivery) -> Breakpoints {
    match delivery {
        BreakpointDelivery::Intercepted => Breakpoints::default(),
        BreakpointDelivery::Reflected => Breakpoints::at(&[HANDLER]),
    }
}

/// An exit that was not expected, for people.
/// What a guest did.
#[derive(PartialEq, Eq)]
enum Seen {
    /// It accessed a device.
    Access,
    /// It switched itself off.
    End,
    /// Something else.
    Exit(Exit),
}

impl Seen {
    fn words(&self) -> String {
        match self {
            Self::Access => "a device access".to_owned(),
            Self::End => "nothing: the guest ran on to its end".to_owned(),
            Self::Exit(Exit::Debug(exit)) => {
                format!("debug exit, exception {}, DR6 {:#x}", exit.exception, exit.dr6)
            }
            Self::Exit(Exit::Interrupted) => "the guest did not come to an end".to_owned(),
            Self::Exit(Exit::NotStarted) => "the vCPU did not start".to_owned(),
            Self::Exit(Exit::Shutdown) => "a triple fault of the guest".to_owned(),
            Self::Exit(Exit::Sealed) => "KVM_RUN failed: EFAULT".to_owned(),
            Self::Exit(Exit::EntryWritten(register, _)) => format!("a question about {register}"),
            Self::Exit(Exit::Failed(words)) => words.clone(),
        }
    }
}
