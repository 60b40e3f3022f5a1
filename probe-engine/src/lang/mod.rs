//! Probe definitions, in the language that people know from the kernel's own tracing.

pub mod ast;
