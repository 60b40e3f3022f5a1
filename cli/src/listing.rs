//! What a command lists on standard output.

use anyhow::{Context, Result};
use std::io::{self, BufWriter, ErrorKind, Write};

/// Lists what `write` writes. Whoever reads may go away when that is enough; whatever else keeps lines from being written
/// is an error, or a list that is cut short would be taken for all there is.
pub(crate) fn list(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    list_to(BufWriter::new(io::stdout().lock()), write)
}

fn list_to(mut out: impl Write, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<()> {
    match write(&mut out).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::OpenOptions;

    #[test]
    fn only_a_reader_that_has_gone_is_no_error() {
        let line = |out: &mut dyn Write| writeln!(out, "a line");
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        list_to(writer, line).unwrap();
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let error = list_to(BufWriter::new(full), line).unwrap_err();
        assert!(format!("{error:#}").starts_with("cannot write standard output: No space left"), "{error:#}");
    }
}
