//! What of a kernel is sealed once it has booted, and where it rewrites itself nevertheless, as plain data at link-time addresses.

use super::kprobes::KprobeTable;
use crate::addr::Gva;
use crate::linux::ftrace::FtraceSites;
use crate::linux::ftrace_site::FTRACE_SITE;
use crate::linux::kernel::Kernel;
use crate::linux::left_alone::Why;
use crate::linux::patch_tables::{jump_labels, rewritten};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;

const PAGE: u64 = 4096;
/// The function that changes text, through a mapping that only its CPU has (arch/x86/kernel/alternative.c).
const POKE: &str = "__text_poke";
/// The address space with this mapping: a pointer to its `mm_struct`. 6.16 has renamed it.
const POKING_SPACE: [&str; 2] = ["text_poke_mm", "poking_mm"];
/// The first function that `kernel_init` calls once the kernel has sealed itself (`mark_rodata_ro`), and that it calls in every
/// configuration with more than one CPU (init/main.c).
const SEALED: &str = "rcu_end_inkernel_boot";

/// Where there are no modules any more, and nothing that the kernel generates (Documentation/arch/x86/x86_64/mm.rst).
const GENERATED_END: Gva = Gva(0xffff_ffff_ff00_0000);

/// What is sealed of a kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedKernel {
    /// Whole pages.
    pub pages: Vec<Range<Gva>>,
    /// Its code.
    pub text: Range<Gva>,
    /// The function at whose entry the kernel has sealed itself.
    pub sealed_at: Gva,
    /// The function that changes text.
    pub poke: Range<Gva>,
    /// The pointer to the address space in which that function writes.
    pub poking_space: Gva,
    /// Where an `mm_struct` has the pointer to its top page table, in bytes.
    pub page_table: u64,
    /// Where modules are, and what the kernel generates (GVA): no KASLR moves that.
    pub generated: Range<Gva>,
    /// Where text is changed, rising.
    pub sites: Vec<Site>,
    /// Where it lists its kprobes, if it has such.
    pub kprobes: Option<KprobeTable>,
}

/// Where a kernel changes its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Site {
    /// Where it begins.
    pub at: Gva,
    /// So many bytes.
    pub length: u8,
    /// What it is.
    pub kind: SiteKind,
}

/// What is rewritten at a site.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SiteKind {
    /// A jump label, and where it leads.
    JumpLabel(Gva),
    /// A static call, or the trampoline of one.
    StaticCall,
    /// What ftrace makes calls of.
    Ftrace,
    /// A lock prefix.
    LockPrefix,
}

/// A kernel that cannot be sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotSealable {
    /// A symbol is missing.
    #[error("its symbols do not have `{0}`")]
    NoSymbol(&'static str),
    /// Its types are.
    #[error("it has no type information (CONFIG_DEBUG_INFO_BTF)")]
    NoTypes,
}

impl SealedKernel {
    /// What is sealed of `kernel`.
    ///
    /// # Errors
    /// [`NotSealable`], the end of a sentence about the kernel.
    pub fn of(kernel: &Kernel) -> Result<Self, NotSealable> {
        let symbol = |name: &'static str| kernel.symbol(name).ok_or(NotSealable::NoSymbol(name));
        let text = symbol("_text")?..symbol("_etext")?;
        let data = symbol("__start_rodata")?..symbol("__end_rodata")?;
        let idt = symbol("idt_table")?;
        let poke = kernel.function(symbol(POKE)?).ok_or(NotSealable::NoSymbol(POKE))?;
        let [newer, older] = POKING_SPACE;
        let poking_space = kernel.symbol(newer).or_else(|| kernel.symbol(older));
        let page_table = kernel.btf().ok().and_then(|btf| btf.member("mm_struct", "pgd")?.offset());
        let pages = [text.clone(), data, idt..idt.add(PAGE)].map(|range| whole_pages(&range));
        // Where the kernel itself may be anywhere in 1 GiB (Documentation/arch/x86/x86_64/mm.rst).
        let moves = kernel.relocated().is_some();
        Ok(Self {
            pages: pages.to_vec(),
            generated: Gva(if moves { 0xffff_ffff_c000_0000 } else { 0xffff_ffff_a000_0000 })..GENERATED_END,
            sealed_at: symbol(SEALED)?,
            poke,
            poking_space: poking_space.ok_or(NotSealable::NoSymbol(older))?,
            page_table: page_table.ok_or(NotSealable::NoTypes)?,
            sites: sites(kernel, &text),
            kprobes: KprobeTable::of(kernel),
            text,
        })
    }

    /// The site that `at` is in.
    #[must_use]
    pub fn site(&self, at: Gva) -> Option<&Site> {
        site_at(&self.sites, at)
    }
}

/// The one of these `sites`, which rise, that `at` is in.
pub(super) fn site_at(sites: &[Site], at: Gva) -> Option<&Site> {
    let behind = sites.partition_point(|site| site.at <= at);
    let site = sites.get(behind.checked_sub(1)?)?;
    (at < site.at.add(site.length.into())).then_some(site)
}

/// The pages that a range begins in, up to its end's.
fn whole_pages(range: &Range<Gva>) -> Range<Gva> {
    Gva(range.start.0 & !(PAGE - 1))..Gva(range.end.0.next_multiple_of(PAGE))
}

fn sites(kernel: &Kernel, text: &Range<Gva>) -> Vec<Site> {
    let (image, symbols) = (kernel.image(), kernel.symbols());
    let labels: HashMap<Gva, Gva> = jump_labels(image, symbols).into_iter().collect();
    let listed = rewritten(image, symbols).into_iter().filter_map(|(range, why)| {
        let kind = match why {
            Why::JumpLabel => SiteKind::JumpLabel(*labels.get(&range.start)?),
            Why::StaticCall => SiteKind::StaticCall,
            Why::FtraceCall => SiteKind::Ftrace,
            Why::LockPrefix => SiteKind::LockPrefix,
            _ => return None,
        };
        let length = u8::try_from(range.end.offset_from(range.start)?).ok()?;
        Some(Site { at: range.start, length, kind })
    });
    let traced = match kernel.ftrace() {
        FtraceSites::Listed(all) => all.clone(),
        FtraceSites::Called(_) | FtraceSites::None => Vec::new(),
    };
    let traced = traced.into_iter().map(|at| Site { at, length: FTRACE_SITE as u8, kind: SiteKind::Ftrace });
    let mut all: Vec<Site> = listed.chain(traced).filter(|site| site.at.is_in(text)).collect();
    all.sort_unstable();
    all.dedup_by_key(|site| site.at);
    all
}
