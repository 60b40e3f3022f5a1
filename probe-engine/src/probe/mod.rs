//! Probes: what a user asks for, the table of armed sites, and what a hit means.

pub mod inject;
pub mod jump_constraints;
pub mod once;
pub mod pace;
pub mod place;
pub mod plan;
pub mod resolve;
pub mod returns;
pub mod spec;
pub mod table;
pub mod turns;
pub mod watch;
