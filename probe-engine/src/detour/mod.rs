//! Probes that cost no exit: a jump in the guest's text to code of ours, in pages that the guest does not know.
//!
//! A probe that only counts, filters and records is compiled: [`work`] says whether that is possible and what is to be
//! done, [`stub`] makes code of it. What hits leave behind is in a window of memory that guest and host share, laid out by
//! [`layout`] and read by [`ring`], while the guest runs.
//!
//! A stub saves what it uses, keeps flags, touches no state of the FPU, and takes 48 bytes of whatever stack it finds.
//! Interrupts are off in it, so that the CPU that it runs on stays the same, and what it does is done before anyone else
//! runs there, but for an NMI. It loads nothing that could fault: registers, the CPU's own area, and what every current
//! task has.

pub mod layout;
pub mod ring;
pub mod stub;
pub mod work;
