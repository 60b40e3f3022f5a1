//! Packages of Python from which tests take a second opinion, and what our own one is built with.

use super::{Log, quietly};
use anyhow::Context as _;
use guest_kernels::cache::CacheWriter;
use std::fs;
use std::io::ErrorKind;
use std::process::Command;

/// The packages, with what for.
const PACKAGES: [(&str, &str); 10] = [
    ("drgn==0.3.0", "reading guests and their dumps"),
    ("perfetto==0.59.1", "the schema of its traces"),
    ("protobuf==7.36.2", "reading by that schema"),
    ("flit_core==4.2.0", "building our own package"),
    ("mypy==2.4.1", "checking its types"),
    ("ast_serialize==0.13.1", "for mypy"),
    ("librt==0.17.0", "for mypy"),
    ("mypy_extensions==1.2.0", "for mypy"),
    ("pathspec==1.1.1", "for mypy"),
    ("typing_extensions==4.16.0", "for mypy"),
];

/// What is installed is listed here, once all is.
const LIST: &str = "packages";

/// Installs them in the cache, unless they are there.
pub(super) fn install(log: &Log, writer: &CacheWriter<'_>) -> anyhow::Result<()> {
    let folder = writer.cache().python_dir();
    let names = PACKAGES.map(|(package, _)| package);
    let list = names.join("\n");
    if fs::read_to_string(folder.join(LIST)).is_ok_and(|there| there == list) {
        log.say("Python's packages: all there");
        return Ok(());
    }
    for (package, purpose) in PACKAGES {
        log.say(format_args!("Python's {package} is missing: {purpose}"));
    }
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"]).arg(&folder).args(names);
    quietly(&mut pip).context("Python's packages cannot be installed")?;
    fs::write(folder.join(LIST), list).context("the cache cannot be written")
}
