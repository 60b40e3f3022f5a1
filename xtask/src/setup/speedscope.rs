//! The web page of speedscope, in which tests open folded stacks: from the release that npm has.

use super::apt::Apt;
use super::{Log, packages, quietly};
use anyhow::{Context as _, ensure};
use guest_kernels::cache::CacheWriter;
use sha2::{Digest as _, Sha256};
use std::fs;
use std::process::{Command, Stdio};

/// The release. Tests find its page in the cache, in a folder of this name.
const RELEASE: &str = "speedscope-1.25.0";
/// The same as npm calls it.
const PACKAGE: &str = "speedscope@1.25.0";
/// Of the release's archive.
const SHA256: &str = "2831f1e0d26df914b477e522d78b8485511495a6af81a0b88158f8b48f9e0d03";

/// Fetches the page where it is missing. Nothing of the release is run.
pub(super) fn fetch(log: &Log, apt: &mut Apt<'_>, cache: &CacheWriter<'_>) -> anyhow::Result<()> {
    let root = cache.cache().root();
    let place = root.join(RELEASE);
    if place.is_dir() {
        return Ok(());
    }
    install_npm(log, apt)?;
    log.say(format_args!("{RELEASE}: fetching"));
    let unpacked = tempfile::tempdir_in(root).context("no temporary directory")?;
    let mut npm = Command::new("npm");
    quietly(npm.args(["pack", "--silent", PACKAGE]).current_dir(unpacked.path()))?;
    let archive = unpacked.path().join(format!("{RELEASE}.tgz"));
    let bytes = fs::read(&archive).context("npm has not fetched the archive")?;
    let sum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    ensure!(sum == SHA256, "{PACKAGE} is another archive than this was tested with: {sum}");
    quietly(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(unpacked.path()))?;
    fs::rename(unpacked.path().join("package/dist/release"), &place).context("the page is not where it was")
}

/// Installs Debian's npm where there is none; a machine may have one from elsewhere.
fn install_npm(log: &Log, apt: &mut Apt<'_>) -> anyhow::Result<()> {
    let quiet = Command::new("npm").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if quiet.is_ok_and(|status| status.success()) {
        return Ok(());
    }
    packages::install_missing(log, apt, &[("npm", "fetching the page in which folded stacks are opened")])
}
