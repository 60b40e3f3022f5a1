//! The kernels that have been fetched, and what is read of all of them.

use super::say;
use anyhow::{Context as _, ensure};
use guest_kernels::{Cache, DEFAULT_KERNEL, KERNELS, Kernel, Series};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use tempfile::NamedTempFile;

/// Whether a kernel has been fetched. Says so when it is left out; the default one is never.
pub(super) fn is_there(start: Instant, kernel: &Kernel) -> anyhow::Result<bool> {
    match Cache::open()?.kernel(kernel) {
        Ok(_) => Ok(true),
        Err(error) if *kernel == DEFAULT_KERNEL => Err(error.into()),
        Err(error) => {
            say(start, &format!("skipped: the tests of kernel {kernel}: {error}"));
            Ok(false)
        }
    }
}

/// The value of `VMM_TEST_KERNELS`, by which the engine's tests find the kernels that have been fetched.
pub(super) fn paths() -> anyhow::Result<OsString> {
    Ok(env::join_paths(images(|_| true)?)?)
}

/// The files of those that `which` chooses. Says so when one is left out; the default one is never.
fn images(which: impl Fn(&Kernel) -> bool) -> anyhow::Result<Vec<PathBuf>> {
    let cache = Cache::open()?;
    let mut images = Vec::new();
    for kernel in KERNELS.iter().filter(|kernel| which(kernel)) {
        match cache.kernel(kernel) {
            Ok(fetched) => images.push(fetched.image),
            Err(error) if *kernel == DEFAULT_KERNEL => return Err(error.into()),
            Err(error) => println!("test: skipped: the text of kernel {kernel}: {error}"),
        }
    }
    Ok(images)
}

/// A file of `count` instructions from the kernels of the machine's own suite that have been fetched: what is drawn does not
/// depend on which others there are today.
pub(crate) fn draw(program: &Path, count: u32) -> anyhow::Result<NamedTempFile> {
    let file = NamedTempFile::new().context("no temporary file")?;
    let status = Command::new(program)
        .arg(file.path())
        .arg(count.to_string())
        .args(images(|kernel| matches!(kernel.series, Series::Is(..)))?)
        .status();
    ensure!(
        status.with_context(|| format!("cannot run {}", program.display()))?.success(),
        "no instructions were drawn"
    );
    Ok(file)
}
