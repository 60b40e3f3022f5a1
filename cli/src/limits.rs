//! What a kernel's own build leaves out, and what that leaves of a run: said before anything boots.

use crate::say::note;
use probe_engine::linux::btf::BtfError;
use probe_engine::linux::ftrace::FtraceSites;
use probe_engine::linux::kernel::Kernel;

/// Says what is missing in `kernel`, a sentence for each option, where a guest is to have `cpus` CPUs.
pub(crate) fn say_limits(kernel: &Kernel, cpus: u32) {
    limits(kernel, cpus).into_iter().for_each(note);
}

/// The sentences.
fn limits(kernel: &Kernel, cpus: u32) -> Vec<&'static str> {
    let symbols = kernel.symbols();
    let lacks_types = matches!(kernel.btf(), Err(BtfError::Missing));
    let has = |name| symbols.lookup(name).next().is_some();
    // ACPI does not load its tables without that.
    let powers_off = has("acpi_ex_pci_config_space_handler");
    let is_alone = cpus > 1 && !has("start_secondary");
    let limits = [
        (
            !symbols.have_data(),
            "this kernel keeps no symbols of data (CONFIG_KALLSYMS_ALL): variables have no names, hits have no task, and only plain counts cost no exit; --symbols with its System.map or vmlinux gives the rest",
        ),
        (
            lacks_types,
            "this kernel has no type information (CONFIG_DEBUG_INFO_BTF): calls are shown by their registers, hits have no task, and only plain counts cost no exit; --symbols with its vmlinux gives types, where that has debugging information",
        ),
        (
            *kernel.ftrace() == FtraceSites::None,
            "this kernel has no ftrace (CONFIG_FUNCTION_TRACER): probes stand at functions' entries as anywhere else, and --count and --graph have nothing to stand on",
        ),
        (
            is_alone,
            "this kernel is built for one CPU (without CONFIG_SMP): the guest does not start the others",
        ),
        (
            !powers_off,
            "this kernel cannot switch the machine off, which takes CONFIG_ACPI and CONFIG_PCI: the run ends when the guest has halted, with exit code 123",
        ),
    ];
    limits.into_iter().filter(|(is_missing, _)| *is_missing).map(|(_, sentence)| sentence).collect()
}
