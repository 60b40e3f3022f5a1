//! Files that the user has named.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Creates a file for output.
pub(crate) fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}
