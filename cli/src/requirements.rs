//! What a kernel has to have for a command: a driver that it lacks is named before anything boots.

use anyhow::{Result, bail};
use probe_engine::linux::symbols::SymbolTable;

/// Something that is built into a kernel, or a module, or not there.
struct Part {
    /// What it is to the user.
    what: &'static str,
    /// The option by which it is built.
    option: &'static str,
    /// A function that is there with it, and is never inlined: others have its address.
    function: &'static str,
    /// The module that it is otherwise, if it can be one.
    module: Option<&'static str>,
}

const fn part(
    what: &'static str,
    option: &'static str,
    function: &'static str,
    module: Option<&'static str>,
) -> Part {
    Part { what, option, function, module }
}

/// Without these no command runs.
const NEEDED: [Part; 8] = [
    part("initramfs", "CONFIG_BLK_DEV_INITRD", "unpack_to_rootfs", None),
    part("/dev", "CONFIG_DEVTMPFS", "devtmpfs_create_node", None),
    part("tmpfs", "CONFIG_TMPFS", "shmem_get_tree", None),
    part("PCI bus", "CONFIG_PCI", "pci_scan_bridge", None),
    part("message interrupts", "CONFIG_PCI_MSI", "pci_disable_msix", None),
    part("driver for virtio devices", "CONFIG_VIRTIO_PCI", "virtio_pci_probe", Some("virtio_pci")),
    part(
        "driver for the command's streams",
        "CONFIG_VIRTIO_CONSOLE",
        "virtcons_probe",
        Some("virtio_console"),
    ),
    part("driver for this machine's files", "CONFIG_VIRTIO_FS", "virtio_fs_probe", Some("virtiofs")),
];

/// Without this the command's root cannot be changed.
const OVERLAY: Part = part("overlay", "CONFIG_OVERLAY_FS", "ovl_fill_super", Some("overlay"));

/// Checks that a kernel with these `symbols` and `modules` (file names) can run a command.
pub(crate) fn check(symbols: &SymbolTable, modules: &[String]) -> Result<()> {
    let Some(Part { what, option, module, .. }) = NEEDED.iter().find(|part| !part.is_there(symbols, modules))
    else {
        return Ok(());
    };
    if NEEDED.iter().all(|part| !part.is_there(symbols, &[])) {
        bail!(
            "this is no Linux kernel, or one whose symbols are not known: nothing that a command needs is in it"
        );
    }
    let hint = match module {
        Some(module) => format!(", and no module `{module}` came with it (--modules DIR names others)"),
        None => String::new(),
    };
    bail!("this kernel cannot run a command, as it has no {what}: it is built without {option}{hint}")
}

/// Whether the command can change files other than those of `--rwdir`, which are then thrown away.
pub(crate) fn has_overlay(symbols: &SymbolTable, modules: &[String]) -> bool {
    OVERLAY.is_there(symbols, modules)
}

impl Part {
    fn is_there(&self, symbols: &SymbolTable, modules: &[String]) -> bool {
        let is_module = |file: &String| {
            let name = file.split('.').next().unwrap_or_default().replace('-', "_");
            self.module == Some(name.as_str())
        };
        // A compiler that optimises the whole program appends to names.
        let is_function = |name: &str| name.split('.').next() == Some(self.function);
        modules.iter().any(is_module)
            || symbols.lookup(self.function).next().is_some()
            || symbols.text().any(|symbol| is_function(symbol.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::addr::Gva;
    use probe_engine::linux::symbols::SymbolTableBuilder;

    /// A kernel with all that is needed but `lacks`.
    fn kernel(lacks: &str) -> SymbolTable {
        let mut symbols = SymbolTableBuilder::default();
        for (n, part) in NEEDED.iter().chain([&OVERLAY]).enumerate().filter(|(_, part)| part.option != lacks)
        {
            let at = Gva(0xffff_ffff_8100_0000 + 0x100 * n as u64);
            symbols.push(at, b't', &format!("{}{}", part.function, [".llvm.1", ""][n % 2])).unwrap();
        }
        symbols.finish()
    }

    #[test]
    fn what_is_no_kernel_is_not_said_to_lack_something() {
        let mut symbols = SymbolTableBuilder::default();
        symbols.push(Gva(0x40_1000), b'T', "main").unwrap();
        let refused = check(&symbols.finish(), &["virtiofs.ko".to_owned()]).unwrap_err().to_string();
        assert!(refused.starts_with("this is no Linux kernel"), "{refused}");
    }

    #[test]
    fn what_a_kernel_lacks_is_named() {
        check(&kernel(""), &[]).unwrap();
        assert!(has_overlay(&kernel(""), &[]) && !has_overlay(&kernel("CONFIG_OVERLAY_FS"), &[]));
        for part in NEEDED {
            let lacks = check(&kernel(part.option), &["other.ko".to_owned()]).unwrap_err();
            let words = lacks.to_string();
            assert!(words.contains(part.option) && words.contains(part.what), "{words}");
            assert_eq!(words.contains("--modules"), part.module.is_some(), "{words}");
            if let Some(module) = part.module {
                let file = format!("{}.ko.xz", module.replace('_', "-"));
                check(&kernel(part.option), &[file]).unwrap();
            }
        }
    }
}
