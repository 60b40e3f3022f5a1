//! The guest's console, kept in a file beside what is shown of it.

use crate::file;
use crate::say::{finish, say};
use anyhow::{Context, Result};
use std::io::{self, Write};
use std::path::Path;
use vmm::printer::Printer;

/// The file, if there is one.
pub(crate) struct KeptConsole(Option<Printer>);

impl KeptConsole {
    pub(crate) fn create(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self(None)) };
        let printer = Printer::of_what_fits(file::create(path)?).context("the host has no thread left")?;
        Ok(Self(Some(printer)))
    }

    /// A console that is shown by `shown`, and kept.
    pub(crate) fn beside(&self, shown: impl Write + Send + 'static) -> Box<dyn Write + Send> {
        match &self.0 {
            Some(kept) => Box::new(Twice { shown, kept: kept.clone() }),
            None => Box::new(shown),
        }
    }

    /// Waits until all of it is in the file.
    pub(crate) fn finish(&self) {
        let Some(kept) = &self.0 else { return };
        finish(kept);
        // It fails if an earlier one did.
        if let Err(error) = kept.clone().write_all(&[]) {
            say(format_args!("the guest's console could not be kept: {error}"));
        }
    }
}

struct Twice<W> {
    shown: W,
    kept: Printer,
}

impl<W: Write> Write for Twice<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // What becomes of it is said in the end.
        let _ = self.kept.write_all(bytes);
        self.shown.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.shown.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_shown_is_kept_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("console");
        let kept = KeptConsole::create(Some(&path)).unwrap();
        let mut console = kept.beside(io::sink());
        console.write_all(b"[    0.0] Linux\n").unwrap();
        console.write_all(b"end\n").unwrap();
        kept.finish();
        assert_eq!(fs::read(&path).unwrap(), b"[    0.0] Linux\nend\n");
        assert!(KeptConsole::create(Some(folder.path())).is_err());
        assert!(KeptConsole::create(None).unwrap().beside(io::sink()).write_all(b"x").is_ok());
    }
}
