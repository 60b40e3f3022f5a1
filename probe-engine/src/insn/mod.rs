//! One instruction: where it starts, whether it may be probed, and what is done in its place.
//!
//! A probe's `int3` stays in place while the guest gets past the probed instruction, so something else has to do
//! the instruction's work: the host, or a copy of the instruction elsewhere. What that is gets decided once, when
//! the probe is armed: [`plan::plan`] decodes, refuses with a reason, or returns a plan whose execution neither
//! decodes nor allocates.

mod access;
pub mod copy;
pub mod decode;
pub mod emulate;
pub mod fault;
mod flags;
mod lower;
pub(crate) mod operand;
pub mod plan;

/// The one-byte breakpoint instruction.
pub const INT3: u8 = 0xcc;

#[cfg(test)]
mod tests;
