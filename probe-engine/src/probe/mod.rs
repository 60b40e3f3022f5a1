//! Probes: what a user asks for, the table of armed sites, and what a hit means.

pub mod hit;
pub mod resolve;
pub mod spec;
pub mod table;
