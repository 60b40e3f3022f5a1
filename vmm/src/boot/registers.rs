//! Registers and tables of the boot processor: 64-bit mode with the first 4 GiB, and the kernel, mapped one to one.

use super::BootState;
use crate::layout;
use crate::memory::GuestRam;
use kvm_bindings::{Msrs, kvm_lapic_state, kvm_msr_entry, kvm_segment, kvm_sregs};
use probe_engine::addr::Gpa;
use probe_engine::memory::{NoMemory, PhysMemory};
use probe_engine::regs::Regs;
use std::collections::BTreeSet;

/// Selectors that the 64-bit boot protocol prescribes.
const BOOT_CS: u16 = 0x10;
const BOOT_DS: u16 = 0x18;
/// Descriptors: flat, ring 0, 64-bit code; flat, ring 0, data.
const CODE_DESCRIPTOR: u64 = 0x00af_9b00_0000_ffff;
const DATA_DESCRIPTOR: u64 = 0x00cf_9300_0000_ffff;

/// Writes the GDT and the page tables that [`set_sregs`] points to.
pub(super) fn write_tables(ram: &GuestRam, boot: &BootState) -> Result<(), NoMemory> {
    const TABLE: u64 = 0x3;
    const LARGE: u64 = 0x83;
    let write = |at: Gpa, value: u64| ram.write(at, &value.to_le_bytes());
    write(layout::GDT.add(u64::from(BOOT_CS)), CODE_DESCRIPTOR)?;
    write(layout::GDT.add(u64::from(BOOT_DS)), DATA_DESCRIPTOR)?;
    let [pml5, pml4, pdpt, mut directory] = [0, 1, 2, 3].map(|page| layout::PAGE_TABLES.add(page << 12));
    write(pml5, pml4.0 | TABLE)?;
    write(pml4, pdpt.0 | TABLE)?;
    // A kernel is smaller than 1 GiB, and may lie across the end of one.
    let kernel = boot.load.0 >> 30;
    let gigabytes = BTreeSet::from_iter((0..4).chain([kernel, kernel + 1]));
    for gigabyte in gigabytes {
        write(pdpt.add(gigabyte * 8), directory.0 | TABLE)?;
        for page in 0..512 {
            let at = (gigabyte << 30) + page * layout::LARGE_PAGE;
            write(directory.add(page * 8), at | LARGE)?;
        }
        directory = directory.add(0x1000);
    }
    Ok(())
}

/// The first page table.
fn root(boot: &BootState) -> Gpa {
    layout::PAGE_TABLES.add(if boot.five_levels { 0 } else { 0x1000 })
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
pub(crate) fn set_sregs(boot: &BootState, sregs: &mut kvm_sregs) {
    const CR0_PE_ET_PG: u64 = 1 | 1 << 4 | 1 << 31;
    const CR4_PAE: u64 = 1 << 5;
    const CR4_LA57: u64 = 1 << 12;
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
    sregs.cr3 = root(boot).0;
    sregs.cr0 = CR0_PE_ET_PG;
    sregs.cr4 = if boot.five_levels { CR4_PAE | CR4_LA57 } else { CR4_PAE };
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
