//! The virtual machine: memory slots, interrupt controllers, timer.
#![allow(unsafe_code, reason = "a memory slot hands host memory to the guest by address")]

use super::Hypervisor;
use super::entry_filter::EntryFilter;
use super::vcpu::KvmVcpu;
use crate::boot;
use crate::layout;
use crate::memory::GuestRam;
use kvm_bindings::{
    KVM_CAP_PMU_CAPABILITY, KVM_MEM_READONLY, KVM_PIT_SPEAKER_DUMMY, KVM_PMU_CAP_DISABLE, kvm_enable_cap,
    kvm_msi, kvm_pit_config, kvm_userspace_memory_region,
};
use kvm_ioctls::{IoEventAddress, NoDatamatch, VmFd};
use probe_engine::addr::Gpa;
use std::sync::Arc;
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};
use vmm_sys_util::errno;
use vmm_sys_util::eventfd::EventFd;

/// A virtual machine with its memory.
pub struct Machine {
    vm: Arc<VmFd>,
    ram: Arc<GuestRam>,
}

/// Sends interrupt messages to the guest's local APICs (KVM_SIGNAL_MSI).
pub struct MessageSender(Arc<VmFd>);

impl MessageSender {
    /// A store of `data` to `address` (GPA). One that no APIC takes is lost.
    pub fn send(&self, address: u64, data: u32) {
        let (address_lo, address_hi) = (address as u32, (address >> 32) as u32);
        let _ = self.0.signal_msi(kvm_msi { address_lo, address_hi, data, ..kvm_msi::default() });
    }
}

/// KVM refused a step of the construction.
#[derive(Debug, thiserror::Error)]
#[error("KVM refused to {step}")]
pub struct MachineError {
    step: &'static str,
    #[source]
    source: errno::Error,
}

/// Names the step for the error.
pub(super) fn step<T>(step: &'static str, result: Result<T, errno::Error>) -> Result<T, MachineError> {
    result.map_err(|source| MachineError { step, source })
}

impl Machine {
    /// A machine without vCPUs. The order is KVM's: addresses that Intel hosts need, then the interrupt
    /// controllers (before any vCPU), then memory.
    ///
    /// # Errors
    /// [`MachineError`] names what failed.
    pub fn new(hypervisor: &Hypervisor, ram: Arc<GuestRam>) -> Result<Self, MachineError> {
        let vm = Arc::new(step("create a virtual machine", hypervisor.kvm().create_vm())?);
        step("place its TSS", vm.set_tss_address(layout::KVM_TSS as usize))?;
        step("place its identity map", vm.set_identity_map_address(layout::KVM_IDENTITY_MAP))?;
        step("create the interrupt controllers", vm.create_irq_chip())?;
        let pit = kvm_pit_config { flags: KVM_PIT_SPEAKER_DUMMY, ..Default::default() };
        step("create the timer", vm.create_pit2(pit))?;
        let machine = Self { vm, ram };
        machine.have_no_counters()?;
        machine.add_memory()?;
        Ok(machine)
    }

    /// AMD's first performance counters are there whatever CPUID says. A KVM that cannot take them away (before Linux
    /// 5.18) leaves them.
    fn have_no_counters(&self) -> Result<(), MachineError> {
        let can = self.vm.check_extension_raw(KVM_CAP_PMU_CAPABILITY.into());
        if can < 0 || can as u32 & KVM_PMU_CAP_DISABLE == 0 {
            return Ok(());
        }
        let mut disable = kvm_enable_cap { cap: KVM_CAP_PMU_CAPABILITY, ..Default::default() };
        disable.args[0] = KVM_PMU_CAP_DISABLE.into();
        step("leave out performance counters", self.vm.enable_cap(&disable))
    }

    fn add_memory(&self) -> Result<(), MachineError> {
        for (slot, region) in (0..).zip(self.ram.backing().iter()) {
            let host = self.ram.as_guest_sees(region);
            // The guest runs the code window and reads it, also by mappings of its own. What it stores there is dropped.
            let is_code = region.start_addr().0 == layout::RESERVED.0;
            let slot = kvm_userspace_memory_region {
                slot,
                flags: if is_code { KVM_MEM_READONLY } else { 0 },
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: host,
            };
            // SAFETY: the guest's view of the region is a mapping of exactly this size that `self.ram` owns; the machine holds
            // `ram` for as long as the VM exists, and no slot overlaps another.
            step("give the guest its memory", unsafe { self.vm.set_user_memory_region(slot) })?;
        }
        Ok(())
    }

    /// Creates vCPU `id` of `cpus`. The first one starts at `boot`, the others wait for the guest.
    ///
    /// # Errors
    /// [`MachineError`] names what failed.
    pub fn add_vcpu(
        &self,
        hypervisor: &Hypervisor,
        id: u8,
        cpus: u8,
        boot: &boot::BootState,
    ) -> Result<KvmVcpu, MachineError> {
        let vcpu = self.add_waiting_vcpu(hypervisor, id, cpus)?;
        if id == 0 {
            let restart =
                vcpu.restart(&boot::registers::regs(boot), |sregs| boot::registers::set_sregs(boot, sregs));
            step("set a vCPU's registers", restart)?;
        }
        Ok(vcpu)
    }

    /// Creates vCPU `id` of `cpus`, which waits to be [started](KvmVcpu::restart).
    ///
    /// # Errors
    /// [`MachineError`] names what failed.
    pub fn add_waiting_vcpu(
        &self,
        hypervisor: &Hypervisor,
        id: u8,
        cpus: u8,
    ) -> Result<KvmVcpu, MachineError> {
        let fd = step("create a vCPU", self.vm.create_vcpu(u64::from(id)))?;
        let supported = step(
            "list the CPU's features",
            hypervisor.kvm().get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES),
        )?;
        step(
            "set a vCPU's features",
            fd.set_cpuid2(&boot::cpuid::for_vcpu(&supported, id, cpus, boot::cpuid::on_emulated_cpu())),
        )?;
        if let Ok(msrs) = boot::registers::msrs() {
            step("set a vCPU's MSRs", fd.set_msrs(&msrs))?;
        }
        let mut lapic = step("read a local APIC", fd.get_lapic())?;
        boot::registers::wire_lapic(&mut lapic);
        step("set a local APIC", fd.set_lapic(&lapic))?;
        Ok(KvmVcpu::new(fd))
    }

    /// Lets `event` raise interrupt line `irq`.
    ///
    /// # Errors
    /// [`MachineError`] when KVM refuses.
    pub fn connect_interrupt(&self, event: &EventFd, irq: u32) -> Result<(), MachineError> {
        step("connect an interrupt", self.vm.register_irqfd(event, irq))
    }

    /// Lets a store of the guest to `at` ring `event`, without an exit to us. Says whether this KVM can.
    #[must_use]
    pub fn ring_at_store(&self, at: Gpa, event: &EventFd) -> bool {
        self.vm.register_ioevent(event, &IoEventAddress::Mmio(at.0), NoDatamatch).is_ok()
    }

    /// By what KVM asks about the registers by which programs enter the guest's kernel. `None` where this KVM cannot.
    #[must_use]
    pub fn entry_filter(&self) -> Option<EntryFilter> {
        EntryFilter::new(self.vm.clone()).ok()
    }

    /// By what interrupt messages are sent.
    #[must_use]
    pub fn messages(&self) -> MessageSender {
        MessageSender(self.vm.clone())
    }

    /// The guest's memory.
    #[must_use]
    pub fn ram(&self) -> &Arc<GuestRam> {
        &self.ram
    }
}
