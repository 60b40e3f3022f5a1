//! What of a module is sealed as long as that is loaded, and where it is rewritten nevertheless. All addresses are run-time addresses.
//!
//! Its text and its constants are final when `do_init_module` is entered, and from then on the kernel itself has them read-only
//! (`complete_formation` in kernel/module/main.c).

use super::kprobes::{KprobeTable, StandingKprobe};
use super::sealed::{Site, SiteKind};
use crate::addr::Gva;
use crate::linux::ftrace_site::FTRACE_SITE;
use crate::linux::modules::{Module, ModuleError, ModuleLayout};
use crate::linux::symbols::SymbolTable;
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;
use std::ops::Range;

const PAGE: u64 = 4096;

/// A module that is about to be sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedModule {
    /// Its text.
    pub text: Range<Gva>,
    /// Its text that is freed once its init has run.
    pub init_text: Range<Gva>,
    /// Whole pages that have nothing but its text and its constants, rising.
    pub pages: Vec<Gva>,
    /// The same of what is written once, while its init runs.
    pub after_init: Vec<Gva>,
    /// Where its text is changed, rising.
    pub sites: Vec<Site>,
    /// The guest's kprobes that stand in its text already.
    pub kprobes: Vec<StandingKprobe>,
}

impl SealedModule {
    /// What is sealed of `module`, of which nothing has run yet or all is final, `symbols` being its own. `kprobes` are those of a kernel
    /// that runs `slide` bytes behind where it was linked.
    ///
    /// # Errors
    /// [`ModuleError`] when it cannot be read.
    pub fn read<M: PhysMemory + ?Sized>(
        module: &Module,
        layout: &ModuleLayout,
        memory: &VirtMemory<'_, M>,
        symbols: &SymbolTable,
        (kprobes, slide): (Option<&KprobeTable>, u64),
    ) -> Result<Self, ModuleError> {
        let text = module.text.clone();
        let labels = module.jump_labels(layout, memory)?.into_iter();
        let calls = module.static_calls(layout, memory, symbols)?.into_iter();
        let traced = module.ftrace_sites(layout, memory)?.into_iter();
        let mut sites: Vec<Site> = labels
            .map(|(range, to)| (range, SiteKind::JumpLabel(to)))
            .chain(calls.map(|range| (range, SiteKind::StaticCall)))
            .chain(traced.map(|at| (at..at.add(FTRACE_SITE), SiteKind::Ftrace)))
            .filter(|(range, _)| range.start >= text.start && range.end <= text.end)
            .filter_map(|(range, kind)| {
                let length = u8::try_from(range.end.offset_from(range.start)?).ok()?;
                Some(Site { at: range.start, length, kind })
            })
            .collect();
        sites.sort_unstable();
        sites.dedup_by_key(|site| site.at);
        let mut pages = inner_pages(&text);
        let mut after_init = Vec::new();
        if let Some(fields) = layout.read_only {
            let [constants, once] = module.read_only(fields, memory)?;
            pages.extend(inner_pages(&constants));
            after_init = inner_pages(&once);
        }
        pages.sort_unstable();
        pages.dedup();
        after_init.retain(|page| pages.binary_search(page).is_err());
        // Whoever breaks that list is not to have the module unsealed.
        let standing = kprobes.and_then(|table| table.standing(memory, slide, &text).ok());
        let init_text = module.init_text.clone();
        Ok(Self { text, init_text, pages, after_init, sites, kprobes: standing.unwrap_or_default() })
    }
}

/// The pages that lie in `range` as a whole: what else is in a page may be anybody's.
fn inner_pages(range: &Range<Gva>) -> Vec<Gva> {
    let start = range.start.0.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    let end = range.end.0 & !(PAGE - 1);
    (start..end).step_by(PAGE as usize).map(Gva).collect()
}
