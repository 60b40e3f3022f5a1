//! The first line of a recording: where and when it was made, and by what its times are told.

use super::Address;
use probe_engine::linux::kernel::Kernel;
use serde::{Deserialize, Serialize};

/// The version of the format. It changes when a reader of the old one would misunderstand what is written.
pub(crate) const FORMAT: u32 = 1;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename = "header")]
pub(crate) struct Header {
    /// See [`FORMAT`].
    pub(crate) format: u32,
    /// The version of the program that has written it.
    pub(crate) vmm: String,
    /// When the guest was started, in nanoseconds since 1970 (UTC).
    pub(crate) wall_ns: u64,
    pub(crate) kernel: KernelIdentity,
    /// How far KASLR has moved the kernel; unknown where it had not been found when the first line was written.
    pub(crate) slide: Option<Address>,
    /// The guest's kernel command line.
    pub(crate) cmdline: String,
    pub(crate) host: HostKind,
    /// How many CPUs the guest has.
    pub(crate) cpus: u32,
    /// Which hits count: `boot`, `init` or `cmd`.
    pub(crate) scope: String,
    /// The user's command in the guest, its words.
    pub(crate) command: Option<Vec<String>>,
    /// How long it is from one sample to the next, in nanoseconds, where CPUs are sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) period_ns: Option<u64>,
    pub(crate) clocks: Clocks,
}

/// Which kernel it was.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct KernelIdentity {
    /// As `uname -r` says it.
    pub(crate) release: Option<String>,
    /// What its linker has computed of the whole kernel, in hexadecimal.
    pub(crate) build_id: Option<String>,
}

impl KernelIdentity {
    /// That of `kernel`.
    pub(crate) fn of(kernel: &Kernel) -> Self {
        let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { release: kernel.release().map(str::to_owned), build_id: kernel.image().build_id().map(hex) }
    }
}

/// Where the guest ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum HostKind {
    /// On the machine's own KVM.
    Kvm,
    /// In the emulated host.
    Emulated,
}

/// What the times of hits mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Clocks {
    pub(crate) time_ns: String,
    pub(crate) guest_ns: String,
}

impl Default for Clocks {
    fn default() -> Self {
        Self {
            time_ns: "nanoseconds since the guest was started, by the host's clock".to_owned(),
            guest_ns: "nanoseconds of the guest's own clock, by which its messages are stamped; null where nobody can tell it"
                .to_owned(),
        }
    }
}
