//! Where things lie in the guest's physical memory before its kernel runs.
//!
//! The kernel takes what is below 1 MiB over once it has copied what it needs (Documentation/arch/x86/boot.rst).

use probe_engine::addr::Gpa;
use std::ops::Range;

/// The global descriptor table of the 64-bit boot protocol.
pub const GDT: Gpa = Gpa(0x500);
/// `struct boot_params`, one page.
pub const ZERO_PAGE: Gpa = Gpa(0x7000);
/// The stack that the kernel's first instructions may use grows down from here.
pub const BOOT_STACK: Gpa = Gpa(0x8ff0);
/// Page tables that map memory one to one: PML5, PML4, PDPT, and page directories of the first 4 GiB and of the kernel.
pub const PAGE_TABLES: Gpa = Gpa(0x9000);
/// What an entry of a page directory maps, in bytes.
pub const LARGE_PAGE: u64 = 2 << 20;
/// The kernel command line.
pub const CMDLINE: Gpa = Gpa(0x2_0000);
/// Longest command line, with its final NUL (the kernel's own COMMAND_LINE_SIZE).
pub const CMDLINE_MAX: usize = 2048;
/// End of the conventional memory; what follows up to [`HIGH_RAM`] is reserved in the memory map.
pub const LOW_RAM_END: Gpa = Gpa(0x9_fc00);
/// ACPI tables, inside the range in which an operating system looks for the RSDP.
pub const ACPI: Gpa = Gpa(0xe_0000);
/// RAM that the kernel may use freely starts here.
pub const HIGH_RAM: Gpa = Gpa(0x10_0000);

/// Memory that the memory map does not name: what the guest runs and fills for us without knowing of it (see
/// [`crate::reserved`]). In the hole below 4 GiB, where no device is. It begins with code, which the guest cannot change.
pub const RESERVED: Gpa = Gpa(0xd000_0000);
/// Where its data begin.
pub const RESERVED_DATA: Gpa = Gpa(0xd080_0000);
/// Its size, in bytes.
pub const RESERVED_SIZE: u64 = 34 << 20;

/// Addresses for the registers of PCI devices, below the reserved memory.
pub const PCI_MEMORY: Range<u64> = 0xc000_0000..RESERVED.0;
/// The two ports by which PCI devices are configured, and how many they take.
pub const PCI_CONFIG: Range<u16> = 0xcf8..0xd00;

/// Registers of the interrupt controllers (fixed by the PC platform and by KVM).
pub const IOAPIC: u32 = 0xfec0_0000;
/// See [`IOAPIC`].
pub const LAPIC: u32 = 0xfee0_0000;
/// Three pages that Intel's KVM wants for real-mode emulation, and one more below for its identity map.
pub const KVM_TSS: u64 = 0xfffb_d000;
/// See [`KVM_TSS`].
pub const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;

/// First serial port and its interrupt line.
pub const COM1: u16 = 0x3f8;
/// See [`COM1`].
pub const COM1_IRQ: u32 = 4;
/// ACPI PM1a event block (status, enable: two bytes each) and control block (two bytes).
pub const PM1A_EVENT: u16 = 0x600;
/// See [`PM1A_EVENT`].
pub const PM1A_CONTROL: u16 = 0x604;
/// The keyboard controller, of which there is the reset line alone.
pub const I8042: u16 = 0x60;
/// The ACPI interrupt line.
pub const SCI_IRQ: u16 = 9;
