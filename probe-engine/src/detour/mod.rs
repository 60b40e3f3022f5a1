//! Detours: a `jmp` in the guest's own text, written over a probed instruction, that leads to a stub in pages that
//! the guest does not know. The stub does a probe's work, runs the instructions that the jump has overwritten, and
//! jumps back: a hit costs no exit.
//!
//! The jump has 5 bytes, most instructions have fewer. [`verdict::verdict`] tells whether a whole run of them may go:
//! it follows `can_optimize` in arch/x86/kernel/kprobes/opt.c, which decides the same for the kernel's own
//! jump-optimised kprobes, and is stricter where the guest cannot be asked. [`targets::JumpTargets`] is where the
//! kernel's control flow lands, and [`region::Region`] is such a run, and how it is moved.
//!
//! What no text can tell is whether a task sleeps between two of these instructions, or was interrupted there: it
//! would go on in the middle of the jump. Whoever writes the jump has to look, with every vCPU parked.

pub mod region;
pub mod targets;
pub mod verdict;
