//! All that most programs need: `use vmm::prelude::*;`
//!
//! A [`Host`] is a KVM that was tested, a [`Guest`] a kernel with a machine around it, a [`Session`] that guest with its
//! probes. [`Probe`]s are registered with the session before it [runs](Session::run), or from another thread by its
//! [`Handle`] while it does; what they have seen is in the [`Report`]. The host's own CPU is a vCPU's thread: handlers run
//! there, on several threads at once, and the guest's CPU waits for them.
//!
//! - Addresses in text and memory are [`Gva`]s: what the guest's code uses itself. KASLR moves the kernel; names follow it,
//!   and numbers given for a place are those of linking.
//! - Times are nanoseconds of the host, durations too. Amounts of memory are bytes.
//! - A [`Hit`] has the registers as they will be when the guest goes on, and its memory as its own code sees it at that
//!   moment. What is not mapped there is an error, and never a fault in the guest.
//! - The guest is hostile. Its strings may hold anything: show them [`Escaped`].
//! - Errors are sentences for a user; print them with their causes.
//!
//! A monitor of one's own, built as a static program, runs where there is no usable KVM as well, inside the emulated host:
//! docs/library.md says how.

pub use crate::events::{Event, What};
pub use crate::guest::{Guest, Host, Optimize};
pub use crate::printer::Printer;
pub use crate::probe::{Hit, InstructionProbe, Member, Probe, ReturnProbe, WatchProbe};
pub use crate::session::{Command, Handle, Outcome, ProbeReport, ProbeState, Report, Session, Sink};
pub use probe_engine::addr::Gva;
pub use probe_engine::capture::Value;
pub use probe_engine::guest_text::Escaped;
pub use probe_engine::linux::kernel::Kernel;
pub use probe_engine::probe::table::ProbeId;
pub use probe_engine::regs::Regs;
pub use rustix::io::Errno;
