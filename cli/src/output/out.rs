//! Where records go.

use crate::say::{self, finish, standard_error};
use crate::shared_terminal::is_shared;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::FileTypeExt;
use vmm::printer::Printer;

/// Where records go.
pub(crate) struct Out<'a> {
    pub(super) to: Box<dyn Write + 'a>,
    /// Writes them, where a reader could make this process wait.
    pub(super) printer: Option<Printer>,
}

/// Whether `file` is a pipe or a terminal: someone reads there, at leisure.
pub(crate) fn is_read_at_leisure(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.file_type().is_fifo() || file.is_terminal())
}

impl Write for Out<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()?;
        let Some(printer) = &self.printer else { return Ok(()) };
        finish(printer);
        // It fails if that did.
        printer.clone().write_all(&[])
    }
}

impl Out<'_> {
    /// The file that the user named.
    pub(crate) fn file(file: File) -> io::Result<Self> {
        if is_read_at_leisure(&file)? {
            let printer = Printer::of_all(file)?;
            return Ok(Self { to: Box::new(printer.clone()), printer: Some(printer) });
        }
        Ok(Self { to: Box::new(file), printer: None })
    }

    pub(crate) fn standard_error() -> Self {
        Self { to: standard_error(), printer: say::printer().cloned() }
    }

    /// Standard output; where a person sees it among the guest's console, the lines are marked as all lines of ours.
    pub(crate) fn standard_output() -> io::Result<Self> {
        if is_shared() {
            return Ok(Self::standard_error());
        }
        let printer = Printer::of_all(io::stdout())?;
        Ok(Self { to: Box::new(printer.clone()), printer: Some(printer) })
    }
}
