//! Text of a recording that a terminal may show: whoever has written the recording may be hostile.

use probe_engine::guest_text::is_special;
use std::io::{self, Write};

/// Writes text line by line, in which what would act on a terminal or cannot be seen is a question mark.
pub(super) struct Harmless<W> {
    out: W,
    /// A line that has not ended yet.
    begun: Vec<u8>,
}

/// A line that grows longer is written in pieces, in bytes.
const LONGEST: usize = 64 << 10;

impl<W: Write> Harmless<W> {
    pub(super) fn new(out: W) -> Self {
        Self { out, begun: Vec::new() }
    }

    fn end_piece(&mut self) -> io::Result<()> {
        let harmless = |byte: &u8| matches!(byte, b'\n' | b'\t' | b' '..=b'~');
        if self.begun.iter().all(harmless) {
            self.out.write_all(&self.begun)?;
        } else {
            let shown = |c: char| if is_special(c) && !matches!(c, '\n' | '\t') { '?' } else { c };
            let line: String = String::from_utf8_lossy(&self.begun).chars().map(shown).collect();
            self.out.write_all(line.as_bytes())?;
        }
        self.begun.clear();
        Ok(())
    }
}

impl<W: Write> Write for Harmless<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LONGEST {
                self.end_piece()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.end_piece()?;
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_acts_on_a_terminal() {
        let mut out = Vec::new();
        let mut text = Harmless::new(&mut out);
        text.write_all("a\x1b[2K\u{202e}ü\tb\nc".as_bytes()).unwrap();
        text.flush().unwrap();
        drop(text);
        assert_eq!(String::from_utf8(out).unwrap(), "a?[2K?ü\tb\nc");
    }
}
