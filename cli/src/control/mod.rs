//! Live control of a guest that runs: `--control SOCK` ([the protocol](../../../docs/control.md)).
//!
//! ```text
//! clients ──lines of JSON-RPC──▶ server ──frames──▶ attendant ──▶ vmm::session::Handle
//!                                  │
//!                                  └─▶ additions: definitions of probes become plans
//! ```
//!
//! The [server] is outside, where the kernel's file is, and knows clients. The [attendant] is where the session is, and knows
//! nothing of clients. [Frames](frame) pass between them over a stream: a pair of sockets, or a port of the emulated host. Each
//! client has one request under way, so that nothing of it grows.

mod additions;
mod attendant;
mod client;
mod connection;
mod frame;
mod held_task;
pub(crate) mod hex;
mod live_counters;
mod live_probe;
mod methods;
mod physical;
mod rpc;
mod server;
mod socket;
mod vcpu;

pub(crate) use additions::Additions;
pub(crate) use attendant::Attendant;
pub(crate) use connection::{Connection, NONSENSE};
pub(crate) use held_task::HeldTask;
pub(crate) use live_counters::{CountedProbe, LiveCounters, LiveDurations};
pub(crate) use live_probe::LiveProbe;
pub(crate) use physical::{MemoryPart, MemoryParts, Ram, VmcoreinfoText};
pub(crate) use server::{Definer, Entrance, Server};
pub(crate) use socket::OwnSocket;
pub(crate) use vcpu::VcpuLine;
