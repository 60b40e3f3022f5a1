//! The files of a guest: its kernel, and what is in its memory when it starts.

use crate::args::{Guest, SymbolSource};
use crate::file;
use crate::symbol_file::KernelSource;
use crate::work::Work;
use anyhow::{Context, Result};
use guest_kernels::{Cache, KernelFiles, Modules};
use std::path::{Path, PathBuf};

/// What every guest needs: its console, and an end when it panics.
const BASE_CMDLINE: &str = "console=ttyS0 quiet panic=-1";

/// The guest's files, read.
pub(crate) struct Files {
    /// The kernel's.
    pub(crate) kernel: PathBuf,
    /// The ELF file of its build.
    pub(crate) vmlinux: Option<PathBuf>,
    /// What of it goes to the guest's memory: what it holds, or the unpacked kernel.
    pub(crate) image: Vec<u8>,
    pub(crate) initramfs: Vec<u8>,
    /// The command, if there is one.
    pub(crate) work: Option<Work>,
    /// File names of the drivers in its initramfs.
    pub(crate) drivers: Vec<String>,
    /// Where a command finds the kernel's modules, as far as that is known.
    pub(crate) modules: Modules,
    /// Whether they are those of an earlier run, which has found that what is probed can come into the guest.
    pub(crate) were_checked: bool,
}

impl Files {
    pub(crate) fn read(guest: &Guest) -> Result<Self> {
        let work = Work::of(guest)?;
        if work.is_none() {
            // A guest that has nothing to run is not worth a kernel that must be fetched.
            initrd_path(guest.initrd.as_deref())?;
        }
        Self::of(guest, work, guest.kernel.which.files()?)
    }

    /// Those of a guest that has `work` to do, with the files of its kernel.
    pub(crate) fn of(guest: &Guest, work: Option<Work>, kernel: KernelFiles) -> Result<Self> {
        let KernelFiles { image: kernel, modules, vmlinux } = kernel;
        let image = file::read(&kernel)?;
        let were_checked = false;
        let Some(said) = work.as_ref().filter(|_| guest.initrd.is_none()) else {
            let initramfs = file::read(&initrd_path(guest.initrd.as_deref())?)?;
            let (drivers, modules) = (Vec::new(), Modules::Unknown);
            return Ok(Self { kernel, vmlinux, image, initramfs, work, drivers, modules, were_checked });
        };
        let modules = guest.modules.clone().map_or(modules, Modules::Below);
        let drivers = modules.for_command();
        let drivers = if guest.modules.is_some() { drivers.context("--modules")? } else { drivers? };
        let names = drivers.iter().map(|(name, _)| name.clone()).collect();
        let initramfs = said.initramfs(drivers)?;
        Ok(Self { kernel, vmlinux, image, initramfs, work, drivers: names, modules, were_checked })
    }

    /// The files that it was read from, and that more is read from for it.
    pub(crate) fn read_from<'a>(&'a self, guest: &'a Guest) -> impl Iterator<Item = &'a Path> {
        let more = [&self.vmlinux, &guest.initrd, &guest.symbols.symbols, &guest.target, &guest.work];
        std::iter::once(&self.kernel).chain(more.into_iter().flatten()).map(PathBuf::as_path)
    }

    /// Where what is known of the kernel comes from.
    pub(crate) fn source(&self, symbols: &SymbolSource) -> KernelSource {
        KernelSource::new(&self.kernel, self.vmlinux.as_deref(), symbols)
    }
}

/// The initramfs that was asked for, or the default.
fn initrd_path(asked: Option<&Path>) -> Result<PathBuf> {
    match asked {
        Some(path) => Ok(path.to_owned()),
        None => Cache::open()?.initramfs().ok().context(
            "there is nothing for the guest to run: give a command behind --, or an initramfs with --initrd",
        ),
    }
}

/// The kernel command line.
pub(crate) fn cmdline(guest: &Guest) -> String {
    match (&guest.raw_append, &guest.append) {
        (Some(raw), _) => raw.clone(),
        (None, Some(more)) => format!("{BASE_CMDLINE} {more}"),
        (None, None) => BASE_CMDLINE.to_owned(),
    }
}
