//! Whose code lies where, and what is known of the stack there.

use std::ops::Range;

use crate::addr::Gva;
use crate::linux::orc::{OrcRow, OrcTable};

/// Where the kernel maps its modules, and all code that it generates: behind its image (`MODULES_VADDR`, which depends
/// on its configuration) up to here.
const GENERATED_END: Gva = Gva(0xffff_ffff_ff00_0000);

/// All code of a running kernel that its own tables describe.
#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    /// The kernel's table, at link-time addresses.
    pub kernel: &'a OrcTable,
    /// The link-time address where the kernel's text begins.
    pub text: Gva,
    /// The link-time address where it ends, init text included.
    pub text_end: Gva,
    /// What KASLR adds to link-time addresses.
    pub slide: u64,
    /// Its modules.
    pub modules: &'a [ModuleCode],
}

/// A module's code, at run-time addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleCode {
    /// Its text.
    pub text: Range<Gva>,
    /// Its text that is freed when its init has run; empty once it is.
    pub init_text: Range<Gva>,
    /// Its table.
    pub orc: OrcTable,
}

impl ModuleCode {
    fn has(&self, at: Gva) -> bool {
        at.is_in(&self.text) || at.is_in(&self.init_text)
    }
}

impl Code<'_> {
    /// What is known at the instruction at `at`, a run-time address; `None` where no table says anything.
    pub(super) fn find(&self, at: Gva) -> Option<OrcRow> {
        if at.is_in(&self.kernel_text()) {
            let linked = Gva(at.0.wrapping_sub(self.slide));
            return self.kernel.find(linked);
        }
        self.modules.iter().find(|module| module.has(at))?.orc.find(at)
    }

    /// Whether there may be code at `at`. What the kernel generates is told by its place alone.
    pub(super) fn has(&self, at: Gva) -> bool {
        let kernel = self.kernel_text();
        at.is_in(&kernel) || at.is_in(&(kernel.end..GENERATED_END))
    }

    fn kernel_text(&self) -> Range<Gva> {
        self.text.add(self.slide)..self.text_end.add(self.slide)
    }
}
