//! The contract between the trap path and a KVM, with micro guests: runs wherever a fit KVM is, which is natively,
//! in the emulated host (breakpoints reflected) and in Bochs (breakpoints intercepted).

mod faults;
mod foreign;
mod hits;
mod one_call;
mod selftest;
mod stops;
