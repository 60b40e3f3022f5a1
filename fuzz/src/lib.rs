//! What is done with input that may be corrupt or hostile.

pub mod devices;
pub mod engine;
