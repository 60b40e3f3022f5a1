//! From files to a machine that is ready to run: kernel, initramfs, command line and tables go to guest memory,
//! and a plain [`BootState`] says how the first vCPU starts.

pub(crate) mod acpi;
pub(crate) mod cpuid;
mod image;
mod kaslr;
pub(crate) mod registers;

pub use cpuid::on_emulated_cpu;

use crate::layout;
use crate::memory::GuestRam;
use image::{Image, LoadTarget};
use linux_loader::bootparam::{boot_e820_entry, boot_params, setup_header};
use probe_engine::addr::Gpa;
use probe_engine::linux::boot::Boot;
use probe_engine::linux::bzimage::BzImageError;
use probe_engine::linux::relocations::RelocationsError;
use probe_engine::linux::vmlinux::VmlinuxError;
use probe_engine::memory::PhysMemory;
use std::borrow::Cow;
use std::io;
use std::ops::Range;
use vm_memory::ByteValued;

/// What the guest starts from.
pub struct Payload<'a> {
    /// The file that `boot` is about: a bzImage, or an unpacked kernel.
    pub kernel: Cow<'a, [u8]>,
    /// What runs before the kernel.
    pub boot: &'a Boot,
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
    /// Where the file's own code was loaded.
    pub load: Gpa,
    /// Where the kernel runs, where that is known already.
    pub kernel: Option<KernelPlace>,
    /// Whether it starts with page tables of five levels.
    pub five_levels: bool,
}

/// Where a kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelPlace {
    /// How far behind the physical addresses that it was linked at, in bytes.
    pub moved: u64,
    /// How far behind the virtual ones, in bytes.
    pub slide: u64,
}

/// The guest cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// A damaged bzImage, or something else.
    #[error(transparent)]
    BzImage(#[from] BzImageError),
    /// A damaged unpacked kernel, or something else.
    #[error(transparent)]
    Vmlinux(#[from] VmlinuxError),
    /// Its addresses cannot be changed.
    #[error(transparent)]
    Relocations(#[from] RelocationsError),
    /// The host has no random numbers.
    #[error("the host has no random numbers for the kernel's place")]
    Random(#[source] io::Error),
    /// Kernel and its working space end beyond the RAM below the hole.
    #[error("the kernel needs {needed_mib} MiB to start and the guest has {have_mib} MiB")]
    TooLittleMemory {
        /// What the kernel asks for, in MiB.
        needed_mib: u64,
        /// What there is below the hole, in MiB.
        have_mib: u64,
    },
    /// No room for the initramfs between the kernel and the end of low RAM.
    #[error(
        "the initrd ({initrd_mib} MiB) does not fit into the guest's memory beside the kernel ({have_mib} MiB are left)"
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

/// Whether `payload` could be put into a guest with `memory` bytes of RAM.
///
/// # Errors
/// [`BootError`], each a sentence for the user.
pub fn check(memory: u64, payload: Payload<'_>) -> Result<(), BootError> {
    let Payload { kernel, boot, initrd, cmdline, .. } = payload;
    let image = Image::read(kernel, boot)?;
    initrd_place(GuestRam::low_end_of(memory), &image, initrd.unwrap_or_default(), cmdline).map(|_| ())
}

/// Writes everything that the guest needs to `ram`. `has_five_levels`: its CPUs know page tables of five levels.
///
/// # Errors
/// [`BootError`], each a sentence for the user.
pub fn load(
    ram: &GuestRam,
    payload: Payload<'_>,
    cpus: u8,
    has_five_levels: bool,
) -> Result<BootState, BootError> {
    let Payload { kernel, boot, initrd: initramfs, cmdline, pci } = payload;
    let (image, initramfs) = (Image::read(kernel, boot)?, initramfs.unwrap_or_default());
    let initrd = initrd_place(ram.low_end(), &image, initramfs, cmdline)?;
    let machine = LoadTarget { ram, taken: &initrd, cmdline, has_five_levels };
    let (state, header) = image.load(&machine)?;
    let acpi = acpi::tables(cpus, pci);
    let params = zero_page(ram, header, &initrd, cmdline.len(), acpi.rsdp);
    let write = |at: Gpa, bytes: &[u8]| ram.write(at, bytes).map_err(BootError::Tables);
    write(initrd.start, initramfs)?;
    write(layout::CMDLINE, cmdline.as_bytes())?;
    write(layout::CMDLINE.add(cmdline.len() as u64), &[0])?;
    write(layout::ACPI, &acpi.bytes)?;
    write(layout::ZERO_PAGE, params.as_slice())?;
    registers::write_tables(ram, &state).map_err(BootError::Tables)?;
    Ok(state)
}

/// Where the initramfs goes, which is empty without one: the end of the RAM that the kernel can read it from.
fn initrd_place(
    low_end: Gpa,
    image: &Image<'_>,
    initramfs: &[u8],
    cmdline: &str,
) -> Result<Range<Gpa>, BootError> {
    if cmdline.len() >= layout::CMDLINE_MAX {
        return Err(BootError::Cmdline(cmdline.len()));
    }
    let needed = image.memory.end;
    if needed > low_end {
        return Err(BootError::TooLittleMemory {
            needed_mib: needed.0.div_ceil(1 << 20),
            have_mib: low_end.0 >> 20,
        });
    }
    let limit = low_end.0.min(u64::from(image.header.initrd_addr_max) + 1);
    let size = initramfs.len() as u64;
    let at = limit.checked_sub(size).map(|at| at & !0xfff).filter(|at| *at >= needed.0);
    let Some(at) = at else {
        let have_mib = limit.saturating_sub(needed.0) >> 20;
        return Err(BootError::Initrd { initrd_mib: size.div_ceil(1 << 20), have_mib });
    };
    Ok(Gpa(at)..Gpa(at + size))
}

fn zero_page(
    ram: &GuestRam,
    header: setup_header,
    initrd: &Range<Gpa>,
    cmdline: usize,
    rsdp: Gpa,
) -> boot_params {
    /// "Undefined" boot loader, as boot.rst wants it from one without an assigned number.
    const LOADER_TYPE: u8 = 0xff;
    let mut params = boot_params { hdr: header, acpi_rsdp_addr: rsdp.0, ..Default::default() };
    params.hdr.type_of_loader = LOADER_TYPE;
    params.hdr.cmd_line_ptr = layout::CMDLINE.0 as u32;
    params.hdr.cmdline_size = cmdline as u32;
    if !initrd.is_empty() {
        params.hdr.ramdisk_image = initrd.start.0 as u32;
        params.hdr.ramdisk_size = (initrd.end.0 - initrd.start.0) as u32;
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
            let said = |boot| {
                let payload =
                    Payload { kernel: bytes.into(), boot: &boot, initrd: None, cmdline: "", pci: false };
                load(&ram, payload, 1, false)
            };
            assert!(matches!(said(Boot::Unknown), Err(BootError::BzImage(_))), "{bytes:?}");
            let direct = said(Boot::Direct { setup: Vec::new() });
            assert!(matches!(direct, Err(BootError::Vmlinux(_))), "{bytes:?}");
        }
    }
}
