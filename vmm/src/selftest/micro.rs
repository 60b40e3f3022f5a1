//! Guests of a few bytes: 64-bit mode on one large page, mapped one to one, with an interrupt descriptor table.
//!
//! No firmware, no boot protocol: the code is written to memory and runs. Virtual addresses are physical ones and
//! open to user mode: [`SIZE`] bytes of memory, then as many that no memory backs. Nothing else is mapped.

use crate::boot::acpi::SLEEP_TYPE_OFF;
use crate::devices::SLP_EN;
use crate::kvm::{Hypervisor, KvmVcpu, Machine, MachineError};
use crate::layout;
use crate::memory::{GuestRam, OutOfMemory};
use kvm_bindings::{kvm_segment, kvm_sregs};
use probe_engine::addr::{Gpa, Gva};
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::paging::AddressSpace;
use probe_engine::regs::Regs;
use std::sync::Arc;
use vmm_sys_util::errno;

/// All the memory of a micro guest: one page of 2 MiB.
pub const SIZE: u64 = 2 << 20;
/// Accesses from here to twice [`SIZE`] go to devices.
pub const DEVICES: Gva = Gva(SIZE);
/// Memory that a guest may use as it likes starts here.
pub const FREE: Gva = Gva(0x1_0000);
/// All memory and the devices are here as well, in the kernel's half (GVA).
pub const UPPER_HALF: Gva = Gva(0xffff_8000_0000_0000);

const PML4: u64 = 0x1000;
const PDPT: u64 = 0x2000;
const DIRECTORY: u64 = 0x3000;
const GDT: u64 = 0x4000;
const IDT: u64 = 0x5000;
const TSS: u64 = 0x6000;
/// Where the stack for exceptions from user mode grows down from.
const EXCEPTION_STACK: u64 = 0x1_0000;
/// Where the stack of [`ExceptionStack::Own`] grows down from.
const OWN_STACK: u64 = 0xc000;

const KERNEL_CODE: u16 = 0x10;
const KERNEL_DATA: u16 = 0x18;
const USER_DATA: u16 = 0x20 | 3;
const USER_CODE: u16 = 0x28 | 3;

/// The memory and the machine of a micro guest.
pub struct MicroGuest {
    machine: Machine,
}

/// A micro guest cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum MicroError {
    /// No memory for it.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// KVM refused its machine.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Something was to be written outside its memory.
    #[error("a micro guest does not fit into its memory")]
    TooLarge(#[from] NoMemory),
}

/// Who may come through a gate by an instruction; exceptions always may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// CPL 0.
    Kernel,
    /// CPL 3.
    User,
}

/// The stack that an exception from kernel mode comes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExceptionStack {
    /// That of the moment.
    Current,
    /// One for exceptions alone (the first entry of the interrupt stack table): the other one may be unusable.
    Own,
}

impl MicroGuest {
    /// A guest without code and without vCPUs.
    ///
    /// # Errors
    /// [`MicroError`] names what failed.
    pub fn new(hypervisor: &Hypervisor) -> Result<Self, MicroError> {
        Self::with(hypervisor, GuestRam::new(SIZE)?)
    }

    /// The same, of whose memory pages can be [sealed](GuestRam::seal).
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn sealable(hypervisor: &Hypervisor) -> Result<Self, MicroError> {
        Self::with(hypervisor, GuestRam::sealable(SIZE)?)
    }

    fn with(hypervisor: &Hypervisor, ram: GuestRam) -> Result<Self, MicroError> {
        write_tables(&ram)?;
        Ok(Self { machine: Machine::new(hypervisor, Arc::new(ram))? })
    }

    /// Its machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Its memory.
    #[must_use]
    pub fn ram(&self) -> &Arc<GuestRam> {
        self.machine.ram()
    }

    /// Its page tables.
    #[must_use]
    pub fn address_space(&self) -> AddressSpace {
        AddressSpace::new(PML4, 0)
    }

    /// Puts `bytes` at `at`.
    ///
    /// # Errors
    /// [`NoMemory`] outside the guest's memory.
    pub fn write(&self, at: Gva, bytes: &[u8]) -> Result<(), NoMemory> {
        self.ram().write(Gpa(at.0), bytes)
    }

    /// The little-endian u64 at `at`.
    ///
    /// # Errors
    /// [`NoMemory`] outside the guest's memory.
    pub fn read_u64(&self, at: Gva) -> Result<u64, NoMemory> {
        let mut bytes = [0; 8];
        self.ram().read(Gpa(at.0), &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Lets exception `vector` call `handler` in kernel mode with interrupts off (Intel SDM volume 3, 6.14.1).
    ///
    /// # Errors
    /// Never: a table of 256 gates is inside the guest's memory.
    pub fn gate(
        &self,
        vector: u8,
        handler: Gva,
        from: Privilege,
        stack: ExceptionStack,
    ) -> Result<(), NoMemory> {
        const INTERRUPT_GATE: u64 = 0x8e << 40;
        const FROM_USER_MODE: u64 = 3 << 45;
        const FIRST_STACK: u64 = 1 << 32;
        let Gva(to) = handler;
        let dpl = if from == Privilege::User { FROM_USER_MODE } else { 0 };
        let ist = if stack == ExceptionStack::Own { FIRST_STACK } else { 0 };
        let offset = (to & 0xffff) | (to >> 16 & 0xffff) << 48;
        let low = offset | u64::from(KERNEL_CODE) << 16 | INTERRUPT_GATE | dpl | ist;
        let at = Gva(IDT + u64::from(vector) * 16);
        self.write(at, &low.to_le_bytes())?;
        self.write(at.add(8), &(to >> 32).to_le_bytes())
    }

    /// Adds vCPU `id` of `cpus`; it waits until [`start`] is called on it.
    ///
    /// # Errors
    /// [`MachineError`] names what failed.
    pub fn add_vcpu(&self, hypervisor: &Hypervisor, id: u8, cpus: u8) -> Result<KvmVcpu, MachineError> {
        self.machine.add_waiting_vcpu(hypervisor, id, cpus)
    }
}

/// Starts `vcpu` at `rip` with the stack `rsp` in kernel mode or user mode, interrupts off.
///
/// # Errors
/// What KVM said.
pub fn start(vcpu: &KvmVcpu, rip: Gva, rsp: Gva, mode: Privilege) -> Result<(), errno::Error> {
    let regs = Regs { rip: rip.0, rsp: rsp.0, rflags: 2, ..Regs::default() };
    vcpu.restart(&regs, |sregs| set_sregs(sregs, mode))
}

/// The instructions by which a micro guest ends: ACPI power off.
#[must_use]
pub fn power_off() -> Vec<u8> {
    let mut code = vec![0xba]; // mov edx, port
    code.extend(u32::from(layout::PM1A_CONTROL).to_le_bytes());
    code.push(0xb8); // mov eax, value
    code.extend(u32::from(SLP_EN | u16::from(SLEEP_TYPE_OFF) << 10).to_le_bytes());
    code.extend([0x66, 0xef]); // out dx, ax
    code
}

fn write_tables(ram: &GuestRam) -> Result<(), NoMemory> {
    /// Present, writable, open to user mode.
    const TABLE: u64 = 7;
    const LARGE_PAGE: u64 = 0x87;
    const DESCRIPTORS: [(u16, u64); 4] = [
        (KERNEL_CODE, 0x00af_9b00_0000_ffff),
        (KERNEL_DATA, 0x00cf_9300_0000_ffff),
        (USER_DATA, 0x00cf_f300_0000_ffff),
        (USER_CODE, 0x00af_fb00_0000_ffff),
    ];
    /// Stacks in a 64-bit TSS (Intel SDM volume 3, 7.7).
    const RSP0: u64 = 4;
    const IST1: u64 = 0x24;
    let write = |at, value: u64| ram.write(Gpa(at), &value.to_le_bytes());
    write(PML4, PDPT | TABLE)?;
    write(PML4 + 8 * (UPPER_HALF.0 >> 39 & 0x1ff), PDPT | TABLE)?;
    write(PDPT, DIRECTORY | TABLE)?;
    write(DIRECTORY, LARGE_PAGE)?;
    write(DIRECTORY + 8, DEVICES.0 | LARGE_PAGE)?;
    for (selector, descriptor) in DESCRIPTORS {
        write(GDT + u64::from(selector & !3), descriptor)?;
    }
    write(TSS + RSP0, EXCEPTION_STACK)?;
    write(TSS + IST1, OWN_STACK)
}

fn set_sregs(sregs: &mut kvm_sregs, mode: Privilege) {
    const CR0_PE_MP_ET_NE_WP_PG: u64 = 1 | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 16 | 1 << 31;
    /// SSE is on: see `checks::native_execution`.
    const CR4_PAE_OSFXSR_OSXMMEXCPT: u64 = 1 << 5 | 1 << 9 | 1 << 10;
    const EFER_LME_LMA_NXE: u64 = 1 << 8 | 1 << 10 | 1 << 11;
    let (code, data, dpl) = match mode {
        Privilege::Kernel => (KERNEL_CODE, KERNEL_DATA, 0),
        Privilege::User => (USER_CODE, USER_DATA, 3),
    };
    let flat = kvm_segment { limit: 0xffff_ffff, present: 1, s: 1, g: 1, dpl, ..Default::default() };
    sregs.cs = kvm_segment { selector: code, type_: 11, l: 1, ..flat };
    let data = kvm_segment { selector: data, type_: 3, db: 1, ..flat };
    (sregs.ds, sregs.es, sregs.ss, sregs.fs, sregs.gs) = (data, data, data, data, data);
    sregs.tr = kvm_segment { base: TSS, limit: 0x67, type_: 11, present: 1, ..Default::default() };
    (sregs.gdt.base, sregs.gdt.limit) = (GDT, 0x2f);
    (sregs.idt.base, sregs.idt.limit) = (IDT, 0xfff);
    (sregs.cr0, sregs.cr2, sregs.cr3) = (CR0_PE_MP_ET_NE_WP_PG, 0, PML4);
    (sregs.cr4, sregs.efer) = (CR4_PAE_OSFXSR_OSXMMEXCPT, EFER_LME_LMA_NXE);
}
