//! Probe definitions, in the language that people know from the kernel's own tracing.
//!
//! [`parse`] makes a [`Statement`](ast::Statement) of a line, or says with an [`Error`] what is wrong and where. What
//! the kernel would refuse by looking at the text alone is refused here; what needs a kernel is not looked up yet, and
//! [`check_names`] and [`check_fields`] are asked again once `$arg*` has been replaced by a function's parameters.

mod advice;
mod argument;
pub mod ast;
mod cast;
pub mod compile;
mod display;
mod error;
mod fetch;
mod fields;
mod file;
mod filter;
mod hist;
mod injection;
mod parse;
mod part;
mod place;
mod program;
mod types;

pub use argument::{argument_name, check_names};
pub use error::{Error, KnownNames, Mistake, Named, Nearest, Wanted};
pub use fields::check_fields;
pub use file::lines;
pub use injection::parse_injection;
pub use parse::{parse, parse_filter};
pub use program::is_program;
