//! Names for addresses in the guest.

use super::stack::named;
use crate::program_names::ProgramNames;
use crate::record;
use probe_engine::addr::Gva;
use probe_engine::linux::lines::{LineTable, SourceLine};
use probe_engine::linux::names::{ModuleNames, Names};
use probe_engine::linux::splat::SplatFrame;
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
    /// Of the programs that processes run, where these are known.
    programs: Option<ProgramNames>,
}

impl GuestNames {
    pub(crate) fn new(kernel: Option<SymbolTable>, lines: Option<LineTable>) -> Self {
        Self { kernel, lines, ..Self::default() }
    }

    /// The same with the names of programs.
    pub(crate) fn with_programs(self, programs: Option<ProgramNames>) -> Self {
        Self { programs, ..self }
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
        Some(named(stack, self.all()?, self.lines.as_ref(), self.programs.as_ref()))
    }

    /// The lines that the kernel's instruction at a run-time address is from, as [`LineTable::at`] has them.
    pub(crate) fn lines(&self, at: Gva) -> Vec<SourceLine<'_>> {
        self.lines.as_ref().map(|lines| lines.at(Gva(at.0.wrapping_sub(self.slide)))).unwrap_or_default()
    }

    /// The line of the source of a frame that the kernel has written, where it is in a function of the kernel itself that is told
    /// from others by its name and its length.
    pub(crate) fn source(&self, frame: &SplatFrame) -> Option<(String, u32)> {
        let (kernel, lines) = (self.kernel.as_ref()?, self.lines.as_ref()?);
        let (offset, length) = frame.place.filter(|_| frame.module.is_none())?;
        let has_length = |at: &Gva| kernel.end_of(*at).and_then(|end| end.offset_from(*at)) == Some(length);
        let mut starts = kernel.lookup(&frame.function).map(|symbol| symbol.at).filter(has_length);
        let start = starts.next().filter(|_| starts.next().is_none())?;
        // Behind a call, the line is that of the call.
        let at = start.add(offset.saturating_sub(frame.is_return.into()));
        let own = lines.at(at).pop().filter(|line| line.line != 0)?;
        Some((own.file.to_owned(), own.line))
    }

    /// The function around a run-time address, or the variable that begins there, as `%pS` writes them.
    pub(crate) fn pointee(&self, at: Gva) -> Option<String> {
        let kernel = self.kernel.as_ref()?;
        let text = kernel.address_of("_stext")?..kernel.address_of("_etext")?;
        let is_text = Gva(at.0.wrapping_sub(self.slide)).is_in(&text);
        self.symbol(at).filter(|name| is_text || name.contains("+0x0/"))
    }

    /// The variable that begins at a run-time address.
    pub(crate) fn variable(&self, at: Gva) -> Option<String> {
        let name = self.all()?.symbol(at).filter(|name| name.offset == 0)?;
        Some(name.function?.symbol.name.to_owned())
    }

    /// The symbol at a run-time address, as the kernel's `%pS` writes it.
    pub(crate) fn symbol(&self, at: Gva) -> Option<String> {
        Some(self.all()?.symbol(at)?.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use probe_engine::linux::lines::LineTableBuilder;
    use probe_engine::linux::symbols::SymbolTableBuilder;

    #[test]
    fn a_frame_that_the_kernel_has_written_has_its_line() {
        const KERNEL: Gva = Gva(0xffff_ffff_8100_0000);
        let mut symbols = SymbolTableBuilder::default();
        for (at, name) in [(0, "twice"), (0x40, "twice"), (0x60, "once"), (0x80, "_etext")] {
            symbols.push(KERNEL.add(at), b'T', name).unwrap();
        }
        let (files, functions) = (["".to_owned(), "a.c".to_owned()], ["".to_owned()]);
        let mut lines = LineTableBuilder::new(KERNEL, &files, &functions);
        lines.call(0, 0, 0, 0);
        for (at, line) in [(0, 10), (0x40, 20), (0x60, 30), (0x65, 31)] {
            lines.push(at, 1, line, 0);
        }
        let names = GuestNames::new(Some(symbols.finish()), Some(lines.finish()));
        let line = |function: &str, place, is_return| {
            let frame =
                SplatFrame { function: function.to_owned(), place: Some(place), is_return, module: None };
            Some(names.source(&frame)?.1)
        };
        assert_eq!(line("once", (5, 0x20), false), Some(31));
        assert_eq!(line("once", (5, 0x20), true), Some(30));
        assert_eq!((line("twice", (0, 0x40), false), line("twice", (0, 0x20), false)), (Some(10), Some(20)));
        assert_eq!((line("twice", (0, 0x30), false), line("nobody", (0, 0x20), false)), (None, None));
    }

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
