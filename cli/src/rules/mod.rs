//! Rules of `vmm guard`: a part of Tetragon's `TracingPolicy`, which `docs/rules.md` describes.
//!
//! A file is read as a tree whose values know where they stand (`yaml.rs`), then as policies (`parse.rs`, `selectors.rs`). A hook of a
//! policy becomes definitions of the probe language (`translate.rs`): how values are read, compared and shown is known there alone.

mod fields;
mod file;
mod filter;
mod mistake;
mod parse;
mod policy;
mod resolve;
mod selectors;
#[cfg(test)]
mod tests;
mod told;
mod translate;
mod values;
mod yaml;

pub(crate) use file::RuleFile;
pub(crate) use resolve::{ResolvedRules, resolved};
pub(crate) use told::{explain, list};
