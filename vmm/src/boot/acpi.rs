//! ACPI tables: RSDP -> XSDT -> FADT -> DSDT, and the MADT that lists the CPUs (ACPI specification 6.5, chapter 5).

use crate::layout;
use acpi_tables::aml::{self, Path};
use acpi_tables::fadt::{FADTBuilder, PmProfile};
use acpi_tables::madt::{EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic};
use acpi_tables::{Aml, AmlSink, rsdp::Rsdp, sdt::Sdt, xsdt::XSDT};
use probe_engine::addr::Gpa;

const OEM: [u8; 6] = *b"VMMKPR";
const TABLE: [u8; 8] = *b"VMMPROBE";
const REVISION: u32 = 1;

/// What SLP_TYP must be in PM1 control to switch the machine off: the value of `\_S5` in the DSDT.
pub(crate) const SLEEP_TYPE_OFF: u8 = 5;

/// The tables as they go to memory at [`layout::ACPI`], and where the RSDP is in them.
pub(crate) struct AcpiTables {
    pub(crate) bytes: Vec<u8>,
    pub(crate) rsdp: Gpa,
}

/// Describes a machine with `cpus` processors, and a PCI bus where it has one.
pub(crate) fn tables(cpus: u8, has_pci: bool) -> AcpiTables {
    let mut area = Area { bytes: Vec::new() };
    let dsdt = area.place(&Raw(dsdt(has_pci).as_slice().to_vec()));
    let fadt = area.place(&fadt(dsdt));
    let madt = area.place(&madt(cpus));
    let mut xsdt = XSDT::new(OEM, TABLE, REVISION);
    xsdt.add_entry(fadt.0);
    xsdt.add_entry(madt.0);
    let xsdt = area.place(&xsdt);
    let rsdp = area.place(&Rsdp::new(OEM, xsdt.0));
    AcpiTables { bytes: area.bytes, rsdp }
}

/// Tables one after the other, each at a 16-byte boundary as the RSDP must be.
struct Area {
    bytes: Vec<u8>,
}

impl Area {
    fn place(&mut self, table: &dyn Aml) -> Gpa {
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        let at = layout::ACPI.add(self.bytes.len() as u64);
        table.to_aml_bytes(&mut self.bytes);
        at
    }
}

struct Raw(Vec<u8>);

impl Aml for Raw {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        sink.vec(&self.0);
    }
}

fn fadt(dsdt: Gpa) -> acpi_tables::fadt::FADT {
    /// "VGA not present", "CMOS RTC not present" (the guest has kvmclock); no 8042 keyboard controller is
    /// announced, only its reset line works.
    const BOOT_ARCH: u16 = 1 << 2 | 1 << 5;
    /// WBINVD works, C1 everywhere, no power or sleep button, and the PM timer's absence is of no account.
    const FLAGS: u32 = 1 << 0 | 1 << 2 | 1 << 4 | 1 << 5;
    let mut fadt = FADTBuilder::new(OEM, TABLE, REVISION)
        .dsdt_64(dsdt.0)
        .preferred_pm_profile(PmProfile::EnterpriseServer);
    fadt.dsdt = (dsdt.0 as u32).into();
    fadt.sci_int = layout::SCI_IRQ.into();
    // smi_cmd stays 0: the machine is in ACPI mode from the start.
    fadt.pm1a_evt_blk = u32::from(layout::PM1A_EVENT).into();
    fadt.pm1_evt_len = 4;
    fadt.pm1a_cnt_blk = u32::from(layout::PM1A_CONTROL).into();
    fadt.pm1_cnt_len = 2;
    fadt.iapc_boot_arch = BOOT_ARCH.into();
    fadt.flags = FLAGS.into();
    fadt.finalize()
}

fn madt(cpus: u8) -> MADT {
    let mut madt = MADT::new(OEM, TABLE, REVISION, LocalInterruptController::Address(layout::LAPIC));
    for id in 0..cpus {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(cpus, layout::IOAPIC, 0));
    madt
}

/// What the machine has: the sleep state that switches off, the serial port, and perhaps a PCI bus.
fn dsdt(has_pci: bool) -> Sdt {
    let mut body = Vec::new();
    let off = aml::Package::new(vec![&SLEEP_TYPE_OFF, &SLEEP_TYPE_OFF, &aml::ZERO, &aml::ZERO]);
    aml::Name::new(Path::new("_S5_"), &off).to_aml_bytes(&mut body);
    aml::Scope::new(
        Path::new("_SB_"),
        vec![&aml::Device::new(
            Path::new("COM1"),
            vec![
                &aml::Name::new(Path::new("_HID"), &aml::EISAName::new("PNP0501")),
                &aml::Name::new(Path::new("_UID"), &aml::ZERO),
                &aml::Name::new(
                    Path::new("_CRS"),
                    &aml::ResourceTemplate::new(vec![
                        &aml::Interrupt::new(true, true, false, false, layout::COM1_IRQ),
                        &aml::IO::new(layout::COM1, layout::COM1, 0, 8),
                    ]),
                ),
            ],
        )],
    )
    .to_aml_bytes(&mut body);
    if has_pci {
        Pci.to_aml_bytes(&mut body);
    }
    let mut dsdt = Sdt::new(*b"DSDT", 36, 6, OEM, TABLE, REVISION);
    dsdt.append_slice(&body);
    dsdt
}

/// The root bus: its number, its ports, and the addresses of its devices. Interrupts are messages, so that no lines are
/// routed.
struct Pci;

impl Aml for Pci {
    fn to_aml_bytes(&self, sink: &mut dyn AmlSink) {
        let (ports, memory) = (layout::PCI_CONFIG, layout::PCI_MEMORY);
        let (first, last) = (memory.start as u32, (memory.end - 1) as u32);
        let bus = aml::AddressSpace::new_bus_number(0_u16, 0_u16);
        let ports = aml::IO::new(ports.start, ports.start, 1, ports.len() as u8);
        let memory =
            aml::AddressSpace::new_memory(aml::AddressSpaceCacheable::NotCacheable, true, first, last, None);
        let resources = aml::ResourceTemplate::new(vec![&bus, &ports, &memory]);
        let id = aml::EISAName::new("PNP0A03");
        let device = [
            aml::Name::new(Path::new("_HID"), &id),
            aml::Name::new(Path::new("_UID"), &aml::ZERO),
            aml::Name::new(Path::new("_BBN"), &aml::ZERO),
            aml::Name::new(Path::new("_CRS"), &resources),
        ];
        let device =
            aml::Device::new(Path::new("PCI0"), device.iter().map(|name| name as &dyn Aml).collect());
        aml::Scope::new(Path::new("_SB_"), vec![&device]).to_aml_bytes(sink);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn every_table_is_found_from_the_rsdp_and_sums_to_zero() {
        check(&tables(16, false));
        check(&tables(16, true));
    }

    fn check(tables: &AcpiTables) {
        let at = |gpa: u64| (gpa - layout::ACPI.0) as usize;
        let sum = |b: &[u8]| b.iter().fold(0u8, |s, b| s.wrapping_add(*b));
        let rsdp = &tables.bytes[at(tables.rsdp.0)..];
        assert_eq!(&rsdp[..8], b"RSD PTR ");
        assert_eq!((sum(&rsdp[..20]), sum(&rsdp[..36])), (0, 0));
        let xsdt = at(u64::from_le_bytes(rsdp[24..32].try_into().unwrap()));
        let entries = u32_at(&tables.bytes, xsdt + 4) as usize;
        let mut found = Vec::new();
        for entry in (xsdt + 36..xsdt + entries).step_by(8) {
            let table = at(u64::from_le_bytes(tables.bytes[entry..entry + 8].try_into().unwrap()));
            let length = u32_at(&tables.bytes, table + 4) as usize;
            assert_eq!(sum(&tables.bytes[table..table + length]), 0);
            found.push(tables.bytes[table..table + 4].to_vec());
        }
        assert_eq!(found, [b"FACP", b"APIC"]);
        assert_eq!(&tables.bytes[..4], b"DSDT");
        assert!(layout::ACPI.0 + tables.bytes.len() as u64 <= layout::HIGH_RAM.0);
    }
}
