//! What is to be probed, resolved: everything that a run needs to know about its kernel, as plain data.

use crate::args::{Run, SymbolSource};
use crate::say::say;
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

impl Target {
    /// Writes it where [`target`] reads it again.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_vec(self).context("the resolved target cannot be written down")?;
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    }
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
    say(format_args!("{spec}: {} matching functions cannot be probed", refused.len()));
    for Refused { name, reason } in refused.iter().take(SHOWN) {
        say(format_args!("  {name}: {reason}"));
    }
    if refused.len() > SHOWN {
        say(format_args!("  ... `vmm symbols --all '{spec}'` lists them all"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;
    use probe_engine::addr::{Gpa, Gva};
    use probe_engine::linux::landmarks::Boot;

    #[test]
    fn what_was_written_is_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("target.json");
        let kernel = Landmarks {
            text: Gva(0xffff_ffff_8100_0000),
            text_load: Gpa(0x100_0000),
            entry: Gpa(0x100_0070),
            relocated_pointer: Gva(0xffff_ffff_8200_0000),
            relocated_value: Gva(0xffff_ffff_8100_0000),
            boot: Boot::Unknown,
            early: None,
            late: Some(Gva(0xffff_ffff_8100_2000)),
            panic: None,
            free_init: None,
            init_text: vec![Gva(0xffff_ffff_8300_0000)..Gva(0xffff_ffff_8310_0000)],
        };
        let function = Gva(0xffff_ffff_8100_2000)..Gva(0xffff_ffff_8100_2040);
        let probe = Probe { name: "rest_init".to_owned(), link: function.start, function };
        let written = Target { kernel, probes: vec![probe] };
        written.write(&file).unwrap();
        let words = ["vmm", "run", "--target", file.to_str().unwrap()];
        let Command::Run(run) = Cli::parse_from(words).command else { panic!("another command") };
        let read = target(&run, Path::new("a kernel that is not looked at"), &[]).unwrap();
        assert_eq!(read.kernel, written.kernel);
        assert_eq!(read.probes, written.probes);
    }
}
