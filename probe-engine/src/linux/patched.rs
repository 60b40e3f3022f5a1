//! Text that is not to be probed: code that must not trap, and instructions that the guest rewrites itself.
//!
//! The kernel lists all of them in tables of its own, for its own patching and its own kprobes. What is read here is
//! what `arch/x86/kernel/alternative.c`, `jump_label.c`, `static_call.c` and `kernel/kprobes.c` read.

use std::ops::Range;

use super::left_alone::Why;
use super::patch_tables::Tables;
use super::symbols::SymbolTable;
use super::vmlinux::Vmlinux;
use crate::addr::Gva;

/// All such text of a kernel, at link-time addresses, or of a module, at run-time addresses.
#[derive(Debug, Clone)]
pub struct PatchedText {
    /// At all times.
    always: Vec<(Range<Gva>, Why)>,
    /// Until the guest has booted.
    booting: Vec<(Range<Gva>, Why)>,
    fixups: Vec<Gva>,
    missing: Vec<Why>,
}

impl PatchedText {
    /// Reads the tables of a kernel image. `symbols` tell where those are that have no section of their own; with
    /// symbols of functions only (no CONFIG_KALLSYMS_ALL) some cannot be found, see [`PatchedText::missing`]; of jump labels and
    /// static calls all is then listed that may be one.
    #[must_use]
    pub fn from_image(image: &Vmlinux, symbols: &SymbolTable) -> Self {
        let tables = Tables::read(image, symbols);
        Self::new(tables.found, tables.fixups, tables.missing)
    }

    /// What tables list, in any order.
    pub(crate) fn new(found: Vec<(Range<Gva>, Why)>, mut fixups: Vec<Gva>, missing: Vec<Why>) -> Self {
        let (booting, always) = found.into_iter().partition(|(_, why)| why.is_final_after_boot());
        fixups.sort_unstable();
        Self { always: disjoint(always), booting: disjoint(booting), fixups, missing }
    }

    /// Why the instruction with these bytes is left alone, if it is. A reason that holds at all times comes before
    /// one that [`Why::is_final_after_boot`].
    #[must_use]
    pub fn covers(&self, bytes: Range<Gva>) -> Option<Why> {
        overlap(&self.always, &bytes).or_else(|| overlap(&self.booting, &bytes))
    }

    /// The bytes around `at` that the guest may have rewritten while it booted, and why.
    pub(crate) fn booting_around(&self, at: Gva) -> Option<(Range<Gva>, Why)> {
        let first = self.booting.partition_point(|(range, _)| range.end <= at);
        self.booting.get(first).filter(|(range, _)| at.is_in(range)).cloned()
    }

    /// Whether an instruction that begins in these bytes may fault and be resumed elsewhere (`__ex_table`). The
    /// guest finds the place by the address of the fault, so that it must never run from a copy.
    #[must_use]
    pub fn has_fixup(&self, bytes: Range<Gva>) -> bool {
        self.first_fixup(&bytes).is_some()
    }

    /// The first of these bytes that are left alone for a reason that `counts`, and that reason.
    pub(crate) fn first(&self, bytes: &Range<Gva>, counts: impl Fn(Why) -> bool) -> Option<(Gva, Why)> {
        let first = |ranges: &[(Range<Gva>, Why)]| {
            let begin = ranges.partition_point(|(range, _)| range.end <= bytes.start);
            let near = ranges.iter().skip(begin).take_while(|(range, _)| range.start < bytes.end);
            let found = near.map(|(range, why)| (range.start.max(bytes.start), *why));
            found.filter(|(_, why)| counts(*why)).min()
        };
        [&self.always, &self.booting].into_iter().filter_map(|ranges| first(ranges)).min_by_key(|(at, _)| *at)
    }

    /// The first of these bytes at which an instruction begins that may fault and be resumed elsewhere.
    pub(crate) fn first_fixup(&self, bytes: &Range<Gva>) -> Option<Gva> {
        let first = self.fixups.partition_point(|at| *at < bytes.start);
        self.fixups.get(first).copied().filter(|at| *at < bytes.end)
    }

    /// Tables that the kernel should have and that were not found or not understood. What they list is not refused, but
    /// for what looks like a jump label or a static call.
    #[must_use]
    pub fn missing(&self) -> &[Why] {
        &self.missing
    }
}

/// Sorts the ranges and cuts off what an earlier one covers, so that starts and ends both rise.
fn disjoint(mut ranges: Vec<(Range<Gva>, Why)>) -> Vec<(Range<Gva>, Why)> {
    ranges.sort_unstable_by_key(|(range, why)| (range.start, *why));
    let mut covered = Gva(0);
    ranges.retain_mut(|(range, _)| {
        range.start = range.start.max(covered);
        covered = covered.max(range.end);
        range.start < range.end
    });
    ranges
}

/// The reason of the first range that shares a byte with `bytes`.
fn overlap(ranges: &[(Range<Gva>, Why)], bytes: &Range<Gva>) -> Option<Why> {
    let first = ranges.partition_point(|(range, _)| range.end <= bytes.start);
    let (range, why) = ranges.get(first)?;
    (range.start < bytes.end).then_some(*why)
}

#[cfg(test)]
mod tests;
