//! Functions that a kernel jumps to where it means an indirect branch.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::kernel::Kernel;
use super::vmlinux::Vmlinux;
use crate::addr::Gva;

/// How they are called (arch/x86/lib/retpoline.S): `__x86_indirect_thunk_rax`, `__x86_indirect_jump_thunk_rax`,
/// `__x86_indirect_its_thunk_rax` and so on.
const NAMES: &str = "__x86_indirect_";

/// The thunks of a kernel, at link-time addresses.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Thunks {
    /// The kernel's text.
    text: Range<Gva>,
    /// Apart from each other.
    thunks: Vec<Range<Gva>>,
}

impl Thunks {
    /// Those of `kernel`.
    #[must_use]
    pub fn of(kernel: &Kernel) -> Self {
        let symbols = kernel.symbols();
        let named = symbols.text().filter(|symbol| symbol.name.starts_with(NAMES));
        let functions = named.filter_map(|symbol| symbols.function_at(symbol.at));
        Self::new(code(kernel.image()), functions.map(|function| function.range()).collect())
    }

    fn new(text: Range<Gva>, mut thunks: Vec<Range<Gva>>) -> Self {
        thunks.sort_unstable_by_key(|thunk| thunk.start);
        thunks.dedup_by(|next, last| {
            let touches = next.start <= last.end;
            if touches {
                last.end = last.end.max(next.end);
            }
            touches
        });
        Self { text, thunks }
    }

    /// Whether a direct jump to `at` stands for an indirect one: it leads to a thunk, or out of the kernel's text,
    /// where the guest makes thunks of its own (`its_allocate_thunk` in arch/x86/kernel/alternative.c).
    #[must_use]
    pub fn stand_at(&self, at: Gva) -> bool {
        !at.is_in(&self.text) || self.thunks.iter().any(|thunk| at.is_in(thunk))
    }
}

/// From the first section of code in `image` to the end of the last.
pub(super) fn code(image: &Vmlinux) -> Range<Gva> {
    let code = || image.sections().filter(|section| section.executable && !section.range.is_empty());
    let start = code().map(|section| section.range.start).min().unwrap_or_default();
    let end = code().map(|section| section.range.end).max().unwrap_or_default();
    start..end
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::linux::targets::tests::TEXT;

    /// Of a kernel with one thunk at the end of its text.
    pub(crate) fn thunks() -> Thunks {
        let (first, second) = (TEXT.add(0x1000)..TEXT.add(0x1010), TEXT.add(0x1010)..TEXT.add(0x1020));
        Thunks::new(TEXT..second.end, vec![second, first])
    }

    #[test]
    fn a_jump_out_of_the_text_is_taken_for_one_to_a_thunk() {
        let thunks = thunks();
        for (at, expected) in [(0, false), (0xfff, false), (0x1000, true), (0x101f, true), (0x1020, true)] {
            assert_eq!(thunks.stand_at(TEXT.add(at)), expected, "{at:#x}");
        }
        assert!(thunks.stand_at(TEXT.offset(-1)));
        assert_eq!(thunks.thunks.len(), 1);
    }
}
