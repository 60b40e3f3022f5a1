//! Registers and tables of the boot processor: 64-bit mode with the first 4 GiB mapped one to one.

use super::{BootState, layout};
use crate::memory::GuestRam;
use kvm_bindings::{Msrs, kvm_lapic_state, kvm_msr_entry, kvm_segment, kvm_sregs};
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::regs::Regs;

/// Selectors that the 64-bit boot protocol prescribes.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;
/// Descriptors: flat, ring 0, 64-bit code; flat, ring 0, data.
const CODE_DESCRIPTOR: u64 = 0x00af_9b00_0000_ffff;
const DATA_DESCRIPTOR: u64 = 0x00cf_9300_0000_ffff;

/// Writes the GDT and the page tables that [`set_sregs`] points to.
pub(super) fn write_tables(ram: &GuestRam) -> Result<(), NoMemory> {
    const TABLE: u64 = 0x3;
    const LARGE_PAGE: u64 = 0x83;
    let write = |at: probe_engine::addr::Gpa, value: u64| ram.write(at, &value.to_le_bytes());
    write(layout::GDT.add(u64::from(BOOT_CS)), CODE_DESCRIPTOR)?;
    write(layout::GDT.add(u64::from(BOOT_DS)), DATA_DESCRIPTOR)?;
    let pdpt = layout::PAGE_TABLES.add(0x1000);
    let directories = layout::PAGE_TABLES.add(0x2000);
    write(layout::PAGE_TABLES, pdpt.0 | TABLE)?;
    for gib in 0..4 {
        write(pdpt.add(gib * 8), directories.add(gib << 12).0 | TABLE)?;
    }
    for page in 0..4 * 512 {
        write(directories.add(page * 8), page << 21 | LARGE_PAGE)?;
    }
    Ok(())
}

/// General registers at the kernel's entry: RSI points to the zero page.
pub(crate) fn regs(boot: &BootState) -> Regs {
    Regs {
        rip: boot.entry.0,
        rsi: layout::ZERO_PAGE.0,
        rsp: layout::BOOT_STACK.0,
        rflags: 2,
        ..Default::default()
    }
}

/// Turns the reset state `sregs` into 64-bit mode with paging.
pub(crate) fn set_sregs(sregs: &mut kvm_sregs) {
    const CR0_PE_ET_PG: u64 = 1 | 1 << 4 | 1 << 31;
    const CR4_PAE: u64 = 1 << 5;
    const EFER_LME_LMA: u64 = 1 << 8 | 1 << 10;
    let code = kvm_segment {
        limit: 0xffff_ffff,
        selector: BOOT_CS,
        type_: 11,
        present: 1,
        s: 1,
        l: 1,
        g: 1,
        ..Default::default()
    };
    let data = kvm_segment { selector: BOOT_DS, type_: 3, l: 0, db: 1, ..code };
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.ss, sregs.fs, sregs.gs) = (data, data, data, data, data);
    sregs.gdt.base = layout::GDT.0;
    sregs.gdt.limit = BOOT_DS + 7;
    sregs.idt.base = 0;
    sregs.idt.limit = 0;
    sregs.cr3 = layout::PAGE_TABLES.0;
    sregs.cr0 = CR0_PE_ET_PG;
    sregs.cr4 = CR4_PAE;
    sregs.efer = EFER_LME_LMA;
}

/// Model-specific registers that firmware sets: fast strings, and write-back as the default memory type.
pub(crate) fn msrs() -> Result<Msrs, vmm_sys_util::fam::Error> {
    const IA32_MISC_ENABLE: u32 = 0x1a0;
    const IA32_MTRR_DEF_TYPE: u32 = 0x2ff;
    let entry = |index, data| kvm_msr_entry { index, data, ..Default::default() };
    Msrs::from_entries(&[entry(IA32_MISC_ENABLE, 1), entry(IA32_MTRR_DEF_TYPE, 1 << 11 | 6)])
}

/// Wires the local APIC as a PC does: LINT0 takes the 8259's interrupts, LINT1 is the NMI.
pub(crate) fn wire_lapic(lapic: &mut kvm_lapic_state) {
    const LVT_LINT0: usize = 0x350;
    const LVT_LINT1: usize = 0x360;
    const EXTINT: u32 = 0x700;
    const NMI: u32 = 0x400;
    for (at, mode) in [(LVT_LINT0, EXTINT), (LVT_LINT1, NMI)] {
        for (register, byte) in lapic.regs.iter_mut().skip(at).zip(mode.to_le_bytes()) {
            *register = byte as std::os::raw::c_char;
        }
    }
}
