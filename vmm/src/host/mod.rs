//! The emulated host: QEMU with an emulated SVM processor, a Linux kernel with KVM, and this same program in it.
//!
//! A machine whose own `/dev/kvm` cannot run a guest with probes still runs one, slowly: [`EmulatedHost`] starts
//! QEMU with a kernel and an initramfs whose `/init` is this program, hands it a command with its files, and
//! passes terminal, signals, outputs and the exit code through.
//!
//! ```text
//! vmm run ...                                    outside
//!   EmulatedHost ── control port (protocol) ──┐
//!                ── disk: the input files ──┐ │
//!   QEMU, kvm_amd, agent as PID 1           └─┴─ /init
//!     vmm run --host kvm ...                     inside, on its /dev/kvm
//! ```
//!
//! Booting that host takes seconds, so it is done once: `snapshot` keeps its memory and devices in a file, taken
//! while the agent waits for its command, and each run starts from there.
//!
//! Who does what: `qemu` finds and describes QEMU, `machine` is one running QEMU, `qmp` speaks to its monitor,
//! `protocol` is what the two ends say to each other, `disk` packs the input files, `emulated` is the outer end
//! of a run with its `pump` and `signals`, and [`agent`] the inner one.

pub mod agent;
mod command;
pub(crate) mod conversation;
mod disk;
mod emulated;
mod machine;
mod processor;
pub(crate) mod protocol;
pub(crate) mod pump;
mod qemu;
mod qmp;
mod signals;
mod snapshot;
pub(crate) mod spawn;

pub use crate::terminal::{CommandTerminal, RawMode, WindowSize, is_one_terminal};
pub use command::{Escape, HostCommand, Outlet, Streams};
pub use conversation::BeginError;
pub use disk::DiskError;
pub use emulated::{EmulatedHost, Ended, RunError, StartError};
pub use machine::EmulatorError;
pub use protocol::{CommandExit, ProtocolError};
pub use pump::{Lost, Stream};
pub use qemu::{HostImage, Qemu, QemuError, fingerprint, memory_for};
pub use snapshot::{SnapshotError, prepare};
