//! What a vCPU is set to beside its general registers: segments, tables of descriptors, control registers.

use crate::paging::AddressSpace;

/// A segment register with what the processor has loaded of its descriptor (Intel SDM volume 3, 3.4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Segment {
    /// What a program sees of it.
    pub selector: u16,
    /// Where the segment begins (GVA).
    pub base: u64,
    /// The offset of its last byte.
    pub limit: u32,
    /// Bits 8 to 23 of the descriptor's second word, where they are there.
    pub attributes: u32,
}

/// Where a table of descriptors is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DescriptorTable {
    /// GVA.
    pub base: u64,
    /// The offset of its last byte.
    pub limit: u16,
}

/// System registers of a vCPU that stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs, reason = "the fields are the architecture's own register names")]
pub struct SystemRegs {
    pub cs: Segment,
    pub ds: Segment,
    pub es: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub ss: Segment,
    pub ldt: Segment,
    pub tr: Segment,
    pub gdt: DescriptorTable,
    pub idt: DescriptorTable,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub cr8: u64,
    pub efer: u64,
    /// What `swapgs` makes the base of GS.
    pub kernel_gs_base: u64,
}

impl SystemRegs {
    /// The address space.
    #[must_use]
    pub fn space(&self) -> AddressSpace {
        AddressSpace::new(self.cr3, self.cr4)
    }

    /// Each value by its name: `cs`, `cs_base`, `cs_limit`, `cs_attributes`, .. `gdt_base`, `gdt_limit`, .. `cr0`.
    #[must_use]
    pub fn by_name(&self) -> Vec<(String, u64)> {
        let segments = [
            ("cs", self.cs),
            ("ds", self.ds),
            ("es", self.es),
            ("fs", self.fs),
            ("gs", self.gs),
            ("ss", self.ss),
            ("ldt", self.ldt),
            ("tr", self.tr),
        ];
        let of_segment = |(name, segment): (&str, Segment)| {
            [
                (name.to_owned(), segment.selector.into()),
                (format!("{name}_base"), segment.base),
                (format!("{name}_limit"), segment.limit.into()),
                (format!("{name}_attributes"), segment.attributes.into()),
            ]
        };
        let of_table = |(name, table): (&str, DescriptorTable)| {
            [(format!("{name}_base"), table.base), (format!("{name}_limit"), table.limit.into())]
        };
        let control = [
            ("cr0", self.cr0),
            ("cr2", self.cr2),
            ("cr3", self.cr3),
            ("cr4", self.cr4),
            ("cr8", self.cr8),
            ("efer", self.efer),
            ("k_gs_base", self.kernel_gs_base),
        ];
        let tables = [("gdt", self.gdt), ("idt", self.idt)];
        let control = control.map(|(name, value)| (name.to_owned(), value));
        segments
            .into_iter()
            .flat_map(of_segment)
            .chain(tables.into_iter().flat_map(of_table))
            .chain(control)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_value_has_a_name() {
        let gs =
            Segment { selector: 0x18, base: 0xffff_8880_1000_0000, limit: 0xffff_ffff, attributes: 0xa093 };
        let idt = DescriptorTable { base: 0xffff_fe00_0000_0000, limit: 0xfff };
        let all = SystemRegs { gs, idt, cr3: 0x1000, ..SystemRegs::default() }.by_name();
        let names: std::collections::BTreeSet<_> = all.iter().map(|(name, _)| name).collect();
        assert_eq!((all.len(), names.len()), (43, 43));
        let value = |name: &str| all.iter().find(|(own, _)| own == name).unwrap().1;
        assert_eq!((value("gs"), value("gs_base"), value("gs_attributes")), (0x18, gs.base, 0xa093));
        assert_eq!((value("idt_base"), value("idt_limit"), value("cr3")), (idt.base, 0xfff, 0x1000));
    }
}
