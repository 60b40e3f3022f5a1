//! The kernel's own scripts for gdb (`lx-ps` and the like), which a build makes by its configuration.

use super::build::make;
use super::source::Source;
use super::{NEEDED, folder, say};
use crate::setup;
use anyhow::Context as _;
use guest_kernels::{Cache, DEFAULT_KERNEL};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// The source of [`DEFAULT_KERNEL`].
const SOURCE: Source = Source::Package("linux-source-6.12");

/// Those of [`DEFAULT_KERNEL`], as Debian has configured it: the path of `vmlinux-gdb.py`.
pub(crate) fn bring(start: Instant) -> anyhow::Result<PathBuf> {
    setup::install(&NEEDED)?;
    let image = Cache::open()?.kernel(&DEFAULT_KERNEL)?.record.package;
    let release = image.strip_prefix("linux-image-").context("the kernel is in another package")?;
    let headers = format!("linux-headers-{release}");
    setup::install(&[(&headers, "the configuration of the kernel")])?;
    let notice = |line: &str| say(start, "scripts for gdb", line);
    let tree = SOURCE.offered(&notice)?.unpacked(&folder()?.join("source"), &notice)?;
    let objects = folder()?.join("gdb-scripts").join(release);
    let scripts = objects.join("vmlinux-gdb.py");
    if !scripts.exists() {
        notice("building");
        fs::create_dir_all(&objects)?;
        let config = fs::read_to_string(format!("/usr/src/{headers}/.config"))?;
        // Of two lines about an option, the later one counts.
        fs::write(objects.join(".config"), config + "CONFIG_GDB_SCRIPTS=y\n")?;
        make(&tree, &objects, &[], &["olddefconfig"])?;
        make(&tree, &objects, &[], &["scripts_gdb"])?;
    }
    Ok(scripts)
}
