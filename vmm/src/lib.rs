//! A small KVM virtual machine monitor that probes an unmodified Linux guest from outside.

pub mod boot;
mod clock;
pub mod devices;
pub mod events;
pub mod kvm;
pub mod memory;
mod text;
mod trap;
mod vcpu;
mod world;
