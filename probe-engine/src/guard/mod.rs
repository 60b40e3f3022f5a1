//! The integrity of a running kernel: which of its memory nobody writes any more once it has booted, and what its own patching code may
//! change there nevertheless.

pub mod attempt;
pub mod entries;
pub mod judge;
pub mod kprobes;
pub mod module;
pub mod sealed;
