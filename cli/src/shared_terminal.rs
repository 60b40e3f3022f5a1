//! A terminal on which both the guest's console and we print: whose line is whose.
//!
//! Whoever may print on the guest's console could print lines that look like hits, or move the cursor up and change
//! ours. There each of our lines begins with a [mark](MARK), which the console cannot print, and what the console prints
//! stays below what is there: it may colour, and go back and erase in its own line. Full-screen programs of the guest
//! need hits to go to a file. Both are written by one thread, in the order in which they come, here and outside the emulated
//! host: neither gets inside a line of the other.

use probe_engine::guest_text::is_special;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use vmm::host::is_one_terminal;

/// What our lines begin with.
const MARK: &str = "▌";

/// Longest control sequence that is looked at, in bytes.
const LONGEST: usize = 24;

/// What a line of ours begins with where the console's has ended: its colours, of which one is none, are ended as well.
const PLAIN: &str = "\x1b[m";

static IS_SHARED: AtomicBool = AtomicBool::new(false);
/// Whether the console has begun a line. Whoever writes holds it, so that it is true of what has been written.
static IS_IN_LINE: Mutex<bool> = Mutex::new(false);

/// Whether standard output, where the console goes, and standard error, where hits go, are one terminal.
pub(crate) fn is_one() -> bool {
    is_one_terminal(io::stdout(), io::stderr())
}

/// From now on our lines are marked, and the console is kept below them.
pub(crate) fn share() {
    IS_SHARED.store(true, Ordering::Relaxed);
}

/// Whether they are.
pub(crate) fn is_shared() -> bool {
    IS_SHARED.load(Ordering::Relaxed)
}

/// Whoever has printed here besides may have begun a line and gone: our next one begins a row of its own.
pub(crate) fn begin_row() {
    *lock(&IS_IN_LINE) = true;
}

/// Our lines: the mark is put before each. They are handed on as whole lines: nothing gets inside one.
pub(crate) struct Marked<W> {
    out: W,
    console_is_in_line: &'static Mutex<bool>,
    /// A line that has not ended yet.
    begun: Vec<u8>,
}

impl<W: Write> Marked<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, console_is_in_line: &IS_IN_LINE, begun: Vec::new() }
    }
}

impl<W: Write> Write for Marked<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut console_is_in_line = lock(self.console_is_in_line);
        let mut marked = Vec::with_capacity(self.begun.len() + bytes.len() + 64);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(line);
            if !line.ends_with(b"\n") {
                break;
            }
            if std::mem::take(&mut *console_is_in_line) {
                marked.extend_from_slice(b"\r\n");
            }
            marked.extend_from_slice(PLAIN.as_bytes());
            marked.extend_from_slice(MARK.as_bytes());
            marked.append(&mut self.begun);
        }
        self.out.write_all(&marked)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The guest's console.
pub(crate) struct Tame<W> {
    out: W,
    is_in_line: &'static Mutex<bool>,
    /// What is not complete yet: of a character, or of a control sequence, which begins with an escape.
    begun: Vec<u8>,
}

impl<W: Write> Tame<W> {
    pub(crate) fn new(out: W) -> Self {
        Self { out, is_in_line: &IS_IN_LINE, begun: Vec::new() }
    }
}

impl<W: Write> Write for Tame<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut is_in_line = lock(self.is_in_line);
        let mut shown = Vec::with_capacity(bytes.len());
        for byte in bytes {
            self.begun.push(*byte);
            let piece = piece(&self.begun);
            match piece {
                Piece::Incomplete => continue,
                Piece::Shown => shown.extend_from_slice(&self.begun),
                Piece::Replaced => shown.push(b'?'),
                Piece::Dropped => {}
            }
            self.begun.clear();
        }
        if let Some(last) = shown.last() {
            *is_in_line = *last != b'\n';
        }
        self.out.write_all(&shown)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

fn lock(is_in_line: &Mutex<bool>) -> MutexGuard<'_, bool> {
    is_in_line.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What becomes of a few bytes that belong together.
#[derive(Debug, PartialEq, Eq)]
enum Piece {
    /// More bytes say.
    Incomplete,
    Shown,
    /// A question mark is shown.
    Replaced,
    Dropped,
}

fn piece(bytes: &[u8]) -> Piece {
    match bytes {
        [b'\n' | b'\r' | b'\t' | 0x08 | 0x07] => Piece::Shown,
        [0x1b] | [0x1b, b'[' | 0x20..=0x2f] => Piece::Incomplete,
        [0x1b, b'[', parameters @ .., last] => sequence(parameters, *last),
        [0x1b, ..] | [..=0x1f | 0x7f] => Piece::Dropped,
        _ => match str::from_utf8(bytes) {
            Ok(text) if text.chars().all(is_harmless) => Piece::Shown,
            Ok(_) => Piece::Replaced,
            Err(error) if error.error_len().is_none() => Piece::Incomplete,
            Err(_) => Piece::Replaced,
        },
    }
}

/// A control sequence (ECMA-48, 5.4): parameters, intermediate bytes, and a last byte that says what it does.
fn sequence(parameters: &[u8], last: u8) -> Piece {
    match last {
        0x20..=0x3f if parameters.len() < LONGEST => Piece::Incomplete,
        // SGR; erase in the line; to the right and to the left; delete, insert and erase characters.
        b'm' | b'K' | b'C' | b'D' | b'P' | b'@' | b'X'
            if parameters.iter().all(|byte| byte.is_ascii_digit() || *byte == b';') =>
        {
            Piece::Shown
        }
        // Erase what is below the cursor.
        b'J' if parameters.is_empty() || parameters == b"0" => Piece::Shown,
        _ => Piece::Dropped,
    }
}

/// What is shown of the console: letters and numbers, the punctuation between them, and signs of currencies.
///
/// That is a list of what cannot be taken for the [mark](MARK), and not of what can: blocks, lines, shapes, dots of
/// Braille, symbols of programming and of old computers, what fonts have in private, and what new editions of Unicode
/// bring, all draw something like half a cell, and a font may draw anything that it lacks as a box. Letters are strokes,
/// none thicker than the ASCII bar, which everyone needs. Beyond the Basic Multilingual Plane are letters in boxes and
/// numerals that are bars: nothing of it is shown.
fn is_harmless(c: char) -> bool {
    let is_listed = matches!(
        c,
        ' '..='~' | '\u{a1}'..='\u{ff}' | '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{205e}' | '\u{20a0}'..='\u{20c0}'
    );
    (is_listed || (c <= '\u{ffff}' && c.is_alphanumeric())) && !is_special(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tamed(pieces: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut tame = Tame::new(&mut out);
        pieces.iter().for_each(|piece| tame.write_all(piece).unwrap());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_console_stays_in_its_lines() {
        for (text, shown) in [
            (&b"~ # ls\r\n\x1b[1;34mbin\x1b[m\t\x07\n"[..], "~ # ls\r\n\x1b[1;34mbin\x1b[m\t\x07\n"),
            (b"ab\x08\x1b[J\x1b[2D\x1b[K", "ab\x08\x1b[J\x1b[2D\x1b[K"),
            // Up, to a place, erase all, scroll, save and restore, a title, reverse index, other screens.
            (b"a\x1b[1Ab\x1b[2;3Hc\x1b[2Jd\x1b[3Te\x1b7f\x1b8g", "abcdefg"),
            (b"a\x1b]0;title\x07b\x1bMc\x1b[?1049hd\x0b\x0c\x00e", "a0;title\x07bcde"),
            ("▌ours\u{202e}█│ü".as_bytes(), "?ours???ü"),
            (b"\xff\xc2\x9b1A", "??1A"),
            (b"\x1b[1\x1b[2Ax\x1b(By", "[2Axy"),
        ] {
            assert_eq!(tamed(&[text]), shown, "{text:?}");
            let single: Vec<&[u8]> = text.chunks(1).collect();
            assert_eq!(tamed(&single), shown, "{text:?}");
        }
    }

    #[test]
    fn nothing_of_the_console_looks_like_a_mark() {
        let plain = "~|Größe «naïve» Привет 日本語 ½ 5 € it’s “x” – …";
        assert_eq!(tamed(&[plain.as_bytes()]), plain);
        // Blocks, lines, shapes, dingbats, brackets in pieces, APL, Braille, wide and half-wide bars, a private glyph, one
        // of old computers, a numeral that is a bar, a combining line, a box around what is before, an emoji and its
        // variant.
        for like in "▌▋▍▏▎▐█▖░│┃║╎▮◧■❙⎸⎪⌷⡇⸡｜￨\u{e0b0}\u{f0000}🭰🮇𝍠\u{20d2}\u{20de}⬛🅰\u{fe0f}".chars()
        {
            assert_eq!(tamed(&[like.to_string().as_bytes()]), "?", "{like:?}");
        }
    }

    #[test]
    fn a_sequence_without_an_end_fills_no_memory() {
        let mut tame = Tame::new(io::sink());
        tame.write_all(b"\x1b[").unwrap();
        for _ in 0..1000 {
            tame.write_all(b"1;").unwrap();
            assert!(tame.begun.len() <= LONGEST + 4, "{}", tame.begun.len());
        }
    }

    #[test]
    fn each_line_of_ours_is_marked_once_and_begins_a_row() {
        static IS_IN_LINE: Mutex<bool> = Mutex::new(false);
        let mut out = Vec::new();
        let mut marked = Marked { console_is_in_line: &IS_IN_LINE, ..Marked::new(&mut out) };
        [&b"a\nb"[..], b"c\n", b"", b"d\n"].iter().for_each(|piece| marked.write_all(piece).unwrap());
        // A line that has begun is kept until it ends.
        marked.write_all(b"e").unwrap();
        let mut console = Tame { is_in_line: &IS_IN_LINE, ..Tame::new(io::sink()) };
        console.write_all(b"# \x1b[8m").unwrap();
        marked.write_all(b"f\ng\n").unwrap();
        console.write_all(b"# \n").unwrap();
        marked.write_all(b"h\n").unwrap();
        let lines = ["a\n", "bc\n", "d\n", "ef\n", "g\n", "h\n"];
        let shown: String = lines.iter().map(|line| format!("\x1b[m▌{line}")).collect();
        let shown = shown.replace("\x1b[m▌ef", "\r\n\x1b[m▌ef");
        assert_eq!(String::from_utf8(out).unwrap(), shown);
    }
}
