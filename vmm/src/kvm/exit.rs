//! Why a vCPU came back from the guest, owned: nothing here borrows the shared `kvm_run` page.

use crate::devices::PowerEvent;

/// One return from KVM_RUN, with device accesses already carried out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// A port or MMIO access was answered; the guest can go on.
    Handled,
    /// The guest switches the machine off or resets it.
    Power(PowerEvent),
    /// A debug exception that guest debugging intercepts.
    Debug(DebugExit),
    /// A signal arrived, or `immediate_exit` was set. No instruction is half done.
    Interrupted,
    /// The vCPU waits for the guest to start it.
    NotStarted,
    /// A triple fault.
    Shutdown,
    /// KVM could not go on; the text says what it reported.
    Failed(String),
}

/// A KVM_EXIT_DEBUG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebugExit {
    /// 1 (#DB) or 3 (#BP). The classification rests on this: DR6 is stale at a #BP.
    pub exception: u32,
    /// The cause of a #DB (Intel SDM volume 3, 18.2.3).
    pub dr6: u64,
}
