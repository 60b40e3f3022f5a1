//! Programs of C that a compiler of this machine makes.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The program that `source` is with these options, in `folder`, by this name.
#[must_use]
pub fn compiled(folder: &Path, name: &str, source: &str, options: &[&str]) -> PathBuf {
    let (file, program) = (folder.join(name).with_extension("c"), folder.join(name));
    std::fs::write(&file, source).unwrap();
    let status = Command::new("cc").args(options).arg("-o").args([&program, &file]).status();
    assert!(status.unwrap().success());
    program
}
