//! The only doors to KVM: the device and what it must be able to do, the machine, its vCPUs.

mod counters;
mod entry;
mod entry_filter;
mod exit;
mod fault;
mod guest_debug;
mod machine;
mod vcpu;

pub use counters::Statistics;
pub use entry::Shadow;
pub(crate) use entry::rflags as held_rflags;
pub use entry_filter::EntryFilter;
pub use exit::{Data, DebugExit, DeviceAccess, Exit, Left, Space};
pub use fault::Exception;
pub use guest_debug::{Breakpoints, DebugException, DebugRegister};
pub use machine::{Machine, MachineError, MessageSender};
pub use vcpu::{KvmVcpu, Shared, System};

use kvm_ioctls::{Cap, Kvm};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// An open KVM device that can do what we need.
pub struct Hypervisor {
    kvm: Kvm,
}

/// KVM cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HypervisorError {
    /// No such file.
    #[error("{0} does not exist: this machine has no KVM, or its module is not loaded")]
    Missing(PathBuf),
    /// No right to open it.
    #[error("{0} may not be opened by this user: join the group that owns it (usually `kvm`)")]
    Denied(PathBuf),
    /// Some other failure of open(2), or not a KVM device.
    #[error("{path} cannot be used as a KVM device")]
    Open {
        /// The device.
        path: PathBuf,
        /// What open(2) or the version check said.
        #[source]
        source: vmm_sys_util::errno::Error,
    },
    /// A KVM that lacks a feature that everything here stands on.
    #[error("this KVM lacks {0}: a newer host kernel is needed")]
    Lacks(&'static str),
}

/// What every run stands on. `KVM_CAP_SET_GUEST_DEBUG2` has no name in the crate.
const NEEDED: [(Cap, &str); 8] = [
    (Cap::Irqchip, "an in-kernel interrupt controller (KVM_CAP_IRQCHIP)"),
    (Cap::Pit2, "an in-kernel timer (KVM_CAP_PIT2)"),
    (Cap::UserMemory, "user memory slots (KVM_CAP_USER_MEMORY)"),
    (Cap::SetTssAddr, "KVM_CAP_SET_TSS_ADDR"),
    (Cap::Irqfd, "interrupts by eventfd (KVM_CAP_IRQFD)"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    (Cap::SetGuestDebug, "guest debugging (KVM_CAP_SET_GUEST_DEBUG)"),
    (Cap::SyncRegs, "registers shared with KVM_RUN (KVM_CAP_SYNC_REGS)"),
];

impl Hypervisor {
    /// Opens the KVM device at `path` (normally `/dev/kvm`) and checks its capabilities, once for all.
    ///
    /// # Errors
    /// [`HypervisorError`], a sentence for the user.
    pub fn open(path: &Path) -> Result<Self, HypervisorError> {
        let c_path = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| HypervisorError::Missing(path.to_owned()))?;
        let kvm = Kvm::new_with_path(&c_path).map_err(|source| match source.errno() {
            libc::ENOENT | libc::ENXIO | libc::ENODEV => HypervisorError::Missing(path.to_owned()),
            libc::EACCES | libc::EPERM => HypervisorError::Denied(path.to_owned()),
            _ => HypervisorError::Open { path: path.to_owned(), source },
        })?;
        if kvm.get_api_version() != kvm_bindings::KVM_API_VERSION as i32 {
            return Err(HypervisorError::Open {
                path: path.to_owned(),
                source: vmm_sys_util::errno::Error::new(libc::ENOTTY),
            });
        }
        let lacks = NEEDED.iter().find(|(cap, _)| !kvm.check_extension(*cap));
        match lacks {
            Some((_, name)) => Err(HypervisorError::Lacks(name)),
            None => Ok(Self { kvm }),
        }
    }

    /// Whether guests may have page tables of five levels (CPUID.7:ECX bit 16, LA57).
    pub(crate) fn has_five_levels(&self) -> bool {
        const LA57: u32 = 1 << 16;
        let leaves = self.kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES);
        leaves.is_ok_and(|all| {
            all.as_slice().iter().any(|leaf| (leaf.function, leaf.index) == (7, 0) && leaf.ecx & LA57 != 0)
        })
    }

    pub(crate) fn kvm(&self) -> &Kvm {
        &self.kvm
    }
}
