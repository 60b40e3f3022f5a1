//! The contract between the trap path and a KVM, with micro guests: runs wherever a fit KVM is, which is natively,
//! in the emulated host (breakpoints reflected) and in Bochs (breakpoints intercepted).
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests are test code: what goes wrong here is a failed test"
)]

mod branches;
mod entries;
mod entry;
mod errands;
mod fault_in;
mod faults;
mod foreign;
mod garbage;
mod groups;
mod hits;
mod injections;
mod interrupts;
mod marks;
mod once;
mod one_call;
mod ptrace;
mod reads;
mod reserved;
mod samples;
mod sealed;
mod selftest;
mod steps;
mod stops;
mod watch;
