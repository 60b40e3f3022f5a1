//! The way past an instruction against the CPU: what both leave behind, for instructions drawn from real kernels.

pub mod compare;
pub mod corpus;
pub mod guest;
mod quirks;
pub mod rng;
pub mod start;
