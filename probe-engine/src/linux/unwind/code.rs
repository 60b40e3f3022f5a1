//! Whose code lies where, and what is known of the stack there.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::addr::Gva;
use crate::linux::kernel::Kernel;
use crate::linux::orc::{OrcError, OrcRow, OrcTable};
use crate::memory::PhysMemory;
use crate::virt_memory::VirtMemory;

/// Where the kernel maps its modules, and all code that it generates: behind its image (`MODULES_VADDR`, which depends
/// on its configuration) up to here.
const GENERATED_END: Gva = Gva(0xffff_ffff_ff00_0000);
/// Where the kernel maps its image and its modules (`__START_KERNEL_map`, Documentation/arch/x86/x86_64/mm.rst). The pages that the guest
/// does not know are among them.
const KERNEL_AND_MODULES: Gva = Gva(0xffff_ffff_8000_0000);
/// What ftrace makes a trampoline from: a copy at the start of a page (`create_trampoline`, arch/x86/kernel/ftrace.c).
const FTRACE: [&str; 2] = ["ftrace_caller", "ftrace_regs_caller"];
/// Bytes by which such a copy is known: none of them is patched, and only one of the two saves flags so early.
const FTRACE_START: usize = 16;
/// Where functions return to when the guest follows them itself: for its return probes, in older kernels for its
/// kretprobes, and for its function graph tracer.
const RETURN_HOOKS: [&str; 3] = ["arch_rethook_trampoline", "__kretprobe_trampoline", "return_to_handler"];

/// What is known of a kernel's code, at link-time addresses and as plain data.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct KernelCode {
    /// Its table.
    orc: OrcTable,
    /// Its text, init text included.
    text: Range<Gva>,
    ftrace: [Option<Gva>; FTRACE.len()],
    /// 0 for those that it does not have: nothing returns there.
    return_hooks: [Gva; RETURN_HOOKS.len()],
}

/// A module's code, at run-time addresses. Its table is shared by all clones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleCode {
    /// Its text.
    pub text: Range<Gva>,
    /// Its text that is freed when its init has run; empty once it is.
    pub init_text: Range<Gva>,
    /// Its table.
    pub orc: Arc<OrcTable>,
}

/// All code of a running kernel that tables describe.
#[derive(Debug, Clone, Copy)]
pub struct Code<'a> {
    /// The kernel's own.
    pub kernel: &'a KernelCode,
    /// What KASLR adds to link-time addresses.
    pub slide: u64,
    /// Its modules'.
    pub modules: &'a [ModuleCode],
}

impl KernelCode {
    /// Finds it in `kernel`.
    ///
    /// # Errors
    /// [`OrcError`] when it has no table, or none that is understood.
    pub fn of(kernel: &Kernel) -> Result<Self, OrcError> {
        let image = kernel.image();
        let start = image.text_start();
        let end =
            image.sections().filter(|section| section.executable).map(|section| section.range.end).max();
        Ok(Self {
            orc: OrcTable::parse(image)?,
            text: start..end.unwrap_or(start),
            ftrace: FTRACE.map(|name| kernel.symbol(name)),
            return_hooks: RETURN_HOOKS.map(|name| kernel.symbol(name).unwrap_or(Gva(0))),
        })
    }

    /// A kernel of which no more is known than its `text` and the table of that.
    #[must_use]
    pub fn of_table(orc: OrcTable, text: Range<Gva>) -> Self {
        Self { orc, text, ftrace: Default::default(), return_hooks: Default::default() }
    }

    /// Its table.
    #[must_use]
    pub fn orc(&self) -> &OrcTable {
        &self.orc
    }
}

impl ModuleCode {
    #[inline]
    fn has(&self, at: Gva) -> bool {
        at.is_in(&self.text) || at.is_in(&self.init_text)
    }
}

impl Code<'_> {
    /// What is known at the instruction at `at`, a run-time address; `None` where no table says anything.
    pub(super) fn find<M: PhysMemory + ?Sized>(&self, at: Gva, memory: &VirtMemory<'_, M>) -> Option<OrcRow> {
        if self.is_kernels(at) {
            return self.kernel.orc.find(self.linked(at));
        }
        match self.modules.iter().find(|module| module.has(at)) {
            Some(module) => module.orc.find(at),
            None => self.kernel.orc.find(self.copied_from(at, memory)?),
        }
    }

    /// Whether code of ours may be at `at`, outside of the kernel's text, which the guest does not know: that is near it, and not
    /// described by a table.
    pub(super) fn may_be_ours(&self, at: Gva) -> bool {
        at >= KERNEL_AND_MODULES && !self.modules.iter().any(|module| module.has(at))
    }

    /// Whether there may be code at `at`. What the kernel generates is told by its place alone.
    pub(super) fn has(&self, at: Gva) -> bool {
        self.is_kernels(at) || at.is_in(&(self.kernel.text.end.add(self.slide)..GENERATED_END))
    }

    /// Whether the guest itself has put `at` in place of a return address.
    #[inline]
    pub(super) fn is_return_hook(&self, at: Gva) -> bool {
        let linked = self.linked(at);
        linked != Gva(0) && self.kernel.return_hooks.contains(&linked)
    }

    /// What the code at `at` was copied from by ftrace, linked.
    fn copied_from<M: PhysMemory + ?Sized>(&self, at: Gva, memory: &VirtMemory<'_, M>) -> Option<Gva> {
        let offset = at.0 & 0xfff;
        let start = |at| {
            let mut bytes = [0; FTRACE_START];
            memory.read(at, &mut bytes).ok().map(|()| bytes)
        };
        let copy = start(Gva(at.0 - offset)).filter(|_| self.has(at))?;
        let mut templates = self.kernel.ftrace.into_iter().flatten();
        let from = templates.find(|template| start(template.add(self.slide)) == Some(copy))?;
        Some(from.add(offset))
    }

    /// Whether `at` is in the kernel's own text.
    #[inline]
    pub(super) fn is_kernels(&self, at: Gva) -> bool {
        self.linked(at).is_in(&self.kernel.text)
    }

    #[inline]
    fn linked(&self, at: Gva) -> Gva {
        Gva(at.0.wrapping_sub(self.slide))
    }
}

#[cfg(test)]
impl KernelCode {
    /// A kernel of which only this is known.
    pub(super) fn new(
        orc: OrcTable,
        text: Range<Gva>,
        ftrace: [Option<Gva>; FTRACE.len()],
        hook: Option<Gva>,
    ) -> Self {
        Self { orc, text, ftrace, return_hooks: [Gva(0), hook.unwrap_or(Gva(0)), Gva(0)] }
    }
}
