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

/// The folder of case `number` among those of all, in letters that every system has.
pub(crate) fn folder(number: usize, kernel: &str, name: &str) -> String {
    let plain = |text: &str| -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        text.chars().map(plain).take(60).collect()
    };
    format!("{number:03}-{}-{}", plain(kernel), plain(name))
}
