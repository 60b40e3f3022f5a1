//! What the integration tests share. Tests run natively, inside the emulated host and inside Bochs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "test support: what goes wrong here is a failed test"
)]

pub mod broken_module;
pub mod browser;
pub mod cases;
pub mod code;
pub mod compiled;
pub mod cpu_time;
pub mod detour;
pub mod differential;
pub mod gdb;
pub mod host;
pub mod kernel;
pub mod linux_rig;
pub mod optprobe;
pub mod pages;
pub mod product;
pub mod qemu;
pub mod recording;
pub mod rig;
pub mod served;
