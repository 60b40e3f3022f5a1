//! What is to be probed, resolved: everything that a run needs to know about its kernel, as plain data.

use crate::args::{Run, SymbolSource};
use anyhow::{Context, Result, bail};
use guest_kernels::{Cache, DEFAULT_KERNEL};
use probe_engine::linux::kernel::Kernel;
use probe_engine::linux::landmarks::Landmarks;
use probe_engine::probe::resolve::{Probe, Refused, resolve};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};

/// A kernel's landmarks and the probes in it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) kernel: Landmarks,
    pub(crate) probes: Vec<Probe>,
}

/// The kernel that was asked for, or the default.
pub(crate) fn kernel_path(asked: Option<&Path>) -> Result<PathBuf> {
    match asked {
        Some(path) => Ok(path.to_owned()),
        None => Ok(Cache::open()?.kernel(DEFAULT_KERNEL.name)?.image),
    }
}

/// The initramfs that was asked for, or the default.
pub(crate) fn initrd_path(asked: Option<&Path>) -> Result<PathBuf> {
    match asked {
        Some(path) => Ok(path.to_owned()),
        None => Ok(Cache::open()?.initramfs()?),
    }
}

/// Reads a whole file that the user named.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Reads and understands the kernel at `path`, whose contents are `image`.
pub(crate) fn read_kernel(path: &Path, image: &[u8], source: &SymbolSource) -> Result<Kernel> {
    let map = source.system_map.as_deref().map(fs::read_to_string).transpose();
    let map = map.with_context(|| {
        format!("cannot read {}", source.system_map.as_deref().unwrap_or(Path::new("")).display())
    })?;
    Kernel::read(image, map.as_deref()).with_context(|| format!("cannot use the kernel {}", path.display()))
}

/// Resolves all probes before anything runs: a typo costs no boot.
pub(crate) fn target(run: &Run, path: &Path, image: &[u8]) -> Result<Target> {
    if let Some(path) = &run.target {
        return serde_json::from_slice(&read(path)?).context("the resolved target is damaged");
    }
    let kernel = read_kernel(path, image, &run.symbols)?;
    let mut probes: Vec<Probe> = Vec::new();
    for spec in &run.probes {
        let resolved = resolve(spec, &kernel).with_context(|| format!("--probe {spec}"))?;
        report_refused(&spec.to_string(), &resolved.refused);
        probes.extend(resolved.probes);
    }
    if u32::try_from(probes.len()).is_err() {
        bail!("too many probes");
    }
    Ok(Target { kernel: Landmarks::of(&kernel), probes })
}

/// Says which matches of a pattern are left out.
fn report_refused(spec: &str, refused: &[Refused]) {
    const SHOWN: usize = 3;
    if refused.is_empty() {
        return;
    }
    eprintln!("vmm: {spec}: {} matching functions cannot be probed", refused.len());
    for Refused { name, reason } in refused.iter().take(SHOWN) {
        eprintln!("vmm:   {name}: {reason}");
    }
    if refused.len() > SHOWN {
        eprintln!("vmm:   ... `vmm symbols --all '{spec}'` lists them all");
    }
}
