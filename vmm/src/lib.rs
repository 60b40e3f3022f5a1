//! A small KVM virtual machine monitor that probes an unmodified Linux guest from outside.

/// The code on the library's page.
#[cfg(doctest)]
#[doc = include_str!("../../docs/library.md")]
mod page {}

/// The code on the page about errands.
#[cfg(doctest)]
#[doc = include_str!("../../docs/errands.md")]
mod errands_page {}

pub mod boot;
pub mod clock;
pub mod command;
pub mod confine;
pub mod devices;
pub mod dropped;
pub mod dump;
pub mod errands;
pub mod events;
pub mod files;
mod gate;
pub mod guard;
pub mod guest;
pub mod host;
mod imposed;
mod injector;
pub mod kernel_view;
pub mod kvm;
pub mod layout;
pub mod memory;
mod own_thread;
pub mod prelude;
pub mod printer;
pub mod probe;
pub mod reserved;
pub mod samples;
pub mod selftest;
pub mod session;
pub mod signals;
pub mod stack;
pub mod terminal;
pub mod text;
mod touched;
pub mod trap;
pub mod vcpu;
pub mod world;
