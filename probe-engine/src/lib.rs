//! What a trap means and how to get past the probed instruction.
//!
//! Bytes, addresses and registers go in, decisions come out. The engine names no KVM, file, thread or clock: a
//! hit can be replayed in a unit test from a byte array. Whatever it reads of the guest is hostile: bounds are
//! checked, and nothing is allocated on the guest's word.
#![forbid(unsafe_code)]

pub mod addr;
pub mod capture;
pub mod detour;
pub mod errand;
pub mod gate;
pub mod guard;
pub mod guest_text;
pub mod insn;
pub mod lang;
pub mod linux;
pub mod memory;
pub mod paging;
pub mod probe;
pub mod regs;
pub mod request;
pub mod scan;
pub mod system_regs;
pub mod virt_memory;
