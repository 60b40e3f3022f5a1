//! By what a case on a kernel is known from others.

use serde::{Deserialize, Serialize};

/// A case on a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KnownCase {
    pub(crate) number: usize,
    pub(crate) kernel: String,
    pub(crate) name: String,
    pub(crate) line: usize,
}
