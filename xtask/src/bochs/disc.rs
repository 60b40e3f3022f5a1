//! The disc that Bochs boots: Debian's kernel, an initramfs around `vmm`, and a boot loader.

use super::Contents;
use super::machine::DISC;
use crate::setup::quietly;
use anyhow::Context as _;
use guest_kernels::initramfs::{self, ExtraFile};
use guest_kernels::{Cache, DEFAULT_KERNEL, FetchedKernel};
use std::fs;
use std::path::Path;
use std::process::Command;

/// What makes a VMX host of the kernel; each module that the machine has no use for would cost seconds.
const MODULES: [&str; 3] = ["irqbypass.ko", "kvm.ko", "kvm-intel.ko"];

/// Boots at once. The kernel's messages go where the commands print.
const GRUB: &str = "\
set timeout=0
menuentry host {
linux /boot/vmlinuz console=ttyS0 panic=-1 quiet
initrd /boot/initramfs
}
";

/// Makes the disc, in `directory`.
pub(super) fn build(directory: &Path, contents: Contents<'_>) -> anyhow::Result<()> {
    let kernel = Cache::open()?.kernel(&DEFAULT_KERNEL)?;
    let root = directory.join("disc");
    let boot = root.join("boot");
    fs::create_dir_all(boot.join("grub"))?;
    fs::write(boot.join("grub/grub.cfg"), GRUB)?;
    fs::copy(&kernel.image, boot.join("vmlinuz"))?;
    fs::write(boot.join("initramfs"), initramfs_of(&kernel, contents)?)?;
    let mut pack = Command::new("grub-mkrescue");
    quietly(pack.arg("--output").arg(directory.join(DISC)).arg(root))
}

fn initramfs_of(kernel: &FetchedKernel, contents: Contents<'_>) -> anyhow::Result<Vec<u8>> {
    let modules = kernel.modules.iter().filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        MODULES.contains(&name).then(|| Ok((name.to_owned(), read(path)?)))
    });
    let modules: Vec<_> = modules.collect::<anyhow::Result<_>>()?;
    let list = serde_json::to_vec(&contents.entries)?;
    let list = ExtraFile { path: "batch.json".to_owned(), mode: 0o644, bytes: list };
    Ok(initramfs::host(read(contents.vmm)?, modules, contents.files.into_iter().chain([list]))?)
}

/// A file of the machine that is to be on the disc, as `name`.
pub(crate) fn file(name: &str, mode: u32, source: &Path) -> anyhow::Result<ExtraFile> {
    Ok(ExtraFile { path: name.to_owned(), mode, bytes: read(source)? })
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
