//! Probes that cost no exit: a jump in the guest's text to code of ours, in pages that the guest does not know.
//!
//! A probe that only counts, filters and records is compiled: [`work`] says whether that is possible and what is to be
//! done, [`stub`] makes code of it. What hits leave behind is in a window of memory that guest and host share, laid out by
//! [`layout`] and read by [`ring`], while the guest runs. Calls of a function whose returns are probed are followed by
//! [`instances`], and where only a histogram is wanted, hits are counted by [`groups`].
//!
//! A stub saves what it uses, keeps flags, touches no state of the FPU, and takes 128 bytes at most of whatever stack it finds.
//! Interrupts are off in it, so that the CPU that it runs on stays the same, and what it does is done before anyone else
//! runs there, but for an NMI. It loads nothing that could fault: registers, the CPU's own area, and what every current
//! task has. Other memory is [read](reads) by functions of the guest's that survive a fault, with more of the stack.
//!
//! The jump has 5 bytes, most instructions have fewer. [`verdict::verdict`] tells whether a whole run of them may go:
//! it follows `can_optimize` in arch/x86/kernel/kprobes/opt.c, which decides the same for the kernel's own
//! jump-optimised kprobes, and is stricter where the guest cannot be asked. [`JumpConstraints`](crate::probe::jump_constraints::JumpConstraints) is what
//! has to be known for that of the whole kernel, and [`relocation::RelocatedCode`] is such a run, and how it is moved. What no text
//! can tell is whether a task was interrupted between two of these instructions: it would go on in the middle of the jump.
//! Whoever writes the jump has to look, with every vCPU parked.

pub mod behind;
pub mod condition;
pub mod groups;
pub mod instances;
pub mod layout;
pub mod moved;
pub mod reads;
pub mod relocation;
pub mod ring;
pub mod stub;
pub mod unsuited;
pub mod verdict;
pub mod work;
