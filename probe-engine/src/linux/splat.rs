//! Splats: what a kernel writes to its log when something is wrong with it, as facts.
//!
//! [`SplatParser`] takes the [records](super::printk::PrintkRecord) of the log one by one. `title.rs` knows by which lines reports begin,
//! `line.rs` what else a line says, and `helpers.rs` which functions of a stack are there because of the report.

mod frame;
mod helpers;
mod interrupts;
mod kind;
mod line;
mod parser;
mod report;
mod title;

pub use frame::{SplatFrame, SplatTask};
pub use interrupts::impossible_interrupt;
pub use kind::SplatKind;
pub use parser::SplatParser;
pub use report::Splat;
