//! One value that is read at a hit.

use super::fetch::Fetch;
use super::shape::Shape;
use serde::{Deserialize, Serialize};

/// One value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Field {
    /// What it is called.
    pub name: String,
    /// Where it comes from.
    pub fetch: Fetch,
    /// How it is shown.
    pub shape: Shape,
}
