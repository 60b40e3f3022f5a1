//! The places in a kernel's text that its ftrace may make calls of.
//!
//! The kernel lists them between `__start_mcount_loc` and `__stop_mcount_loc` (include/asm-generic/vmlinux.lds.h,
//! `ftrace_process_locs` in kernel/trace/ftrace.c): a u64 address each, or zero, or for a function that was replaced an
//! address outside the text. What stands there in the file depends on the compiler: `call __fentry__`, or already the
//! nop that ftrace makes of it.

use super::read::u64_at;
use super::symbols::SymbolTable;
use super::vmlinux::Vmlinux;
use crate::addr::Gva;
use crate::linux::ftrace_site::{FTRACE_SITE, ftrace_nop};

/// Most entries of the table; Debian's kernels have 60,000.
const MOST_SITES: usize = 4 << 20;

/// How ftrace's sites are told, at link-time addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FtraceSites {
    /// By the kernel's own list, rising.
    Listed(Vec<Gva>),
    /// By what stands at a function's entry: the symbol that names the list is not there, and `__fentry__` is.
    Called(Gva),
    /// There are none: the kernel has no ftrace.
    None,
}

impl FtraceSites {
    /// Those of a kernel's image.
    #[must_use]
    pub fn of(image: &Vmlinux, symbols: &SymbolTable) -> Self {
        match (listed(image, symbols), symbols.address_of("__fentry__")) {
            (Some(sites), _) if !sites.is_empty() => Self::Listed(sites),
            (_, Some(fentry)) => Self::Called(fentry),
            (_, None) => Self::None,
        }
    }

    /// Whether one is at `at`, where the file has `bytes`. Where there is no list, only a function's `entry` is known.
    #[must_use]
    pub fn has(&self, at: Gva, bytes: &[u8], entry: Gva) -> bool {
        match self {
            Self::Listed(sites) => sites.binary_search(&at).is_ok(),
            Self::Called(fentry) => {
                at == entry && (ftrace_nop(bytes).is_some() || called_by(at, bytes) == Some(*fentry))
            }
            Self::None => false,
        }
    }
}

fn listed(image: &Vmlinux, symbols: &SymbolTable) -> Option<Vec<Gva>> {
    let range = symbols.address_of("__start_mcount_loc")?..symbols.address_of("__stop_mcount_loc")?;
    let entries = image.bytes(&range)?.chunks_exact(8).take(MOST_SITES);
    let addresses = entries.filter_map(|entry| u64_at(entry, 0)).map(Gva);
    let mut sites: Vec<Gva> = addresses.filter(|at| image.is_text(*at)).collect();
    sites.sort_unstable();
    Some(sites)
}

/// The target of the `call rel32` at `at`, if `bytes` are one.
fn called_by(at: Gva, bytes: &[u8]) -> Option<Gva> {
    const CALL: u8 = 0xe8;
    let [CALL, distance @ ..] = bytes.get(..FTRACE_SITE as usize)? else { return None };
    let distance = i32::from_le_bytes(distance.try_into().ok()?);
    Some(at.add(FTRACE_SITE).offset(distance.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linux::ftrace_site::FTRACE_NOP;
    use crate::linux::symbols::SymbolTableBuilder;
    use crate::linux::testing::{Part, elf};

    const TEXT: u64 = 0xffff_ffff_8100_0000;
    const TABLE: u64 = TEXT + 0x1000;

    /// A kernel with this list, and with symbols of that list and of `__fentry__` if wanted.
    fn sites(list: &[u64], is_named: bool, fentry: bool) -> FtraceSites {
        let table: Vec<u8> = list.iter().flat_map(|at| at.to_le_bytes()).collect();
        let end = TABLE + table.len() as u64;
        let parts = [Part::text(".text", TEXT, vec![0x90; 0x100]), Part::data(".init.data", TABLE, table)];
        let mut symbols = SymbolTableBuilder::default();
        let named = [(TABLE, b'd', "__start_mcount_loc"), (end, b'd', "__stop_mcount_loc")];
        for (at, kind, name) in named.into_iter().filter(|_| is_named) {
            symbols.push(Gva(at), kind, name).unwrap();
        }
        if fentry {
            symbols.push(Gva(TEXT + 0x80), b'T', "__fentry__").unwrap();
        }
        FtraceSites::of(&Vmlinux::parse(elf(&parts)).unwrap(), &symbols.finish())
    }

    #[test]
    fn the_kernels_list_says_where_they_are() {
        let found = sites(&[TEXT + 0x40, 0, TEXT + 0x10, TEXT + 0x5000], true, true);
        assert_eq!(found, FtraceSites::Listed(vec![Gva(TEXT + 0x10), Gva(TEXT + 0x40)]));
        assert!(found.has(Gva(TEXT + 0x10), &[], Gva(TEXT)));
        // An ordinary nop of five bytes.
        assert!(!found.has(Gva(TEXT + 0x20), &FTRACE_NOP, Gva(TEXT + 0x20)));
    }

    #[test]
    fn without_a_list_the_entrys_bytes_say_it() {
        let call = |distance: i32| [&[0xe8][..], &distance.to_le_bytes()].concat();
        for found in [sites(&[], false, true), sites(&[], true, true), sites(&[TEXT + 0x5000], true, true)] {
            assert_eq!(found, FtraceSites::Called(Gva(TEXT + 0x80)));
            let (entry, behind) = (Gva(TEXT + 0x10), Gva(TEXT + 0x20));
            assert!(found.has(entry, &FTRACE_NOP, entry));
            assert!(found.has(entry, &call(0x80 - 0x15), entry));
            assert!(!found.has(entry, &call(0), entry));
            assert!(!found.has(entry, &[0xe8, 0], entry));
            assert!(!found.has(behind, &FTRACE_NOP, entry));
        }
    }

    #[test]
    fn a_kernel_without_ftrace_has_none() {
        let found = sites(&[], false, false);
        assert_eq!(found, FtraceSites::None);
        assert!(!found.has(Gva(TEXT), &FTRACE_NOP, Gva(TEXT)));
    }
}
