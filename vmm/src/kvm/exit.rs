//! Why a vCPU came back from the guest.

use probe_engine::guard::entries::EntryRegister;

/// How a vCPU left the guest.
#[derive(Debug)]
pub enum Left<'a> {
    /// By an access, which is to be carried out before the guest goes on.
    Access(DeviceAccess<'a>),
    /// By something else.
    Exit(Exit),
}

/// An access to a port, or to memory that is not there. The data are in the page that KVM shares.
#[derive(Debug)]
pub struct DeviceAccess<'a> {
    /// What `at` counts.
    pub space: Space,
    /// A port's number, or a GPA.
    pub at: u64,
    /// What is read or written.
    pub data: Data<'a>,
}

/// What an address means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// The number of an I/O port.
    Port,
    /// A GPA.
    Memory,
}

/// The bytes of an access. A string instruction on a port delivers many for the one register.
#[derive(Debug)]
pub enum Data<'a> {
    /// To be filled.
    Read(&'a mut [u8]),
    /// What the guest stores.
    Write(&'a [u8]),
}

/// One return from KVM_RUN that is no access, owned: nothing here borrows the page that KVM shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// A debug exception that guest debugging intercepts.
    Debug(DebugExit),
    /// A signal arrived, or `immediate_exit` was set. No instruction is half done.
    Interrupted,
    /// The vCPU waits for the guest to start it.
    NotStarted,
    /// The guest was about to write a [sealed](crate::memory::GuestRam::seal) page (KVM_RUN says EFAULT). Nothing of that is done, and
    /// the registers are those of before. What writes may be the instruction at RIP, but also an exception that it raises or a walk of the
    /// page tables.
    Sealed,
    /// The guest is about to write to a register by which programs enter its kernel, where KVM is to [ask](super::EntryFilter::ask) about that. The
    /// register is not written when the guest goes on.
    EntryWritten(EntryRegister, u64),
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

impl DebugExit {
    /// The bit of DR6 that says that one instruction was executed (BS).
    pub const STEP: u64 = 1 << 14;
}
