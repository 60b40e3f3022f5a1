//! Has KVM ask about what the guest writes to the registers by which programs enter its kernel (KVM_X86_SET_MSR_FILTER).

use kvm_bindings::{KVM_CAP_X86_USER_SPACE_MSR, KVM_MSR_EXIT_REASON_FILTER, kvm_enable_cap};
use kvm_ioctls::{MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, VmFd};
use probe_engine::guard::entries::EntryRegister;
use std::sync::Arc;
use vmm_sys_util::errno;

/// A machine whose KVM can.
pub struct EntryFilter(Arc<VmFd>);

impl EntryFilter {
    /// One of this machine. Nothing is asked yet.
    ///
    /// # Errors
    /// KVM's, before Linux 5.10.
    pub(super) fn new(vm: Arc<VmFd>) -> Result<Self, errno::Error> {
        let mut enable = kvm_enable_cap { cap: KVM_CAP_X86_USER_SPACE_MSR, ..Default::default() };
        enable.args[0] = KVM_MSR_EXIT_REASON_FILTER.into();
        vm.enable_cap(&enable)?;
        Ok(Self(vm))
    }

    /// From now on a write to one of the [registers](EntryRegister) is an [exit](super::Exit::EntryWritten).
    ///
    /// # Errors
    /// KVM's.
    pub fn ask(&self) -> Result<(), errno::Error> {
        // A bit that is clear: it is not written without asking. KVM reads whole words.
        const ASK: &[u8] = &[0; 8];
        let range = |register: EntryRegister| MsrFilterRange {
            flags: MsrFilterRangeFlags::WRITE,
            base: register.index(),
            msr_count: 1,
            bitmap: ASK,
        };
        self.0.set_msr_filter(MsrFilterDefaultAction::ALLOW, &EntryRegister::ALL.map(range))
    }
}
