//! Names for addresses in the guest.

use super::stack::named;
use crate::record;
use probe_engine::addr::Gva;
use probe_engine::linux::lines::{LineTable, SourceLine};
use probe_engine::linux::names::{ModuleNames, Names};
use probe_engine::linux::symbols::SymbolTable;
use std::sync::Arc;
use vmm::stack::Stack;

/// What is known about where things are in the guest.
#[derive(Default)]
pub(crate) struct GuestNames {
    /// The kernel's symbols, where anything has to be named.
    pub(crate) kernel: Option<SymbolTable>,
    /// From which lines of the source its text is, where that is known.
    lines: Option<LineTable>,
    slide: u64,
    modules: Vec<Arc<ModuleNames>>,
}

impl GuestNames {
    pub(crate) fn new(kernel: Option<SymbolTable>, lines: Option<LineTable>) -> Self {
        Self { kernel, lines, ..Self::default() }
    }

    /// See [`vmm::session::Sink::names`].
    pub(crate) fn change(&mut self, slide: u64, modules: &[Arc<ModuleNames>]) {
        self.slide = slide;
        self.modules = modules.to_vec();
    }

    /// As the kernel's own are looked up; `None` without its symbols.
    pub(crate) fn all(&self) -> Option<Names<'_>> {
        let kernel = self.kernel.as_ref()?;
        Some(Names { kernel, slide: self.slide, modules: &self.modules })
    }

    /// A stack with the names of its frames; `None` without the kernel's symbols.
    pub(crate) fn stack(&self, stack: &Stack) -> Option<record::Stack> {
        Some(named(stack, self.all()?, self.lines.as_ref()))
    }

    /// The lines that the kernel's instruction at a run-time address is from, as [`LineTable::at`] has them.
    pub(crate) fn lines(&self, at: Gva) -> Vec<SourceLine<'_>> {
        self.lines.as_ref().map(|lines| lines.at(Gva(at.0.wrapping_sub(self.slide)))).unwrap_or_default()
    }

    /// The function around a run-time address, or the variable that begins there, as `%pS` writes them.
    pub(crate) fn pointee(&self, at: Gva) -> Option<String> {
        let kernel = self.kernel.as_ref()?;
        let text = kernel.address_of("_stext")?..kernel.address_of("_etext")?;
        let is_text = Gva(at.0.wrapping_sub(self.slide)).is_in(&text);
        self.symbol(at).filter(|name| is_text || name.contains("+0x0/"))
    }

    /// The symbol at a run-time address, as the kernel's `%pS` writes it.
    pub(crate) fn symbol(&self, at: Gva) -> Option<String> {
        Some(self.all()?.symbol(at)?.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::symbols::SymbolTableBuilder;

    #[test]
    fn addresses_have_names_when_the_kernel_has_been_found() {
        const KERNEL: Gva = Gva(0xffff_ffff_8100_0000);
        const SLIDE: u64 = 0x20_0000;
        let mut builder = SymbolTableBuilder::default();
        builder.push(KERNEL, b'T', "vfs_read").unwrap();
        builder.push(KERNEL.add(0x40), b'T', "_etext").unwrap();
        let mut names = GuestNames::new(Some(builder.finish()), None);
        names.change(SLIDE, &[]);
        assert_eq!(names.symbol(KERNEL.add(SLIDE + 4)).as_deref(), Some("vfs_read+0x4/0x40"));
        assert_eq!(names.symbol(KERNEL), None);
        assert_eq!(GuestNames::new(None, None).symbol(KERNEL), None);
    }
}
