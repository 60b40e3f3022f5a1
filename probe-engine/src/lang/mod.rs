//! Probe definitions, in the language that people know from the kernel's own tracing.
//!
//! [`parse`] makes a [`Statement`](ast::Statement) of a line, or says with an [`Error`] what is wrong and where. What
//! the kernel would refuse by looking at the text alone is refused here; what needs a kernel is not looked up yet.

mod argument;
pub mod ast;
mod error;
mod fetch;
mod parse;
mod part;
mod place;
mod types;

pub use argument::{check_names, name};
pub use error::{Error, Mistake, Named, Nearest};
pub use parse::parse;
