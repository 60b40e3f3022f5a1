//! From files to a machine that is ready to run: kernel, initramfs, command line and tables go to guest memory,
//! and a plain [`BootState`] says how the first vCPU starts.

pub(crate) mod acpi;
pub(crate) mod cpuid;
pub mod layout;
pub(crate) mod registers;

pub use cpuid::on_emulated_cpu;

use crate::memory::GuestRam;
use linux_loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use linux_loader::loader::{self, KernelLoader};
use probe_engine::addr::Gpa;
use probe_engine::linux::bzimage::ENTRY_64;
use probe_engine::memory::PhysMemory;
use std::io::Cursor;
use vm_memory::{ByteValued, GuestAddress};

/// What the guest starts from.
#[derive(Clone, Copy)]
pub struct Payload<'a> {
    /// A bzImage, or an ELF vmlinux.
    pub kernel: &'a [u8],
    /// The initramfs.
    pub initrd: Option<&'a [u8]>,
    /// The complete kernel command line.
    pub cmdline: &'a str,
    /// Whether the machine has a PCI bus.
    pub pci: bool,
}

/// How the boot processor starts (Documentation/arch/x86/boot.rst, "64-bit Boot Protocol").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootState {
    /// First instruction, in one-to-one mapped memory.
    pub entry: Gpa,
    /// Where the protected-mode kernel was loaded.
    pub load: Gpa,
}

/// The guest cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// Neither format, or a damaged file.
    #[error("the kernel is neither a bzImage nor an ELF vmlinux that can be loaded")]
    Kernel(#[source] loader::Error),
    /// The bzImage has no 64-bit entry.
    #[error("the kernel has no 64-bit entry point: it is a 32-bit kernel, or older than Linux 3.8")]
    No64Bit,
    /// Kernel and its working space end beyond the RAM below the hole.
    #[error(
        "the kernel needs {needed_mib} MiB to start and the guest has {have_mib} MiB: give it more with --memory"
    )]
    TooLittleMemory {
        /// What the kernel asks for, in MiB.
        needed_mib: u64,
        /// What there is below the hole, in MiB.
        have_mib: u64,
    },
    /// No room for the initramfs between the kernel and the end of low RAM.
    #[error(
        "the initrd ({initrd_mib} MiB) does not fit into the guest's memory beside the kernel ({have_mib} MiB are left): give it more with --memory"
    )]
    Initrd {
        /// Size of the initramfs, in MiB, rounded up.
        initrd_mib: u64,
        /// What is left for it, in MiB.
        have_mib: u64,
    },
    /// Longer than the kernel reads.
    #[error("the kernel command line has {0} characters, the kernel reads {max}", max = layout::CMDLINE_MAX - 1)]
    Cmdline(usize),
    /// The guest has less RAM than the tables of the boot protocol take.
    #[error("the guest's memory is too small for the boot tables")]
    Tables(#[source] probe_engine::memory::NoMemory),
}

/// `xloadflags` bit 0: the kernel has the 64-bit entry point at 0x200.
const XLF_KERNEL_64: u16 = 1;

/// Writes everything that the guest needs to `ram`.
///
/// # Errors
/// [`BootError`], each a sentence for the user.
pub fn load(ram: &GuestRam, payload: &Payload<'_>, cpus: u8) -> Result<BootState, BootError> {
    let kernel = load_kernel(ram, payload.kernel)?;
    let initrd = payload.initrd.map(|bytes| load_initrd(ram, &kernel, bytes)).transpose()?;
    if payload.cmdline.len() >= layout::CMDLINE_MAX {
        return Err(BootError::Cmdline(payload.cmdline.len()));
    }
    let acpi = acpi::tables(cpus, payload.pci);
    let params = zero_page(ram, &kernel, initrd, payload.cmdline.len(), acpi.rsdp);
    let write = |at: Gpa, bytes: &[u8]| ram.write(at, bytes).map_err(BootError::Tables);
    write(layout::CMDLINE, payload.cmdline.as_bytes())?;
    write(layout::CMDLINE.add(payload.cmdline.len() as u64), &[0])?;
    write(layout::ACPI, &acpi.bytes)?;
    write(layout::ZERO_PAGE, params.as_slice())?;
    registers::write_tables(ram).map_err(BootError::Tables)?;
    Ok(BootState { entry: kernel.entry, load: kernel.load })
}

struct LoadedKernel {
    load: Gpa,
    entry: Gpa,
    /// End of the memory that the kernel uses before it reads the memory map.
    end: Gpa,
    header: setup_header,
}

fn load_kernel(ram: &GuestRam, image: &[u8]) -> Result<LoadedKernel, BootError> {
    if image.starts_with(b"\x7fELF") {
        return load_vmlinux(ram, image);
    }
    let field = |at: usize| image.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    // Where the kernel wants to be, and how much it needs there (boot.rst: pref_address, init_size).
    let (load, needed) = (u64::from(field(0x258).unwrap_or(0)), u64::from(field(0x260).unwrap_or(0)));
    fits(ram, load + needed)?;
    let loaded = loader::BzImage::load(
        ram.backing(),
        Some(GuestAddress(load)),
        &mut Cursor::new(image),
        Some(GuestAddress(layout::HIGH_RAM.0)),
    )
    .map_err(BootError::Kernel)?;
    let header = loaded.setup_header.unwrap_or_default();
    if header.xloadflags & XLF_KERNEL_64 == 0 {
        return Err(BootError::No64Bit);
    }
    let load = Gpa(load);
    Ok(LoadedKernel { load, entry: load.add(ENTRY_64), end: load.add(needed), header })
}

fn load_vmlinux(ram: &GuestRam, image: &[u8]) -> Result<LoadedKernel, BootError> {
    let loaded = loader::Elf::load(
        ram.backing(),
        None,
        &mut Cursor::new(image),
        Some(GuestAddress(layout::HIGH_RAM.0)),
    )
    .map_err(BootError::Kernel)?;
    fits(ram, loaded.kernel_end)?;
    let header = setup_header {
        boot_flag: 0xaa55,
        header: 0x5372_6448,
        version: 0x20c,
        kernel_alignment: 0x100_0000,
        initrd_addr_max: 0x7fff_ffff,
        ..Default::default()
    };
    let entry = Gpa(loaded.kernel_load.0);
    Ok(LoadedKernel { load: entry, entry, end: Gpa(loaded.kernel_end), header })
}

fn fits(ram: &GuestRam, end: u64) -> Result<(), BootError> {
    let have = ram.low_end().0;
    if end <= have {
        return Ok(());
    }
    Err(BootError::TooLittleMemory { needed_mib: end.div_ceil(1 << 20), have_mib: have >> 20 })
}

/// Puts the initramfs at the end of the RAM that the kernel can read it from.
fn load_initrd(ram: &GuestRam, kernel: &LoadedKernel, bytes: &[u8]) -> Result<(Gpa, usize), BootError> {
    let limit = ram.low_end().0.min(u64::from(kernel.header.initrd_addr_max) + 1);
    let size = bytes.len() as u64;
    let at = limit.checked_sub(size).map(|at| at & !0xfff).filter(|at| *at >= kernel.end.0);
    let Some(at) = at else {
        let have_mib = limit.saturating_sub(kernel.end.0) >> 20;
        return Err(BootError::Initrd { initrd_mib: size.div_ceil(1 << 20), have_mib });
    };
    ram.write(Gpa(at), bytes).map_err(BootError::Tables)?;
    Ok((Gpa(at), bytes.len()))
}

fn zero_page(
    ram: &GuestRam,
    kernel: &LoadedKernel,
    initrd: Option<(Gpa, usize)>,
    cmdline: usize,
    rsdp: Gpa,
) -> boot_params {
    /// "Undefined" boot loader, as boot.rst wants it from one without an assigned number.
    const LOADER_TYPE: u8 = 0xff;
    let mut params = boot_params { hdr: kernel.header, acpi_rsdp_addr: rsdp.0, ..Default::default() };
    params.hdr.type_of_loader = LOADER_TYPE;
    params.hdr.cmd_line_ptr = layout::CMDLINE.0 as u32;
    params.hdr.cmdline_size = cmdline as u32;
    if let Some((at, size)) = initrd {
        params.hdr.ramdisk_image = at.0 as u32;
        params.hdr.ramdisk_size = size as u32;
    }
    let entries = memory_map(ram);
    params.e820_entries = entries.len() as u8;
    for (slot, entry) in params.e820_table.iter_mut().zip(entries) {
        *slot = entry;
    }
    params
}

/// What the firmware would report: RAM, and the last part of the first MiB reserved.
fn memory_map(ram: &GuestRam) -> Vec<boot_e820_entry> {
    const RAM: u32 = 1;
    const RESERVED: u32 = 2;
    let entry =
        |start: Gpa, end: Gpa, kind| boot_e820_entry { addr: start.0, size: end.0 - start.0, r#type: kind };
    let mut map =
        vec![entry(Gpa(0), layout::LOW_RAM_END, RAM), entry(layout::LOW_RAM_END, layout::HIGH_RAM, RESERVED)];
    map.extend(ram.ranges().iter().map(|r| entry(r.start.max(layout::HIGH_RAM), r.end, RAM)));
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_map_of_a_large_guest_has_a_hole_below_four_gib() {
        let map: Vec<_> = memory_map(&GuestRam::new(64 << 30).unwrap())
            .iter()
            .map(|e| ({ e.addr }, { e.addr } + { e.size }, { e.r#type }))
            .collect();
        assert_eq!(
            map,
            [(0, 0x9_fc00, 1), (0x9_fc00, 0x10_0000, 2), (0x10_0000, 3 << 30, 1), (4 << 30, 65 << 30, 1)]
        );
    }

    #[test]
    fn what_is_not_a_kernel_is_refused() {
        let ram = GuestRam::new(128 << 20).unwrap();
        for bytes in [&b""[..], b"#!/bin/sh", &[0; 4096], b"\x7fELF\x02\x01\x01"] {
            let payload = Payload { kernel: bytes, initrd: None, cmdline: "", pci: false };
            assert!(matches!(load(&ram, &payload, 1), Err(BootError::Kernel(_))), "{bytes:?}");
        }
    }
}
