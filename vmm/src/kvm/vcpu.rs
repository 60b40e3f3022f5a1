//! One vCPU's descriptor: run it, and see its registers without a further system call.

use super::entry::{self, Shadow};
use super::exit::{Data, DebugExit, DeviceAccess, Exit, Left, Space};
use kvm_bindings::{
    KVM_EXIT_IO, KVM_EXIT_MMIO, KVM_MP_STATE_HALTED, KVM_MP_STATE_RUNNABLE, KVM_VCPUEVENT_VALID_SHADOW, Msrs,
    kvm_dtable, kvm_mp_state, kvm_msr_entry, kvm_regs, kvm_segment, kvm_sregs, kvm_vcpu_events,
};
use kvm_ioctls::{SyncReg, VcpuExit, VcpuFd};
use probe_engine::addr::Gva;
use probe_engine::guard::entries::EntryRegister;
use probe_engine::insn::emulate::Segments;
use probe_engine::paging::AddressSpace;
use probe_engine::regs::{Regs, rflags};
use probe_engine::scan::processors::ProcessorState;
use probe_engine::system_regs::{DescriptorTable, Segment, SystemRegs};
use std::cell::OnceCell;
use std::num::NonZeroU32;
use vmm_sys_util::errno;

/// A vCPU. Used by its own thread alone.
pub struct KvmVcpu {
    fd: VcpuFd,
    /// What KVM leaves in the shared page from the next exit on.
    shared: Shared,
    /// What of the shared page is that of the last exit.
    seen: Shared,
}

/// What KVM leaves in the shared page at each exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    /// General registers.
    pub general: bool,
    /// System registers.
    pub system: bool,
    /// Pending events.
    pub events: bool,
}

impl Shared {
    /// All of it.
    pub const ALL: Self = Self { general: true, system: true, events: true };
}

impl Default for Shared {
    fn default() -> Self {
        Self::ALL
    }
}

/// System registers at an exit. Those that KVM has not left are asked for when somebody wants to know.
pub struct System<'a> {
    fd: &'a VcpuFd,
    known: OnceCell<KnownSystem>,
}

struct KnownSystem {
    space: AddressSpace,
    segments: Segments,
}

impl System<'_> {
    /// The address space.
    pub fn space(&self) -> AddressSpace {
        self.known().space
    }

    /// The segment bases.
    pub fn segments(&self) -> Segments {
        self.known().segments
    }

    fn known(&self) -> &KnownSystem {
        // KVM has no reason to refuse them.
        self.known.get_or_init(|| KnownSystem::from(&self.fd.get_sregs().unwrap_or_default()))
    }
}

impl From<&kvm_sregs> for KnownSystem {
    fn from(sregs: &kvm_sregs) -> Self {
        Self {
            space: AddressSpace::new(sregs.cr3, sregs.cr4),
            segments: Segments { fs_base: sregs.fs.base, gs_base: sregs.gs.base },
        }
    }
}

impl KvmVcpu {
    /// Takes the descriptor over and asks KVM to leave general and system registers and pending events in the
    /// shared page at each exit (KVM_CAP_SYNC_REGS), so that a hit needs no KVM_GET_REGS.
    pub(super) fn new(fd: VcpuFd) -> Self {
        let mut vcpu = Self { fd, shared: Shared::ALL, seen: Shared::ALL };
        vcpu.share(Shared::ALL);
        vcpu
    }

    /// Has KVM leave no more than this in the shared page from the next exit on. What else is wanted then costs a system call.
    /// General registers are not asked for: who has them not shared does not look at them.
    pub fn share(&mut self, shared: Shared) {
        self.shared = shared;
        let each = [
            (SyncReg::Register, shared.general),
            (SyncReg::SystemRegister, shared.system),
            (SyncReg::VcpuEvents, shared.events),
        ];
        for (register, is_shared) in each {
            match is_shared {
                true => self.fd.set_sync_valid_reg(register),
                false => self.fd.clear_sync_valid_reg(register),
            }
        }
    }

    pub(crate) fn fd(&self) -> &VcpuFd {
        &self.fd
    }

    /// Starts the vCPU anew at `regs` with the system registers that `change` makes of its present ones: it runs
    /// whether or not the guest started it, and no exception is under way.
    ///
    /// # Errors
    /// What the system calls said.
    pub fn restart(&self, regs: &Regs, change: impl FnOnce(&mut kvm_sregs)) -> Result<(), errno::Error> {
        let mut sregs = self.fd.get_sregs()?;
        change(&mut sregs);
        self.fd.set_sregs(&sregs)?;
        self.fd.set_mp_state(kvm_mp_state { mp_state: KVM_MP_STATE_RUNNABLE })?;
        self.fd.set_vcpu_events(&kvm_vcpu_events::default())?;
        self.fd.set_regs(&to_kvm(regs))
    }

    /// Runs the guest until something is for us.
    pub fn run(&mut self) -> Left<'_> {
        self.seen = self.shared;
        let access = |space, at, data| Left::Access(DeviceAccess { space, at, data });
        Left::Exit(match self.fd.run() {
            Ok(VcpuExit::IoOut(port, data)) => return access(Space::Port, port.into(), Data::Write(data)),
            Ok(VcpuExit::IoIn(port, data)) => return access(Space::Port, port.into(), Data::Read(data)),
            Ok(VcpuExit::MmioRead(at, data)) => return access(Space::Memory, at, Data::Read(data)),
            Ok(VcpuExit::MmioWrite(at, data)) => return access(Space::Memory, at, Data::Write(data)),
            Ok(VcpuExit::Debug(debug)) => {
                Exit::Debug(DebugExit { exception: debug.exception, dr6: debug.dr6 })
            }
            Ok(VcpuExit::X86Wrmsr(write)) => match EntryRegister::of(write.index) {
                Some(register) => Exit::EntryWritten(register, write.data),
                None => Exit::Failed(format!("KVM asked about register {:#x}", write.index)),
            },
            Ok(VcpuExit::Intr | VcpuExit::Hlt) => Exit::Interrupted,
            Ok(VcpuExit::Shutdown) => Exit::Shutdown,
            Ok(VcpuExit::InternalError) => {
                Exit::Failed("KVM could not emulate the guest's instruction (internal error)".to_owned())
            }
            Ok(VcpuExit::FailEntry(reason, _)) => {
                Exit::Failed(format!("the CPU refused to enter the guest (reason {reason:#x})"))
            }
            Ok(other) => Exit::Failed(format!("KVM gave back an exit that was not expected: {other:?}")),
            Err(error) => match error.errno() {
                libc::EINTR => Exit::Interrupted,
                libc::EAGAIN => Exit::NotStarted,
                libc::EFAULT => Exit::Sealed,
                _ => Exit::Failed(format!("KVM_RUN failed: {error}")),
            },
        })
    }

    /// Lets KVM finish the port or MMIO access of the last exit, without running the guest: until then its
    /// registers are those of before. One instruction can access devices several times (a load across two
    /// pages, a read-modify-write); all of that is carried out by `serve`.
    ///
    /// Returns [`Exit::Interrupted`] or [`Exit::NotStarted`] when that was all, and otherwise an exit that the
    /// instruction's end has brought.
    ///
    /// # Errors
    /// What `serve` said of an access by which the machine ends.
    pub fn complete_access<E>(
        &mut self,
        mut serve: impl FnMut(DeviceAccess<'_>) -> Option<E>,
    ) -> Result<Exit, E> {
        self.fd.set_kvm_immediate_exit(1);
        let exit = loop {
            match self.run() {
                Left::Access(access) => {
                    if let Some(end) = serve(access) {
                        break Err(end);
                    }
                }
                Left::Exit(exit) => break Ok(exit),
            }
        };
        self.fd.set_kvm_immediate_exit(0);
        exit
    }

    /// The registers at the last exit.
    pub fn regs(&mut self) -> Regs {
        from_kvm(&self.fd.sync_regs_mut().regs)
    }

    /// The registers with which the guest goes on. Bits of RFLAGS that no CPU holds are dropped.
    pub fn set_regs(&mut self, regs: &Regs) {
        self.fd.sync_regs_mut().regs = to_kvm(regs);
        self.fd.set_sync_dirty_reg(SyncReg::Register);
    }

    /// As [`set_regs`](Self::set_regs), at once: registers that are written when the guest goes on drop an exception
    /// that was injected before.
    ///
    /// # Errors
    /// What the system call said.
    pub fn write_regs(&mut self, regs: &Regs) -> Result<(), errno::Error> {
        self.fd.sync_regs_mut().regs = to_kvm(regs);
        self.fd.set_regs(&to_kvm(regs))
    }

    /// Leaves this of an interrupt shadow to a guest that goes on with `regs`. Where events are not shared, the guest is
    /// taken to be in none.
    pub fn set_shadow(&mut self, wanted: Shadow, regs: &Regs) {
        if !self.seen.events && wanted != Shadow::Begins {
            return;
        }
        let events = self.events();
        let shadow = entry::shadow(wanted, events.interrupt.shadow, regs.rflags);
        if shadow != events.interrupt.shadow {
            events.interrupt.shadow = shadow;
            // Nothing else: an NMI that has come since the exit must stay pending.
            events.flags = KVM_VCPUEVENT_VALID_SHADOW;
            self.fd.set_sync_dirty_reg(SyncReg::VcpuEvents);
        }
    }

    /// Whether no interrupt comes before the guest has executed its next instruction.
    pub fn is_in_shadow(&mut self) -> bool {
        self.events().interrupt.shadow != 0
    }

    /// As [`set_shadow`](Self::set_shadow) with [`Shadow::Over`], at once: events that are written when the guest goes on
    /// drop an exception that was injected before.
    ///
    /// # Errors
    /// What the system calls said.
    pub(super) fn end_shadow(&mut self) -> Result<(), errno::Error> {
        if self.events().interrupt.shadow == 0 {
            return Ok(());
        }
        let mut events = self.fd.get_vcpu_events()?;
        events.interrupt.shadow = 0;
        events.flags = KVM_VCPUEVENT_VALID_SHADOW;
        self.fd.set_vcpu_events(&events)
    }

    /// The system registers at the last exit.
    pub fn system(&mut self) -> System<'_> {
        let known = OnceCell::new();
        if self.seen.system {
            let _ = known.set(KnownSystem::from(&self.fd.sync_regs_mut().sregs));
        }
        System { fd: &self.fd, known }
    }

    /// The address space at the last exit.
    pub fn address_space(&mut self) -> AddressSpace {
        KnownSystem::from(self.sregs()).space
    }

    /// Where the kernel's area of this CPU is (GVA): GS's base, or in user mode what `swapgs` would make it. In the first
    /// instructions behind an entry it is neither.
    pub fn per_cpu_area(&mut self) -> Option<Gva> {
        if !self.in_user_mode() {
            return Some(Gva(self.system().segments().gs_base));
        }
        self.kernel_gs_base().map(Gva)
    }

    /// What `swapgs` makes the base of GS.
    fn kernel_gs_base(&self) -> Option<u64> {
        /// IA32_KERNEL_GS_BASE.
        const KERNEL_GS_BASE: u32 = 0xc000_0102;
        let entry = kvm_msr_entry { index: KERNEL_GS_BASE, ..Default::default() };
        let mut msrs = Msrs::from_entries(&[entry]).ok()?;
        self.fd.get_msrs(&mut msrs).ok().filter(|read| *read == 1)?;
        msrs.as_slice().first().map(|entry| entry.data)
    }

    /// The system registers at the last exit, all of them.
    pub fn system_regs(&mut self) -> SystemRegs {
        let kernel_gs_base = self.kernel_gs_base().unwrap_or_default();
        let sregs = self.sregs();
        let table = |table: &kvm_dtable| DescriptorTable { base: table.base, limit: table.limit };
        SystemRegs {
            cs: segment(&sregs.cs),
            ds: segment(&sregs.ds),
            es: segment(&sregs.es),
            fs: segment(&sregs.fs),
            gs: segment(&sregs.gs),
            ss: segment(&sregs.ss),
            ldt: segment(&sregs.ldt),
            tr: segment(&sregs.tr),
            gdt: table(&sregs.gdt),
            idt: table(&sregs.idt),
            cr0: sregs.cr0,
            cr2: sregs.cr2,
            cr3: sregs.cr3,
            cr4: sregs.cr4,
            cr8: sregs.cr8,
            efer: sregs.efer,
            kernel_gs_base,
        }
    }

    /// What it is set to. The registers are those of the last exit.
    pub fn processor(&mut self) -> ProcessorState {
        /// IA32_LSTAR, IA32_CSTAR, IA32_SYSENTER_EIP.
        const CALLS: [u32; 3] = [0xc000_0082, 0xc000_0083, 0x176];
        let entries = CALLS.map(|index| kvm_msr_entry { index, ..Default::default() });
        let calls = Msrs::from_entries(&entries).ok().and_then(|mut msrs| {
            self.fd.get_msrs(&mut msrs).ok().filter(|read| *read == CALLS.len())?;
            msrs.as_slice().iter().map(|entry| entry.data).collect::<Vec<_>>().try_into().ok()
        });
        let rip = self.regs().rip;
        let sregs = self.sregs();
        let interrupts = (sregs.idt.base, sregs.idt.limit.into());
        ProcessorState { rip, cr0: sregs.cr0, cr4: sregs.cr4, interrupts, calls }
    }

    /// What it has in the registers by which programs enter the kernel, as far as it has them.
    pub fn entry_registers(&self) -> Vec<(EntryRegister, u64)> {
        let value = |register: EntryRegister| {
            let entry = kvm_msr_entry { index: register.index(), ..Default::default() };
            let mut msrs = Msrs::from_entries(&[entry]).ok()?;
            self.fd.get_msrs(&mut msrs).ok().filter(|read| *read == 1)?;
            msrs.as_slice().first().map(|entry| (register, entry.data))
        };
        EntryRegister::ALL.into_iter().filter_map(value).collect()
    }

    /// Sets one of these. Says whether it is set.
    pub fn set_entry_register(&self, register: EntryRegister, data: u64) -> bool {
        let entry = kvm_msr_entry { index: register.index(), data, ..Default::default() };
        let msrs = Msrs::from_entries(&[entry]).ok();
        msrs.is_some_and(|msrs| self.fd.set_msrs(&msrs).is_ok_and(|set| set == 1))
    }

    /// Whether the last exit found the CPU in user mode.
    pub fn in_user_mode(&mut self) -> bool {
        self.sregs().cs.dpl == 3
    }

    fn sregs(&mut self) -> &kvm_sregs {
        if !self.seen.system
            && let Ok(sregs) = self.fd.get_sregs()
        {
            self.fd.sync_regs_mut().sregs = sregs;
            self.seen.system = true;
        }
        &self.fd.sync_regs_mut().sregs
    }

    fn events(&mut self) -> &mut kvm_vcpu_events {
        if !self.seen.events
            && let Ok(events) = self.fd.get_vcpu_events()
        {
            self.fd.sync_regs_mut().events = events;
            self.seen.events = true;
        }
        &mut self.fd.sync_regs_mut().events
    }

    /// Whether it waits, at `regs`, for what no interrupt brings: it is halted with interrupts off, or was never started.
    pub fn is_halted(&self, regs: &Regs) -> bool {
        let state = self.fd.get_mp_state().map_or(KVM_MP_STATE_RUNNABLE, |state| state.mp_state);
        match state {
            KVM_MP_STATE_RUNNABLE => false,
            KVM_MP_STATE_HALTED => regs.rflags & rflags::IF == 0,
            _ => true,
        }
    }

    /// Whether it waits for an interrupt, or for the guest to start it. One that accesses a device does not, and is not asked: it is
    /// in the middle of an instruction.
    pub fn is_waiting(&mut self) -> bool {
        !matches!(self.fd.get_kvm_run().exit_reason, KVM_EXIT_IO | KVM_EXIT_MMIO)
            && self.fd.get_mp_state().is_ok_and(|state| state.mp_state != KVM_MP_STATE_RUNNABLE)
    }

    /// The rate of the host's time-stamp counter, in kHz, when its kernel relies on it (KVM_GET_TSC_KHZ).
    #[must_use]
    pub fn tsc_khz(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.fd.get_tsc_khz().ok()?)
    }

    /// Tells the guest's watchdogs that time has passed while it did not run. Fails, without harm, where the
    /// guest has no kvmclock yet.
    pub fn excuse_pause(&self) {
        let _ = self.fd.kvmclock_ctrl();
    }
}

/// As the descriptor has it (Intel SDM volume 3, 3.4.5), whose bits KVM keeps apart.
fn segment(k: &kvm_segment) -> Segment {
    let bits = [
        (u32::from(k.type_), 8),
        (u32::from(k.s), 12),
        (u32::from(k.dpl), 13),
        (u32::from(k.present), 15),
        (u32::from(k.avl), 20),
        (u32::from(k.l), 21),
        (u32::from(k.db), 22),
        (u32::from(k.g), 23),
    ];
    let attributes = bits.into_iter().fold(0, |all, (bit, at)| all | bit << at);
    Segment { selector: k.selector, base: k.base, limit: k.limit, attributes }
}

fn from_kvm(k: &kvm_regs) -> Regs {
    Regs {
        rax: k.rax,
        rbx: k.rbx,
        rcx: k.rcx,
        rdx: k.rdx,
        rsi: k.rsi,
        rdi: k.rdi,
        rsp: k.rsp,
        rbp: k.rbp,
        r8: k.r8,
        r9: k.r9,
        r10: k.r10,
        r11: k.r11,
        r12: k.r12,
        r13: k.r13,
        r14: k.r14,
        r15: k.r15,
        rip: k.rip,
        rflags: k.rflags,
    }
}

pub(super) fn to_kvm(r: &Regs) -> kvm_regs {
    kvm_regs {
        rax: r.rax,
        rbx: r.rbx,
        rcx: r.rcx,
        rdx: r.rdx,
        rsi: r.rsi,
        rdi: r.rdi,
        rsp: r.rsp,
        rbp: r.rbp,
        r8: r.r8,
        r9: r.r9,
        r10: r.r10,
        r11: r.r11,
        r12: r.r12,
        r13: r.r13,
        r14: r.r14,
        r15: r.r15,
        rip: r.rip,
        rflags: entry::rflags(r.rflags),
    }
}
