//! Per-CPU variables: how far from the kernel's GS base a CPU finds its own one.
//!
//! Up to 6.14 the section of these variables is linked at address 0, and GS's base is where a CPU's own copy of it begins: a
//! symbol's address is the offset. Since 6.15 the section is linked among the kernel's other data, and GS's base is the
//! distance from there to the copy: the offset is the symbol's run-time address (arch/x86/kernel/vmlinux.lds.S,
//! arch/x86/kernel/setup_percpu.c). Which of the two it is, the addresses themselves say.

use super::btf::Btf;
use super::symbols::{Symbol, SymbolTable};
use crate::addr::Gva;
use std::ops::Range;

/// Largest per-CPU section, in bytes; Debian's kernels have 0x39000.
const LARGEST_SECTION: u64 = 16 << 20;

/// The offset of a variable in a kernel that was not moved: see [`slid`]. `None` unless it is the only per-CPU symbol
/// of that name.
pub(super) fn offset(symbols: &SymbolTable, name: &str) -> Option<u64> {
    let section = section(symbols);
    let mut found = symbols.lookup(name).filter(|symbol| is_per_cpu(symbol, section.as_ref()));
    found.next().filter(|_| found.next().is_none()).map(|symbol| symbol.at.0)
}

/// The offset of `variable`, which from 6.2 to 6.14 is the `member` of `pcpu_hot`.
pub(super) fn hot_offset(
    symbols: &SymbolTable,
    btf: Option<&Btf<'_>>,
    member: &str,
    variable: &str,
) -> Option<u64> {
    match offset(symbols, "pcpu_hot") {
        Some(hot) => hot.checked_add(btf?.member("pcpu_hot", member)?.offset()?),
        None => offset(symbols, variable),
    }
}

/// What `offset` becomes where KASLR has moved the kernel by `slide`.
#[must_use]
pub fn slid(offset: u64, slide: u64) -> u64 {
    if offset < LARGEST_SECTION { offset } else { offset.wrapping_add(slide) }
}

/// Where the section is linked, if that is among the kernel's other data.
#[must_use]
pub fn section(symbols: &SymbolTable) -> Option<Range<Gva>> {
    let range = symbols.address_of("__per_cpu_start")?..symbols.address_of("__per_cpu_end")?;
    let size = range.end.offset_from(range.start)?;
    (range.start.0 >= LARGEST_SECTION && size < LARGEST_SECTION).then_some(range)
}

/// The letter of a symbol does not tell: a variable at an offset is absolute in kallsyms, and data in System.map.
fn is_per_cpu(symbol: &Symbol<'_>, section: Option<&Range<Gva>>) -> bool {
    match section {
        Some(section) => symbol.at.is_in(section),
        None => symbol.at.0 < LARGEST_SECTION,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::symbols::SymbolTableBuilder;
    use crate::linux::testing::BtfBuilder;

    const SECTION: u64 = 0xffff_ffff_8310_0000;

    fn table(symbols: &[(u64, u8, &str)]) -> SymbolTable {
        let mut builder = SymbolTableBuilder::default();
        for (at, kind, name) in symbols {
            builder.push(Gva(*at), *kind, name).unwrap();
        }
        builder.finish()
    }

    /// A kernel since 6.15 with these symbols besides.
    fn placed(symbols: &[(u64, u8, &str)]) -> SymbolTable {
        let bounds = [(SECTION, b'D', "__per_cpu_start"), (SECTION + 0x4000, b'D', "__per_cpu_end")];
        table(&[&bounds, symbols].concat())
    }

    #[test]
    fn a_variable_at_an_offset_does_not_slide() {
        // As kallsyms has it, and as System.map has it.
        for kind in [b'A', b'D'] {
            let symbols = table(&[(0, kind, "__per_cpu_start"), (0x1fb80, kind, "current_task")]);
            assert_eq!(offset(&symbols, "current_task"), Some(0x1fb80));
        }
        assert_eq!(slid(0x1fb80, 0x1a00_0000), 0x1fb80);
    }

    #[test]
    fn a_variable_among_the_data_slides() {
        let symbols = placed(&[(SECTION + 0x40, b'D', "current_task")]);
        assert_eq!(offset(&symbols, "current_task"), Some(SECTION + 0x40));
        assert_eq!(slid(SECTION + 0x40, 0x1a00_0000), SECTION + 0x1a00_0040);
    }

    #[test]
    fn what_is_no_per_cpu_variable_is_not_found() {
        let elsewhere = (SECTION - 8, b'D', "current_task");
        assert_eq!(offset(&placed(&[elsewhere]), "current_task"), None);
        assert_eq!(offset(&table(&[elsewhere]), "current_task"), None);
        assert_eq!(offset(&placed(&[(0x40, b'A', "current_task")]), "current_task"), None, "a constant");
        let twice = [(SECTION, b'D', "state"), (SECTION + 8, b'D', "state")];
        assert_eq!(offset(&placed(&twice), "state"), None);
    }

    #[test]
    fn every_generation_has_its_hot_variables() {
        let mut btf = BtfBuilder::default();
        let pointer = btf.pointer(0);
        let inner = btf.structure("", 16, &[("preempt_count", pointer, 0), ("current_task", pointer, 8)]);
        btf.structure("pcpu_hot", 64, &[("", inner, 0)]);
        let bytes = btf.finish();
        let btf = Btf::parse(&bytes).unwrap();
        let find = |symbols: &SymbolTable, btf| hot_offset(symbols, btf, "current_task", "current_task");
        assert_eq!(find(&table(&[(0x1fb80, b'A', "current_task")]), None), Some(0x1fb80));
        let hot = table(&[(0x35000, b'A', "pcpu_hot")]);
        assert_eq!(find(&hot, Some(&btf)), Some(0x35008));
        assert_eq!(find(&hot, None), None);
        assert_eq!(find(&placed(&[(SECTION, b'D', "current_task")]), Some(&btf)), Some(SECTION));
        assert_eq!(find(&table(&[]), Some(&btf)), None);
    }
}
